package encryption

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

const (
	one   = "/registry/secrets/default/one"
	two   = "/registry/secrets/default/two"
	other = "/registry/configmaps/default/other"
	plain = "k8s\x00 not to be seen by anybody else"
)

// Every read of the store decrypts, and no file on disk contains clear text.
func TestValuesAreEncryptedOnDiskAlone(t *testing.T) {
	for _, provider := range []string{"secretbox", "aesgcm", "aescbc"} {
		t.Run(provider, func(t *testing.T) {
			b := newBed(t)
			b.write(configured("secrets", keys(provider, "a"), identity))
			b.keeper(false)
			ctx := t.Context()
			start, err := b.store.Revision(ctx)
			require.NoError(t, err)
			rev := b.create(one, plain)
			require.True(t, strings.HasPrefix(b.stored(one), "k8s:enc:"+provider+":v1:a:"))
			updated, err := b.store.Update(ctx, one, []byte(plain+" 2"), rev, 0)
			require.NoError(t, err)
			b.create(other, "visible")

			got, err := b.store.Get(ctx, one)
			require.NoError(t, err)
			require.Equal(t, plain+" 2", string(got.Value))
			kvs, _, _, err := b.store.Range(ctx, "/registry/", "", 0, rev)
			require.NoError(t, err)
			require.Equal(t, []kind.KV{{Key: one, Value: []byte(plain), Revision: rev}}, kvs)

			was, is := kind.KV{Key: one, Value: []byte(plain), Revision: rev}, kind.KV{
				Key: one, Value: []byte(plain + " 2"), Revision: updated,
			}
			events, _, err := b.store.History(ctx, "/registry/secrets/", start, updated, 1<<20)
			require.NoError(t, err)
			require.Equal(t, []kind.Change{{KV: was}, {KV: is, Prev: was}}, events)
			deleted, err := b.store.Delete(ctx, one, updated)
			require.NoError(t, err)
			watching, cancel := context.WithCancel(ctx)
			defer cancel()
			batches, _ := b.store.Watch(watching, "/registry/secrets/", start)
			events = nil
			for batch := range batches {
				if events = append(events, batch.Events...); batch.Revision >= deleted {
					break
				}
			}
			require.Equal(t,
				[]kind.Change{{KV: was}, {KV: is, Prev: was}, {KV: kind.KV{Key: one, Revision: deleted}, Deleted: true, Prev: is}},
				events)

			var snapshot bytes.Buffer
			require.NoError(t, b.store.Snapshot(ctx, &snapshot))
			require.NotContains(t, snapshot.String(), "not to be seen")
			require.NoError(t,
				filepath.WalkDir(filepath.Join(b.dir, "store"), func(path string, d fs.DirEntry, err error) error {
					if err != nil || d.IsDir() {
						return err
					}
					data, err := os.ReadFile(path)
					require.False(t, bytes.Contains(data, []byte("not to be seen")), path)
					return err
				}))
			require.Equal(t, "visible", b.stored(other))
		})
	}
}

func TestWhichResourcesAreEncrypted(t *testing.T) {
	const service, crd, deployment, unknown = "/registry/services/specs/default/s",
		"/registry/example.com/widgets/default/w", "/registry/deployments/default/d", "/registry/ranges/serviceips"
	all := []string{one, other, service, crd, deployment, unknown}
	for resources, want := range map[string][]string{
		"secrets":                      {one},
		"secrets, widgets.example.com": {one, crd},
		"services":                     {service},
		"'*.'":                         {one, other, service},
		"'*.apps'":                     {deployment},
		"'*.*'":                        {one, other, service, crd, deployment},
		"secrets.example.com":          nil,
		"endpoints":                    nil,
	} {
		t.Run(resources, func(t *testing.T) {
			s, err := load([]byte(configured(resources, keys("aesgcm", "a"))))
			require.NoError(t, err)
			v := NewValues(kinds)
			v.use(s)
			var got []string
			for _, key := range all {
				stored, done, err := v.Seal(key, []byte(plain))
				require.NoError(t, err)
				done()
				if string(stored) != plain {
					got = append(got, key)
				}
				opened, err := v.Open(key, stored)
				require.NoError(t, err)
				require.Equal(t, plain, string(opened))
			}
			require.Equal(t, want, got)
		})
	}
	// As in upstream's documentation, the first entry that matches a resource wins.
	s, err := load([]byte(configured("configmaps", identity) + "- resources: ['*.*']\n  providers: [" +
		keys("secretbox", "a") + "]\n"))
	require.NoError(t, err)
	v := NewValues(kinds)
	v.use(s)
	stored, done, err := v.Seal(other, []byte(plain))
	require.NoError(t, err)
	done()
	require.Equal(t, plain, string(stored))
}

// An unreadable value has an error; all others are read.
func TestUnreadableValues(t *testing.T) {
	for _, provider := range []string{"secretbox", "aesgcm"} {
		s, err := load([]byte(configured("secrets", keys(provider, "a"))))
		require.NoError(t, err)
		v := NewValues(kinds)
		v.use(s)
		good, done, err := v.Seal(one, []byte(plain))
		require.NoError(t, err)
		done()
		flipped := bytes.Clone(good)
		flipped[len(flipped)-1] ^= 1
		prefix := "k8s:enc:" + provider + ":v1:a:"
		for name, c := range map[string]struct {
			stored string
			want   error
		}{
			"truncated":        {string(good[:len(good)-1]), ErrDamaged},
			"flipped":          {string(flipped), ErrDamaged},
			"nothing":          {prefix, ErrDamaged},
			"garbage":          {prefix + "garbage", ErrDamaged},
			"another key":      {"k8s:enc:" + provider + ":v1:b:" + string(good[len(prefix):]), ErrNoKey},
			"another provider": {"k8s:enc:kms:v2:b:x", ErrNoKey},
			"half a prefix":    {"k8s:enc:", ErrNoKey},
			"plain":            {plain, ErrNoKey},
		} {
			_, err := v.Open(one, []byte(c.stored))
			require.ErrorIs(t, err, c.want, "%s %s", provider, name)
		}
		if _, err := v.Open(two, good); provider == "aesgcm" {
			require.ErrorIs(t, err, ErrDamaged, "a value does not move to another key")
		}
		_, err = v.Open(other, good)
		require.ErrorIs(t, err, ErrNoKey, "of a resource that is not encrypted")
		_, err = NewValues(kinds).Open(one, good)
		require.ErrorIs(t, err, ErrNoKey, "without a configuration")
	}
}

// A value whose key is missing ends neither a list nor a watch, and history begins after it.
func TestUnreadableValuesDoNotHideOthers(t *testing.T) {
	b := newBed(t)
	b.write(configured("secrets", keys("secretbox", "a"), identity))
	_, stop := b.keeper(false)
	start, err := b.store.Revision(t.Context())
	require.NoError(t, err)
	lost := b.create(one, plain)
	stop()
	b.write(configured("secrets", keys("secretbox", "b"), identity))
	k, err := New(b.config(false))
	require.NoError(t, err)
	require.NotNil(t, k)
	rev := b.create(two, plain)

	_, err = b.store.Get(t.Context(), one)
	require.ErrorIs(t, err, ErrNoKey)
	kvs, _, _, err := b.store.Range(t.Context(), "/registry/", "", 0, 0)
	require.NoError(t, err)
	require.Len(t, kvs, 2)
	require.ErrorIs(t, kvs[0].Err, ErrNoKey)
	require.Nil(t, kvs[0].Value)
	require.Equal(t, plain, string(kvs[1].Value))
	events, begin, err := b.store.History(t.Context(), "/registry/", start, rev, 1<<20)
	require.NoError(t, err)
	require.Equal(t, lost, begin)
	require.Len(t, events, 1)
	require.Equal(t, two, events[0].Key)
	_, err = b.store.Delete(t.Context(), one, lost)
	require.NoError(t, err, "it can be deleted")
	require.ErrorIs(t, b.store.Reseal(t.Context(), kvs[0]), store.ErrNotFound)
}

// Upstream's code reads values written here with the same file, and vice versa.
func TestUpstreamReadsWhatIsWrittenHere(t *testing.T) {
	for _, provider := range []string{"secretbox", "aesgcm", "aescbc"} {
		for _, resources := range []string{"secrets", "'*.'", "'*.*'"} {
			config := configured(resources, keys(provider, "b", "a"), keys("aesgcm", "c"), identity)
			file := filepath.Join(t.TempDir(), "config.yaml")
			require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
			loaded, err := encryptionconfig.LoadEncryptionConfig(t.Context(), file, false, "id")
			require.NoError(t, err)
			theirs := encryptionconfig.StaticTransformers(loaded.Transformers).TransformerForResource(schema.GroupResource{
				Resource: "secrets",
			})
			s, err := load([]byte(config))
			require.NoError(t, err)
			v := NewValues(kinds)
			v.use(s)

			stored, err := theirs.TransformToStorage(t.Context(), []byte(plain), value.DefaultContext(one))
			require.NoError(t, err)
			got, current, err := v.open(v.current.Load(), one, stored)
			require.NoError(t, err)
			require.True(t, current)
			require.Equal(t, plain, string(got))

			stored, done, err := v.Seal(one, []byte(plain))
			require.NoError(t, err)
			done()
			got, stale, err := theirs.TransformFromStorage(t.Context(), stored, value.DefaultContext(one))
			require.NoError(t, err)
			require.False(t, stale)
			require.Equal(t, plain, string(got))
		}
	}
}

func FuzzOpen(f *testing.F) {
	config := configured("secrets", keys("secretbox", "a", "b"), keys("aescbc", "a", "b"), keys("aesgcm", "a"), identity)
	s, err := load([]byte(config))
	require.NoError(f, err)
	v := NewValues(kinds)
	v.use(s)
	for _, provider := range []string{"secretbox", "aescbc", "aesgcm"} {
		alone, err := load([]byte(configured("secrets", keys(provider, "a"))))
		require.NoError(f, err)
		stored, err := alone.rules[schema.GroupResource{Resource: "secrets"}].seal(one, []byte(plain))
		require.NoError(f, err)
		f.Add(one, stored)
		f.Add(other, stored)
		f.Add(one, stored[:len(stored)/2])
	}
	f.Add("/registry/secrets", []byte("k8s:enc:"))
	f.Add("", []byte(nil))
	f.Fuzz(func(t *testing.T, key string, stored []byte) {
		got, err := v.Open(key, stored)
		_ = labelOf(stored).String()
		_ = v.resource(key)
		if err != nil {
			return
		}
		again, done, err := v.Seal(key, got)
		require.NoError(t, err)
		done()
		if !bytes.HasPrefix(again, []byte(encrypted)) {
			return
		}
		back, err := v.Open(key, again)
		require.NoError(t, err, fmt.Sprintf("%q", again))
		require.True(t, bytes.Equal(got, back))
	})
}

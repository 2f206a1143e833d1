package encryption

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"

	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// The same configurations are valid as upstream, except for the limits and KMS v1, which upstream refuses later.
func TestConfigurationsAreUpstreams(t *testing.T) {
	box := keys("secretbox", "a")
	short := "{secretbox: {keys: [{name: a, secret: c2hvcnQ=}]}}"
	for _, c := range []struct {
		config string
		want   string // part of the error
		more   bool   // upstream accepts it
	}{
		{config: configured("secrets", box, identity)},
		{config: configured("secrets, configmaps, widgets.example.com", keys("aescbc", "a", "b"), identity)},
		{config: configured("'*.'", box)},
		{config: configured("'*.apps', secrets", box)},
		{config: configured("secrets", box) + "- resources: ['*.*']\n  providers: [" + box + "]\n"},
		{config: configured("secrets", box) + "- resources: [secrets]\n  providers: [" + identity + "]\n"},
		{config: "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n", want: "at least one"},
		{config: configured("", box), want: "at least one"},
		{config: configured("secrets"), want: "at least one"},
		{config: configured("secrets", "{}"), want: "any of the expected providers"},
		{
			config: configured("secrets", "{identity: {}, aesgcm: {keys: [{name: a, secret: "+secret(0)+"}]}}"),
			want:   "more than one provider",
		},
		{config: configured("secrets", "{secretbox: {keys: []}}"), want: "at least one"},
		{config: configured("secrets", "{secretbox: {keys: [{secret: "+secret(0)+"}]}}"), want: "name"},
		{config: configured("secrets", "{secretbox: {keys: [{name: a}]}}"), want: "mandatory"},
		{config: configured("secrets", "{secretbox: {keys: [{name: a, secret: '!'}]}}"), want: "base64"},
		{config: configured("secrets", short), want: "got 5, expected one of [32]"},
		{config: configured("secrets", strings.Replace(short, "secretbox", "aesgcm", 1)), want: "one of [16 24 32]"},
		{config: configured("Secrets", box), want: "capital"},
		{config: configured("'*'", box), want: "use '*.'"},
		{config: configured("secrets, '*.'", box), want: "overlap"},
		{config: configured("secrets, '*.*'", box), want: "overlap"},
		{config: configured("secrets, secrets", box), want: "multiple times"},
		{config: configured("'secrets.*'", box), want: "across groups"},
		{config: configured("'*.extensions'", box), want: "removed"},
		{config: configured("events.events.k8s.io", box), want: "Use 'events'"},
		{config: configured("apiserveripinfo", box), want: "do not have REST API"},
		{config: configured("'*.*'", box) + "- resources: [secrets]\n  providers: [" + box + "]\n", want: "no effect"},
		{
			config: configured("'*.apps'", box) + "- resources: [deployments.apps]\n  providers: [" + box + "]\n",
			want:   "no effect",
		},
		{config: configured("secrets", box) + "more: x\n", want: "unknown field"},
		{config: "apiVersion: v1\nkind: Secret\n", want: "no kind"},
		{config: "text", want: "couldn't get version/kind"},
		{config: configured("secrets", "{kms: {apiVersion: v2, name: a, endpoint: 'unix:///a', timeout: 3s}}")},
		{config: configured("secrets", "{kms: {apiVersion: v2, name: a, endpoint: 'unix:///@a'}}", identity)},
		{
			config: configured("secrets", "{kms: {apiVersion: v2, name: a, endpoint: 'unix:///a'}}",
				"{kms: {apiVersion: v2, name: a, endpoint: 'unix:///b'}}"), want: "duplicate KMS provider name",
		},
		{
			config: configured("secrets", "{kms: {apiVersion: v2, name: 'a:b', endpoint: 'unix:///a'}}"),
			want:   "must not contain ':'",
		},
		{config: configured("secrets", "{kms: {apiVersion: v2, endpoint: 'unix:///a'}}"), want: "kms.name"},
		{config: configured("secrets", "{kms: {apiVersion: v2, name: a}}"), want: "endpoint is a mandatory field"},
		{
			config: configured("secrets", "{kms: {apiVersion: v2, name: a, endpoint: 'https://a'}}"),
			want:   "only unix is supported",
		},
		{
			config: configured("secrets", "{kms: {apiVersion: v2, name: a, endpoint: 'unix:///a', timeout: -1s}}"),
			want:   "more than 0",
		},
		{
			config: configured("secrets", "{kms: {apiVersion: v2, name: a, endpoint: 'unix:///a', cachesize: 5}}"),
			want:   "cachesize",
		},
		{config: configured("secrets", "{kms: {apiVersion: v3, name: a, endpoint: 'unix:///a'}}"), want: "not supported"},
		{config: configured("secrets", "{kms: {name: a, endpoint: 'unix:///a'}}"), want: "not supported", more: true},
		{
			config: configured("secrets", "{kms: {apiVersion: v2, name: a, endpoint: 'unix:///a', timeout: 2m}}"),
			want:   "at most 1m0s", more: true,
		},
		{config: configured("secrets", keys("aescbc", "a", "a")), want: "another name", more: true},
		{
			config: configured("secrets", keys("secretbox", strings.Split(strings.Repeat("a ", maxKeys), " ")[:maxKeys]...),
				box), want: "more than", more: true,
		},
	} {
		s, err := load([]byte(c.config))
		if err == nil {
			s.close()
		}
		if c.want == "" {
			require.NoError(t, err, c.config)
		} else {
			require.ErrorContains(t, err, c.want, c.config)
			require.NotContains(t, err.Error(), secret(0))
		}
		if !c.more {
			require.Equal(t, err == nil, upstream(c.config) == nil, "%s\n%v\n%v", c.config, err, upstream(c.config))
		}
	}
}

func upstream(config string) error {
	scheme := runtime.NewScheme()
	_ = apiserver.AddToScheme(scheme)
	_ = apiserverv1.AddToScheme(scheme)
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(),
		[]byte(config))
	if err != nil {
		return err
	}
	c := obj.(*apiserver.EncryptionConfiguration)
	if errs := validation.ValidateEncryptionConfiguration(c, false); len(errs) > 0 {
		return errs.ToAggregate()
	}
	return masked(c) // upstream checks this when it builds the transformers
}

func TestAServerDoesNotStartWithoutTheKeys(t *testing.T) {
	b := newBed(t)
	b.broken = []cache.Unreadable{
		{Key: one, Err: fmt.Errorf("it is encrypted with the secretbox key \"a\": %w", ErrNoKey)},
		{Key: two, Err: ErrNoKey},
	}
	off, err := New(Config{
		Values:     b.values,
		Store:      b.store,
		Logger:     b.log,
		Unreadable: func() []cache.Unreadable { return b.broken },
	})
	require.NoError(t, err)
	err = off.Run(t.Context())
	require.ErrorContains(t, err, one)
	require.ErrorContains(t, err, "and 1 more")
	require.ErrorContains(t, err, "--secrets-encryption or --encryption-provider-config FILE")
	b.write("keys")
	off.cfg.ManagedFile = b.file
	require.ErrorContains(t, off.Run(t.Context()), "--secrets-encryption, which uses the keys in "+b.file)
	require.NoError(t, os.Remove(b.file))

	k, err := New(b.config(true))
	require.NoError(t, err)
	err = k.Run(t.Context())
	require.ErrorContains(t, err, b.file)
	require.NoFileExists(t, b.file, "no key is made over objects of another one")

	b.broken = []cache.Unreadable{{Key: one, Err: ErrDamaged}}
	k, _ = b.keeper(true)
	require.Len(t, k.Warnings(), 1)
	require.Contains(t, k.Warnings()[0], one)
}

// TestEncryptionIsRemembered: the option need not be repeated. The keys in the data directory say that the cluster
// encrypts, also after a restore.
func TestEncryptionIsRemembered(t *testing.T) {
	b := newBed(t)
	_, stop := b.keeper(true)
	stop()
	require.FileExists(t, b.file)
	c := b.config(false)
	c.File, c.ManagedFile = "", b.file
	k, err := New(c)
	require.NoError(t, err)
	require.Equal(t, b.file, k.cfg.File)
	require.True(t, k.cfg.Managed)
	stop = background(t, k)
	require.NoError(t, k.Enable(false, quiet))
	stop()
	k, err = New(c)
	require.NoError(t, err)
	require.Empty(t, k.cfg.File, "it was disabled")
}

type messages struct {
	slog.Handler
	all chan string
}

func (m messages) Enabled(context.Context, slog.Level) bool { return true }
func (m messages) Handle(_ context.Context, r slog.Record) error {
	m.all <- r.Message
	return nil
}

func TestAChangedFileIsUsedAtOnce(t *testing.T) {
	b := newBed(t)
	log := messages{slog.DiscardHandler, make(chan string, 100)}
	b.log = slog.New(log)
	b.write(configured("secrets", keys("secretbox", "a"), identity))
	k, _ := b.keeper(false)
	b.create(one, plain)
	until := func(what string) {
		t.Helper()
		for m := range log.all {
			if strings.Contains(m, what) {
				return
			}
		}
	}
	b.write(configured("secrets", keys("secretbox", "b", "a"), identity))
	until("using a changed")
	b.create(two, plain)
	require.True(t, strings.HasPrefix(b.stored(two), "k8s:enc:secretbox:v1:b:"))
	require.ErrorContains(t, k.Rotate(quiet), b.file)

	for _, bad := range []string{
		configured("secrets", keys("secretbox", "b"), identity), // "one" needs a
		configured("secrets", identity),
		configured("configmaps", keys("secretbox", "b", "a"), identity),
		"nonsense",
		"",
	} {
		b.write(bad)
		until("could not use the changed")
		require.Len(t, k.Warnings(), 1)
		require.Contains(t, k.Warnings()[0], "is not in use")
		got, err := b.store.Get(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, plain, string(got.Value))
		require.Error(t, k.Reencrypt(quiet))
	}
	b.write(configured("secrets", keys("secretbox", "b", "a"), identity))
	require.NoError(t, k.Reencrypt(quiet))
	require.True(t, strings.HasPrefix(b.stored(one), "k8s:enc:secretbox:v1:b:"))
	b.write(configured("secrets", keys("secretbox", "b"), identity))
	until("using a changed")
	require.Empty(t, k.Warnings())
	require.NoError(t, os.Chmod(b.file, 0o644))
	require.NoError(t, k.Reencrypt(quiet))
	require.Contains(t, k.Warnings()[0], "chmod 600")
}

// A configuration replaced through a symlink, as mounted volumes do, is noticed too.
func TestAChangedLinkIsFollowed(t *testing.T) {
	b := newBed(t)
	log := messages{slog.DiscardHandler, make(chan string, 100)}
	b.log = slog.New(log)
	dir := t.TempDir()
	for name, names := range map[string][]string{"v1": {"a"}, "v2": {"b", "a"}} {
		require.NoError(t, os.Mkdir(dir+"/"+name, 0o700))
		require.NoError(t,
			os.WriteFile(dir+"/"+name+"/config.yaml", []byte(configured("secrets", keys("aesgcm", names...))), 0o600))
	}
	require.NoError(t, os.Symlink("v1", dir+"/data"))
	require.NoError(t, os.Symlink("data/config.yaml", dir+"/config.yaml"))
	b.file = dir + "/config.yaml"
	b.keeper(false)
	require.NoError(t, os.Symlink("v2", dir+"/next"))
	require.NoError(t, os.Rename(dir+"/next", dir+"/data"))
	for m := range log.all {
		if strings.Contains(m, "using a changed") {
			break
		}
	}
	b.create(one, plain)
	require.True(t, strings.HasPrefix(b.stored(one), "k8s:enc:aesgcm:v1:b:"))
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	b := newBed(t)
	_, err := New(b.config(false))
	require.ErrorContains(t, err, "no such file")
	b.write("")
	_, err = New(b.config(false))
	require.ErrorContains(t, err, "empty")
	b.write(strings.Repeat("#", maxFileBytes+1))
	_, err = New(b.config(false))
	require.ErrorContains(t, err, "larger than")
	b.write(configured("secrets", keys("aescbc", "a"), identity))
	k, _ := b.keeper(true)
	require.ErrorContains(t, k.Rotate(quiet), "changed by hand")
}

package encryption

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/state/store"
)

func (b *bed) fill(n int) (want map[string]string) {
	want = map[string]string{}
	for i := range n {
		key := fmt.Sprintf("/registry/secrets/default/s-%03d", i)
		want[key] = fmt.Sprintf("value %d", i)
		b.create(key, want[key])
	}
	b.create(other, "visible")
	return want
}

func (b *bed) check(want map[string]string) {
	kvs, _, _, err := b.store.Range(b.t.Context(), "/registry/secrets/", "", 0, 0)
	require.NoError(b.t, err)
	got := map[string]string{}
	for _, kv := range kvs {
		require.NoError(b.t, kv.Err, kv.Key)
		got[kv.Key] = string(kv.Value)
	}
	require.Equal(b.t, want, got)
}

func (b *bed) counts(k *Keeper) (all []Count) {
	s, err := k.Status(b.t.Context())
	require.NoError(b.t, err)
	return s.Counts
}

func TestTheKeyIsMadeOnceAndRotated(t *testing.T) {
	b := newBed(t)
	plainKey := "/registry/secrets/default/early"
	b.create(plainKey, "before")
	k, stop := b.keeper(true)
	info, err := os.Stat(b.file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	want := b.fill(10)
	want[plainKey] = "before"
	first := labelOf([]byte(b.stored("/registry/secrets/default/s-000")))
	require.Equal(t,
		[]Count{{Resource: "secrets", Objects: 1}, {Resource: "secrets", Label: first, Objects: 10, Current: true}},
		b.counts(k))
	stop()

	k, _ = b.keeper(true)
	b.check(want)
	var told []string
	require.NoError(t, k.Rotate(func(m string) { told = append(told, m) }))
	require.NotEmpty(t, told)
	b.check(want)
	counts := b.counts(k)
	require.Len(t, counts, 1)
	require.Equal(t, 11, counts[0].Objects)
	require.NotEqual(t, first, counts[0].Label)
	data, err := os.ReadFile(b.file)
	require.NoError(t, err)
	require.NotContains(t, string(data), first.Key)
	kept, err := b.store.Revision(t.Context())
	require.NoError(t, err)
	_, begin, err := b.store.History(t.Context(), "/registry/", 0, kept, 1<<20)
	require.NoError(t, err)
	require.Equal(t, kept, begin, "the history of the earlier key is dropped")
}

// After an interruption at any step, the next process can read all values, and the next rotation ends with one key.
func TestRotationEndsAnywhere(t *testing.T) {
	for _, step := range []struct {
		name string
		nth  int64
	}{{
		"checked", 1,
	}, {"written", 1}, {"added", 1}, {"object", 1}, {"object", 7}, {"object", 12}, {"pass", 1}, {"rewritten", 1},
		{"checked", 2}, {"written", 2}, {"dropped", 1}} {
		t.Run(fmt.Sprint(step.name, step.nth), func(t *testing.T) {
			b := newBed(t)
			early := "/registry/secrets/default/early"
			b.create(early, "before")
			k, stop := b.keeper(true)
			want := b.fill(12)
			want[early] = "before"
			killed := errors.New("killed")
			var reached atomic.Int64
			k.at = func(name string) error {
				if name == step.name && reached.Add(1) >= step.nth {
					return killed
				}
				return nil
			}
			require.ErrorIs(t, k.Rotate(quiet), killed)
			stop()

			k, _ = b.keeper(true)
			c, err := ours(k.data)
			require.NoError(t, err)
			require.Equal(t, unfinished(c), len(k.Warnings()) == 1, "it is said that a rotation is not finished")
			b.check(want)
			b.create("/registry/secrets/default/late", "after")
			want["/registry/secrets/default/late"] = "after"
			require.NoError(t, k.Rotate(quiet))
			b.check(want)
			counts := b.counts(k)
			require.Len(t, counts, 1)
			require.True(t, counts[0].Current)
			c, err = ours(k.data)
			require.NoError(t, err)
			require.False(t, unfinished(c))
		})
	}
}

// Writes concurrent to a rotation are not lost, and end up encrypted with the last key.
func TestRotationAmongWriters(t *testing.T) {
	b := newBed(t)
	k, _ := b.keeper(true)
	want := b.fill(50)
	counters := make([]int64, 8)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range counters {
		key := fmt.Sprintf("/registry/secrets/default/counter-%d", w)
		b.create(key, "0")
		for range 2 { // two per counter, so that they race too
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					kv, err := b.store.Get(t.Context(), key)
					if err != nil {
						t.Error(err)
						return
					}
					n, _ := strconv.Atoi(string(kv.Value))
					switch _, err := b.store.Update(t.Context(), key, []byte(strconv.Itoa(n+1)), kv.Revision, 0); {
					case err == nil:
						atomic.AddInt64(&counters[w], 1)
					case !errors.Is(err, store.ErrConflict):
						t.Error(err)
						return
					}
				}
			})
		}
	}
	for range 3 {
		require.NoError(t, k.Rotate(quiet))
	}
	close(stop)
	wg.Wait()
	for w, n := range counters {
		want[fmt.Sprintf("/registry/secrets/default/counter-%d", w)] = strconv.FormatInt(n, 10)
	}
	b.check(want)
	require.Len(t, b.counts(k), 1)
}

// Re-encryption does not extend a TTL.
func TestReencryptionKeepsTheTimeToLive(t *testing.T) {
	b := newBed(t)
	rev, err := b.store.Create(t.Context(), one, []byte(plain), 10*time.Second) // outlasts the re-encryption
	require.NoError(t, err)
	k, _ := b.keeper(true)
	require.NoError(t, k.Reencrypt(quiet))
	require.NotEqual(t, plain, b.stored(one))
	batches, _ := b.store.Watch(t.Context(), one, rev)
	for batch := range batches {
		for _, ev := range batch.Events {
			if ev.Deleted {
				return
			}
		}
	}
	t.Fatal("the watch ended")
}

func TestEncryptionIsTurnedOff(t *testing.T) {
	b := newBed(t)
	k, stop := b.keeper(true)
	want := b.fill(5)
	require.NoError(t, k.Enable(false, quiet))
	b.create(one, plain)
	want[one] = plain
	require.Equal(t, plain, b.stored(one))
	require.ErrorContains(t, k.Rotate(quiet), "disabled")
	b.check(want)
	require.NoError(t, k.Reencrypt(quiet))
	require.Equal(t, []Count{{Resource: "secrets", Objects: 6, Current: true}}, b.counts(k))
	stop()

	bare := NewValues(kinds) // a process without the option
	kvs, _, _, err := b.store.Stored(t.Context(), "/registry/", "", 0, 0)
	require.NoError(t, err)
	for _, kv := range kvs {
		_, err := bare.Open(kv.Key, kv.Value)
		require.NoError(t, err)
	}
	k, stop = b.keeper(true)
	require.NoError(t, k.Enable(true, quiet))
	require.NoError(t, k.Reencrypt(quiet))
	require.True(t, strings.HasPrefix(b.stored(one), "k8s:enc:secretbox:v1:"))
	stop()
}

// A value that cannot be read is not changed, is named, and prevents the removal of the earlier keys.
func TestRotationKeepsTheKeysOfWhatItCannotRead(t *testing.T) {
	b := newBed(t)
	k, _ := b.keeper(true)
	want := b.fill(3)
	label := labelOf([]byte(b.stored("/registry/secrets/default/s-000")))
	b.damage(one, "k8s:enc:secretbox:v1:"+label.Key+":garbage")
	err := k.Rotate(quiet)
	require.ErrorContains(t, err, one)
	require.ErrorContains(t, err, "keeping the earlier keys")
	data, readErr := os.ReadFile(b.file)
	require.NoError(t, readErr)
	require.Contains(t, string(data), label.Key)
	var unreadable int
	for _, c := range b.counts(k) {
		unreadable += c.Unreadable
	}
	require.Equal(t, 1, unreadable)
	kv, _, _, err := b.store.Stored(t.Context(), one, "", 1, 0)
	require.NoError(t, err)
	_, err = b.store.Delete(t.Context(), one, kv[0].Revision)
	require.NoError(t, err)
	require.NoError(t, k.Rotate(quiet))
	b.check(want)
}

func (b *bed) damage(key, stored string) {
	now := b.values.current.Load()
	alone, err := load([]byte(configured("configmaps", identity)))
	require.NoError(b.t, err)
	b.values.use(alone)
	b.create(key, stored)
	b.values.current.Store(now)
}

func TestOneOperationAtATime(t *testing.T) {
	b := newBed(t)
	k, stop := b.keeper(true)
	b.create(one, plain)
	inside, leave := make(chan struct{}), make(chan struct{})
	k.at = func(name string) error {
		if name == "added" {
			close(inside)
			<-leave
		}
		return nil
	}
	done := make(chan error)
	go func() { done <- k.Rotate(quiet) }()
	<-inside
	require.ErrorIs(t, k.Reencrypt(quiet), errBusy)
	close(leave)
	require.NoError(t, <-done)
	stop()
	require.ErrorContains(t, k.Reencrypt(quiet), "stopping")
	off, err := New(Config{Values: NewValues(kinds), Store: b.store, Logger: b.log})
	require.NoError(t, err)
	require.ErrorIs(t, off.Reencrypt(quiet), errOff)
}

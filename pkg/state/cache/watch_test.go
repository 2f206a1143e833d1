package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// loaded returns a cache over a fakeSource; the test applies batches.
func loaded(t *testing.T, cfg Config) (*Cache, *fakeSource) {
	m := newMemory()
	cfg.Kinds, cfg.Source, cfg.Logger, cfg.CheckImmutable = kind.NewCatalog(testTable), m, slog.New(slog.DiscardHandler),
		true
	c, err := New(cfg)
	require.NoError(t, err)
	require.NoError(t, c.load(t.Context()))
	return c, m
}

func (m *fakeSource) apply(t *testing.T, c *Cache, name string, deleted bool) {
	ch := m.write(t, pod("a", name), deleted)
	c.applyBatch(kind.Batch{Events: []kind.Change{ch}, Revision: m.rev})
}

func TestRingExpires(t *testing.T) {
	c, m := loaded(t, Config{RingSize: 16})
	slow, _, rev, err := c.Watch(pods, Query{}, -1)
	require.NoError(t, err)
	for i := range 16 {
		m.apply(t, c, fmt.Sprint(i), false)
	}
	_, _, _, err = c.Watch(pods, Query{}, rev)
	require.NoError(t, err)
	m.apply(t, c, "one too many", false)
	_, err = slow.Next(t.Context())
	require.ErrorIs(t, err, ErrExpired)
	_, _, _, err = c.Watch(pods, Query{}, rev)
	require.ErrorIs(t, err, ErrExpired)
	_, _, _, err = c.Watch(nodes, Query{}, rev)
	require.NoError(t, err, "another kind's changes do not count")
	w, _, _, err := c.Watch(pods, Query{}, rev+1)
	require.NoError(t, err)
	events, err := w.Next(t.Context())
	require.NoError(t, err)
	require.Len(t, events, 16)
}

func TestWatchBeforeTheFirstRead(t *testing.T) {
	c, err := New(Config{Kinds: kind.NewCatalog(testTable), Source: newMemory()})
	require.NoError(t, err)
	_, _, _, err = c.Watch(pods, Query{}, -1)
	require.ErrorIs(t, err, ErrExpired)
	_, _, _, err = c.Watch(&kind.Resource{}, Query{}, -1)
	require.ErrorIs(t, err, ErrUnknownKind)
}

// A watcher may start at a revision that the cache has not reached.
func TestWatchFromTheFuture(t *testing.T) {
	c, m := loaded(t, Config{})
	w, _, _, err := c.Watch(pods, Query{}, m.rev+1)
	require.NoError(t, err)
	m.apply(t, c, "skipped", false)
	m.apply(t, c, "new", false)
	events, err := w.Next(t.Context())
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.Equal(t, "new", events[0].Entry.Object.GetName())
}

func TestNextEnds(t *testing.T) {
	c, _ := loaded(t, Config{})
	w, _, _, err := c.Watch(pods, Query{}, -1)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.Next(ctx)
	require.ErrorIs(t, err, context.Canceled)
	w.Close()
	w.Close()
	_, err = w.Next(t.Context())
	require.ErrorIs(t, err, ErrStopped)
}

func TestUndecodableIsLeftOut(t *testing.T) {
	c, m := loaded(t, Config{})
	m.apply(t, c, "x", false)
	w, _, _, err := c.Watch(pods, Query{}, -1)
	require.NoError(t, err)
	m.rev++
	c.applyBatch(kind.Batch{
		Events:   []kind.Change{{KV: kind.KV{Key: pods.Key("a", "x"), Value: []byte("k8s\x00junk"), Revision: m.rev}}},
		Revision: m.rev,
	})
	require.Nil(t, c.Get(pods, "a", "x"))
	events, err := w.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, "DELETED", events[0].Type)
	// Keys of kinds that are not served are ignored.
	m.rev++
	c.applyBatch(kind.Batch{
		Events:   []kind.Change{{KV: kind.KV{Key: "/registry/other.io/things/x", Value: []byte("?"), Revision: m.rev}}},
		Revision: m.rev,
	})
	require.Equal(t, m.rev, c.Revision())
	require.Equal(t, m.rev, w.Progress())
}

func TestChangedObjectPanics(t *testing.T) {
	c, m := loaded(t, Config{})
	m.apply(t, c, "x", false)
	c.Get(pods, "a", "x").Object.SetLabels(map[string]string{"changed": "by a reader"})
	require.PanicsWithValue(t, mustContain("make a DeepCopy first"), func() {
		panicString(func() { m.apply(t, c, "x", true) })
	})
}

func mustContain(s string) string { return s }

// panicString panics again with the part of the message that matters.
func panicString(f func()) {
	defer func() {
		if s := fmt.Sprint(recover()); len(s) > 0 {
			for i := range s {
				if want := "make a DeepCopy first"; len(s)-i >= len(want) && s[i:i+len(want)] == want {
					panic(want)
				}
			}
		}
	}()
	f()
}

// When the stream ends, the cache reads everything again, and its watchers see the difference.
func TestReload(t *testing.T) {
	m := newMemory()
	gone := m.write(t, pod("a", "goes"), false)
	m.write(t, pod("a", "stays"), false)
	c, err := New(Config{Kinds: kind.NewCatalog(testTable), Source: m, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	start(t, c)
	<-m.followed // Ready is closed before the cache follows the source
	w, initial, _, err := c.Watch(pods, Query{}, -1)
	require.NoError(t, err)
	require.Len(t, initial, 2)

	delete(m.now, gone.Key)
	m.rev++
	m.write(t, pod("a", "comes"), false)
	m.end = kind.ErrCompacted
	m.mu.Lock()
	old := m.changes
	m.changes = make(chan kind.Batch)
	m.mu.Unlock()
	close(old)
	require.NoError(t, c.WaitFor(t.Context(), m.rev))
	events, err := w.Next(t.Context())
	require.NoError(t, err)
	require.Len(t, events, 2)
	require.Equal(t, "ADDED comes", events[0].Type+" "+events[0].Entry.Object.GetName())
	require.Equal(t, "DELETED goes", events[1].Type+" "+events[1].Entry.Object.GetName())
}

// A source that keeps failing without delivering anything ends Run instead of causing a busy loop.
func TestSourceIsGone(t *testing.T) {
	m := newMemory()
	m.end = errors.New("gone")
	close(m.changes)
	c, err := New(Config{Kinds: kind.NewCatalog(testTable), Source: m, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.ErrorContains(t, c.Run(t.Context()), "cannot follow the store: gone")
	require.ErrorIs(t, c.WaitFor(t.Context(), 100), ErrStopped)
}

func TestOldChangesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, err := New(Config{
			Kinds:   kind.NewCatalog(testTable),
			Source:  m,
			RingFor: time.Minute,
			Logger:  slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		c.collections = func(func()) (stop func()) { return func() {} }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		<-c.Ready()
		from := c.Revision()
		for i := range 100 {
			ch := m.write(t, pod("a", fmt.Sprint(i)), false)
			m.changes <- kind.Batch{Events: []kind.Change{ch}, Revision: m.rev}
		}
		synctest.Wait()
		_, _, _, err = c.Watch(pods, Query{}, from)
		require.NoError(t, err)
		time.Sleep(2 * time.Minute) // fake time
		synctest.Wait()
		_, _, _, err = c.Watch(pods, Query{}, from)
		require.ErrorIs(t, err, ErrExpired)
		_, _, _, err = c.Watch(pods, Query{}, m.rev)
		require.NoError(t, err)
		require.Nil(t, c.kindCache(pods).ring.slots)
		cancel()
		require.NoError(t, <-done)
	})
}

func TestWaitFor(t *testing.T) {
	c, m := loaded(t, Config{})
	from := m.rev
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			rev := from + int64(i%10)
			if err := c.WaitFor(t.Context(), rev); err != nil || c.Revision() < rev {
				t.Errorf("waited for %d: %v, now %d", rev, err, c.Revision())
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		if err := c.WaitFor(ctx, from+1000); !errors.Is(err, context.Canceled) {
			t.Errorf("waited for what never comes: %v", err)
		}
	})
	for i := range 10 {
		m.apply(t, c, fmt.Sprint(i), false)
	}
	cancel()
	wg.Wait()
	require.Empty(t, c.waiters.heap)
}

// Many watchers, readers and a writer at once. With -race this also proves that snapshots share no mutable state with
// the cache.
func TestConcurrent(t *testing.T) {
	c, m := loaded(t, Config{})
	const changes = 300
	last := m.rev + changes
	var wg sync.WaitGroup
	for i := range 20 {
		w, _, _, err := c.Watch(pods, Query{Fields: fields.ParseSelectorOrDie(fmt.Sprintf("metadata.name=%d", i%5))}, -1)
		require.NoError(t, err)
		wg.Go(func() {
			defer w.Close()
			n := 0
			for n < changes/5 {
				events, err := w.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				n += len(events)
			}
		})
		wg.Go(func() {
			var seen int64
			for seen < last {
				entries, rev := c.List(pods, Query{})
				if rev < seen {
					t.Errorf("went back from %d to %d", seen, rev)
				}
				seen = rev
				for _, e := range entries {
					if e.Revision > rev {
						t.Errorf("a list at %d has an object of %d", rev, e.Revision)
					}
					_, _ = e.JSON(), e.Proto()
				}
			}
		})
	}
	for i := range changes {
		m.apply(t, c, fmt.Sprint(i%5), i/5%3 == 2)
	}
	wg.Wait()
}

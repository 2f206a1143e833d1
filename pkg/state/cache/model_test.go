package cache

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sort"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// fakeSource is an in-memory Source with its whole history, driven by the test.
type fakeSource struct {
	now map[string]kind.KV
	rev int64
	end error
	// log has the changes after revision compacted, with previous values.
	log       []kind.Change
	compacted int64
	asked     int // calls of History

	mu       sync.Mutex
	changes  chan kind.Batch
	followed chan struct{} // receives an item when Changes is called
}

func newMemory() *fakeSource {
	return &fakeSource{now: map[string]kind.KV{}, rev: 1, changes: make(chan kind.Batch), followed: make(chan struct{}, 1)}
}

func (m *fakeSource) Page(_ context.Context, prefix, from string,
	limit, rev int64) (_ []kind.KV, at int64, more bool, _ error) {
	if rev != 0 && rev != m.rev {
		return nil, 0, false, kind.ErrCompacted
	}
	var kvs []kind.KV
	for k, kv := range m.now {
		if k >= from && k >= prefix {
			kvs = append(kvs, kv)
		}
	}
	sort.Slice(kvs, func(i, j int) bool { return kvs[i].Key < kvs[j].Key })
	if more = int64(len(kvs)) > limit; more {
		kvs = kvs[:limit]
	}
	return kvs, m.rev, more, nil
}

func (m *fakeSource) Changes(context.Context, string, int64) (<-chan kind.Batch, func() error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case m.followed <- struct{}{}:
	default:
	}
	return m.changes, func() error { return m.end }
}

func (m *fakeSource) History(_ context.Context, _ string,
	after, to, limit int64) (changes []kind.Change, begin int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	begin = max(after, m.compacted)
	for _, ch := range m.log {
		if ch.Revision > begin && ch.Revision <= to {
			changes = append(changes, ch)
		}
	}
	return changes, begin, nil
}

func (m *fakeSource) write(t require.TestingT, p *corev1.Pod, deleted bool) (made kind.Change) {
	m.rev++
	key := pods.Key(p.Namespace, p.Name)
	prev := m.now[key]
	defer func() {
		logged := made
		logged.Prev = prev
		m.log = append(m.log, logged)
	}()
	if deleted {
		delete(m.now, key)
		return kind.Change{KV: kind.KV{Key: key, Revision: m.rev}, Deleted: true}
	}
	b, err := pods.Encode(p)
	require.NoError(t, err)
	m.now[key] = kind.KV{Key: key, Value: b, Revision: m.rev}
	return kind.Change{KV: m.now[key]}
}

// view is what a reader with a selector sees: key -> resourceVersion.
type view map[string]string

func viewOf(entries []*Entry) view {
	v := view{}
	for _, e := range entries {
		v[e.Key] = e.Object.GetResourceVersion()
	}
	return v
}

var queries = []Query{
	{},
	{Namespace: "a"},
	{Labels: labels.SelectorFromSet(labels.Set{"app": "x"})},
	{Fields: fields.ParseSelectorOrDie("spec.nodeName=n1")},
	{Fields: fields.ParseSelectorOrDie("status.phase!=Failed")},
	{Fields: fields.ParseSelectorOrDie("metadata.name=p1")},
	{
		Namespace: "b", Labels: labels.SelectorFromSet(labels.Set{"app": "y"}),
		Fields: fields.ParseSelectorOrDie("spec.nodeName=n2"),
	},
}

// slow computes a query's answer from the selectors alone.
func slow(t require.TestingT, m *fakeSource, q Query) view {
	v := view{}
	for key, kv := range m.now {
		obj, err := pods.Decode(kv.Value, kv.Revision)
		require.NoError(t, err)
		if (q.Namespace == "" || q.Namespace == obj.GetNamespace()) &&
			(q.Labels == nil || q.Labels.Matches(labels.Set(obj.GetLabels()))) &&
			(q.Fields == nil || q.Fields.Matches(pods.Fields(obj))) {
			v[key] = strconv.FormatInt(kv.Revision, 10)
		}
	}
	return v
}

// For any writes, batches and lost streams: reads return the store's state, and a watch from any retained revision
// turns the state at that revision into the current one.
func TestCacheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMemory()
		c, err := New(Config{
			Kinds:          kind.NewCatalog(testTable),
			Source:         m,
			RingSize:       64,
			CheckImmutable: true,
			Logger:         slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		require.NoError(t, c.AddIndex(pods, "app", func(o client.Object) []string { return []string{o.GetLabels()["app"]} }))
		type past struct {
			rev   int64
			views []view     // by query, at rev
			live  []*Watcher // opened at rev, and read at every step
			now   []view     // views with the events of live applied
		}
		var pasts []past
		remember := func() {
			p := past{rev: c.Revision()}
			for _, q := range queries {
				w, entries, rev, err := c.Watch(pods, q, -1)
				require.NoError(t, err)
				require.Equal(t, p.rev, rev)
				p.live = append(p.live, w)
				p.views = append(p.views, viewOf(entries))
				p.now = append(p.now, viewOf(entries))
			}
			pasts = append(pasts[max(0, len(pasts)-7):], p)
		}
		require.NoError(t, c.load(context.Background()))
		remember()
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				n := rapid.IntRange(1, 5).Draw(t, "changes")
				var b kind.Batch
				for range n {
					p := pod(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "ns"),
						rapid.SampledFrom([]string{"p1", "p2", "p3"}).Draw(t, "name"))
					was, there := m.now[pods.Key(p.Namespace, p.Name)]
					p.UID = types.UID(fmt.Sprint(m.rev))
					if there {
						old, err := pods.Decode(was.Value, was.Revision)
						require.NoError(t, err)
						p.UID = old.GetUID()
					}
					deleted := there && rapid.Bool().Draw(t, "delete")
					p.Labels = map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "app")}
					p.Spec.NodeName = rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node")
					p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{"Running", "Failed"}).Draw(t, "phase")
					b.Events = append(b.Events, m.write(t, p, deleted))
				}
				if rapid.IntRange(0, 5).Draw(t, "lost") == 0 {
					require.NoError(t, c.load(context.Background()))
				} else {
					b.Revision = m.rev
					c.applyBatch(b)
				}
				remember()
			},
			"": func(t *rapid.T) {
				require.Equal(t, m.rev, c.Revision())
				for i, q := range queries {
					want := slow(t, m, q)
					entries, rev := c.List(pods, q)
					require.Equal(t, m.rev, rev)
					require.Equal(t, want, viewOf(entries))
					require.True(t, sort.SliceIsSorted(entries, func(i, j int) bool { return entries[i].Key < entries[j].Key }))
					for _, p := range pasts {
						replay, _, _, err := c.Watch(pods, q, p.rev)
						if p.rev < c.kindCache(pods).ring.floor {
							require.ErrorIs(t, err, ErrExpired)
						} else {
							require.NoError(t, err)
							require.Equal(t, want, replayed(t, replay, maps.Clone(p.views[i])), "since revision %d", p.rev)
							require.Equal(t, m.rev, replay.Progress())
						}
						require.Equal(t, want, replayed(t, p.live[i], p.now[i]), "a watcher open since revision %d", p.rev)
					}
				}
				for _, app := range []string{"x", "y"} {
					got, _, err := c.ByIndex(pods, "app", app)
					require.NoError(t, err)
					require.Equal(t, slow(t, m, Query{Labels: labels.SelectorFromSet(labels.Set{"app": app})}), viewOf(got))
				}
			},
		})
		c.verify()
	})
}

// A watch resumes after its server restarts: it misses and repeats nothing, and expires only if the history was
// compacted or exceeds the ring.
func TestModelRestart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMemory()
		ring := rapid.SampledFrom([]int{16, 64}).Draw(t, "ring")
		open := func() *Cache {
			c, err := New(Config{
				Kinds:          kind.NewCatalog(testTable),
				Source:         m,
				RingSize:       ring,
				CheckImmutable: true,
				Logger:         slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			require.NoError(t, c.load(context.Background()))
			return c
		}
		c := open()
		type past struct {
			rev   int64
			views []view
		}
		var pasts []past
		trimmed := false
		remember := func() {
			p := past{rev: c.Revision()}
			for _, q := range queries {
				entries, _ := c.List(pods, q)
				p.views = append(p.views, viewOf(entries))
			}
			pasts = append(pasts[max(0, len(pasts)-7):], p)
		}
		remember()
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				var b kind.Batch
				for range rapid.IntRange(1, 12).Draw(t, "changes") {
					p := pod(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "ns"),
						rapid.SampledFrom([]string{"p1", "p2", "p3"}).Draw(t, "name"))
					was, there := m.now[pods.Key(p.Namespace, p.Name)]
					p.UID = types.UID(fmt.Sprint(m.rev))
					if there {
						old, err := pods.Decode(was.Value, was.Revision)
						require.NoError(t, err)
						p.UID = old.GetUID()
					}
					p.Labels = map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "app")}
					p.Spec.NodeName = rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node")
					b.Events = append(b.Events, m.write(t, p, there && rapid.Bool().Draw(t, "delete")))
				}
				b.Revision = m.rev
				c.applyBatch(b)
				remember()
			},
			"restart": func(*rapid.T) { c, m.asked, trimmed = open(), 0, false },
			"compact": func(t *rapid.T) { m.compacted = max(m.compacted, m.rev-int64(rapid.IntRange(0, 30).Draw(t, "kept"))) },
			"trim":    func(*rapid.T) { c.trim(time.Now().Add(time.Hour)); trimmed = true },
			"watch": func(t *rapid.T) {
				p := rapid.SampledFrom(pasts).Draw(t, "past")
				for i, q := range queries {
					want := slow(t, m, q)
					w, _, _, err := c.Watch(pods, q, p.rev)
					if err == nil {
						require.Equal(t, want, replayed(t, w, maps.Clone(p.views[i])), "since revision %d", p.rev)
						w.Close()
						continue
					}
					require.ErrorIs(t, err, ErrExpired)
					require.True(t, trimmed || p.rev < m.compacted || m.rev-p.rev > int64(ring), "revision %d of %d is held", p.rev,
						m.rev)
				}
				require.LessOrEqual(t, m.asked, 1)
			},
		})
	})
}

func replayed(t require.TestingT, w *Watcher, v view) view {
	last := w.after
	for {
		more, err := w.read()
		require.NoError(t, err)
		for _, ev := range w.events {
			require.GreaterOrEqual(t, ev.Rev, last)
			last = ev.Rev
			require.Equal(t, strconv.FormatInt(ev.Rev, 10), ev.Entry.Object.GetResourceVersion())
			_, there := v[ev.Entry.Key]
			require.Equal(t, ev.Type != "ADDED", there, "%s %s", ev.Type, ev.Entry.Key)
			if ev.Type == "DELETED" {
				delete(v, ev.Entry.Key)
			} else {
				v[ev.Entry.Key] = ev.Entry.Object.GetResourceVersion()
			}
		}
		if !more && len(w.events) == 0 {
			return v
		}
	}
}

// For any delay of a follower and any burst: its events turn the state it last saw into the current one, each with the
// object's previous state that it last saw.
func TestFollowersMissNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMemory()
		c, err := New(Config{
			Kinds:          kind.NewCatalog(testTable),
			Source:         m,
			RingSize:       16,
			CheckImmutable: true,
			Logger:         slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		require.NoError(t, c.load(context.Background()))
		w, initial, err := c.Follow(pods)
		require.NoError(t, err)
		require.Empty(t, initial)
		reported := map[string]*Entry{}
		name := rapid.SampledFrom([]string{"p1", "p2", "p3", "p4"})
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				var b kind.Batch
				for range rapid.IntRange(1, 40).Draw(t, "changes") {
					p := pod("a", name.Draw(t, "name"))
					was, there := m.now[pods.Key(p.Namespace, p.Name)]
					p.UID = types.UID(fmt.Sprint(m.rev))
					if there {
						old, err := pods.Decode(was.Value, was.Revision)
						require.NoError(t, err)
						p.UID = old.GetUID()
					}
					b.Events = append(b.Events, m.write(t, p, there && rapid.Bool().Draw(t, "delete")))
				}
				b.Revision = m.rev
				c.applyBatch(b)
			},
			"trim": func(*rapid.T) { c.trim(time.Now().Add(time.Hour)) },
			"read": func(t *rapid.T) {
				for more := true; more; {
					var err error
					more, err = w.read()
					require.NoError(t, err)
					for _, e := range w.events {
						was := reported[e.Entry.Key]
						switch e.Type {
						case "ADDED":
							require.Nil(t, was)
							reported[e.Entry.Key] = e.Entry
						case "MODIFIED":
							require.Same(t, was, e.Prev)
							require.Equal(t, was.Object.GetUID(), e.Entry.Object.GetUID())
							reported[e.Entry.Key] = e.Entry
						case "DELETED":
							require.NotNil(t, was)
							require.Equal(t, was.Object.GetUID(), e.Entry.Object.GetUID())
							delete(reported, e.Entry.Key)
						}
					}
				}
				now := view{}
				for key, e := range reported {
					now[key] = e.Object.GetResourceVersion()
				}
				require.Equal(t, slow(t, m, Query{}), now)
				require.Equal(t, m.rev, w.Progress())
			},
		})
		w.Close()
		require.Empty(t, c.kindCache(pods).ring.followers)
	})
}

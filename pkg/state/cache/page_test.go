package cache

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// inPages lists at a revision (0: now) page by page, and calls between after each. It returns nil if the cache no
// longer has a page.
func inPages(t require.TestingT, c *Cache, q Query, limit, rev int64, between func()) (view, int64) {
	v := view{}
	var keys []string
	remaining := int64(-1)
	for from := ""; ; {
		p, ok := c.Page(pods, q, from, limit, rev)
		if !ok {
			require.NotZero(t, rev)
			return nil, rev
		}
		if rev != 0 {
			require.Equal(t, rev, p.Revision)
		}
		rev = p.Revision
		for _, e := range p.Entries {
			v[e.Key] = e.Object.GetResourceVersion()
			keys = append(keys, e.Key)
		}
		if remaining >= 0 {
			require.EqualValues(t, remaining, int64(len(p.Entries))+max(p.Remaining, 0))
		}
		require.True(t, slices.IsSorted(keys))
		if !p.More {
			return v, rev
		}
		require.Len(t, p.Entries, int(limit))
		remaining = p.Remaining
		from = p.Entries[len(p.Entries)-1].Key + "\x00"
		between()
	}
}

// For any writes and lost streams between pages: all pages show the state of the list's revision, or the cache reports
// that it no longer has it.
func TestPagesModel(t *testing.T) {
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
		require.NoError(t, c.load(t.Context()))
		states := map[int64][]view{}
		remember := func() {
			for _, q := range queries {
				states[c.Revision()] = append(states[c.Revision()], slow(t, m, q))
			}
		}
		remember()
		write := func(t *rapid.T) {
			var b kind.Batch
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				p := pod(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "ns"),
					rapid.SampledFrom([]string{"p1", "p2", "p3"}).Draw(t, "name"))
				_, there := m.now[pods.Key(p.Namespace, p.Name)]
				p.UID = types.UID(p.Namespace + p.Name)
				p.Labels = map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "app")}
				p.Spec.NodeName = rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node")
				p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{"Running", "Failed"}).Draw(t, "phase")
				b.Events = append(b.Events, m.write(t, p, there && rapid.Bool().Draw(t, "delete")))
			}
			if len(b.Events) == 0 {
				m.rev++ // a write to another kind
			}
			if b.Revision = m.rev; rapid.IntRange(0, 8).Draw(t, "lost") == 0 {
				require.NoError(t, c.load(context.Background()))
			} else {
				c.applyBatch(b)
			}
			remember()
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": write,
			"trim":  func(*rapid.T) { c.trim(time.Now().Add(time.Hour)) },
			"list": func(t *rapid.T) {
				i := rapid.IntRange(0, len(queries)-1).Draw(t, "query")
				got, rev := inPages(t, c, queries[i], int64(rapid.IntRange(1, 3).Draw(t, "limit")), 0, func() {
					if rapid.Bool().Draw(t, "meanwhile") {
						write(t)
					}
				})
				if got != nil {
					require.Equal(t, states[rev][i], got, "at revision %d", rev)
				}
			},
			"past": func(t *rapid.T) {
				i := rapid.IntRange(0, len(queries)-1).Draw(t, "query")
				rev := rapid.SampledFrom(slices.Sorted(maps.Keys(states))).Draw(t, "revision")
				if got, _ := inPages(t, c, queries[i], 2, rev, func() {}); got != nil {
					require.Equal(t, states[rev][i], got, "at revision %d", rev)
				}
				if rev == c.Revision() {
					got, _ := inPages(t, c, queries[i], 2, rev, func() {})
					require.NotNil(t, got, "the present state is there")
				}
			},
		})
	})
}

// A list in pages survives changes until the ring drops them. Then no old snapshot is kept.
func TestPagesOutliveChanges(t *testing.T) {
	m := newMemory()
	for i := range 10 {
		m.write(t, pod("a", fmt.Sprintf("p%d", i)), false)
	}
	c, err := New(Config{Kinds: kind.NewCatalog(testTable), Source: m, RingSize: 16})
	require.NoError(t, err)
	require.NoError(t, c.load(t.Context()))
	first, ok := c.Page(pods, Query{}, "", 4, 0)
	require.True(t, ok)
	require.EqualValues(t, 6, first.Remaining)
	after := first.Entries[3].Key + "\x00"
	for i := range 16 {
		m.apply(t, c, "p9", i == 15)
		next, ok := c.Page(pods, Query{}, after, 100, first.Revision)
		require.True(t, ok, "after %d changes", i+1)
		require.Len(t, next.Entries, 6)
		require.Equal(t, "11", next.Entries[5].Object.GetResourceVersion())
	}
	m.apply(t, c, "p9", false)
	_, ok = c.Page(pods, Query{}, after, 100, first.Revision)
	require.False(t, ok)
	require.Empty(t, c.kindCache(pods).pinned)

	// Abandoned lists keep a bounded number of snapshots.
	for range 3 * mostPinned {
		_, ok = c.Page(pods, Query{}, "", 1, 0)
		require.True(t, ok)
		m.apply(t, c, "p0", false)
		require.LessOrEqual(t, len(c.kindCache(pods).pinned), mostPinned)
	}
	require.NotEmpty(t, c.kindCache(pods).pinned)
	c.trim(time.Now().Add(time.Hour))
	require.Empty(t, c.kindCache(pods).pinned)
}

// A short list takes memory for its result, not for all objects of the kind, also while its response is written.
func TestPagesAreAsLargeAsWhatTheyReturn(t *testing.T) {
	m := newMemory()
	for i := range 1000 {
		m.write(t, pod("many", fmt.Sprintf("p%d", i)), false)
	}
	m.write(t, pod("few", "p", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "x"} }), false)
	c, err := New(Config{Kinds: kind.NewCatalog(testTable), Source: m})
	require.NoError(t, err)
	require.NoError(t, c.load(t.Context()))
	for name, q := range map[string]Query{
		"namespace": {Namespace: "few"},
		"labels":    {Labels: labels.SelectorFromSet(labels.Set{"app": "x"})},
		"fields":    {Fields: fields.OneTermEqualSelector("metadata.namespace", "few")},
	} {
		p, ok := c.Page(pods, q, "", 0, 0)
		require.True(t, ok)
		require.Len(t, p.Entries, 1)
		require.LessOrEqual(t, cap(p.Entries), 16, name)
	}
}

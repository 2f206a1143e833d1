package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Changes from before a restart can be read, with previous values.
func TestHistoryOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	s, stop := open(t, Config{Dir: dir})
	ctx := t.Context()
	start, err := s.Revision(ctx)
	require.NoError(t, err)
	created, err := s.Create(ctx, "/registry/a", []byte("one"), 0)
	require.NoError(t, err)
	_, err = s.Create(ctx, "/elsewhere/b", []byte("other"), 0)
	require.NoError(t, err)
	updated, err := s.Update(ctx, "/registry/a", []byte("two"), created, 0)
	require.NoError(t, err)
	deleted, err := s.Delete(ctx, "/registry/a", updated)
	require.NoError(t, err)
	stop()

	s, _ = open(t, Config{Dir: dir})
	later, err := s.Create(ctx, "/registry/c", []byte("later"), 0)
	require.NoError(t, err)
	one, two := KV{Key: "/registry/a", Value: []byte("one"), Revision: created}, KV{
		Key:      "/registry/a",
		Value:    []byte("two"),
		Revision: updated,
	}
	all := []Event{
		{KV: one}, {KV: two, Prev: one}, {KV: KV{Key: "/registry/a", Revision: deleted}, Prev: two, Deleted: true},
	}
	events, begin, err := s.History(ctx, "/registry/", start, deleted, 1<<20)
	require.NoError(t, err)
	require.Equal(t, start, begin)
	require.Equal(t, all, events, "not what came later, at %d", later)

	events, begin, err = s.History(ctx, "/registry/", start, deleted, 6)
	require.NoError(t, err)
	require.Equal(t, updated, begin)
	require.Equal(t, all[2:], events, "the latest that fit")

	require.NoError(t, s.Compact(ctx, updated))
	events, begin, err = s.History(ctx, "/registry/", start, deleted, 1<<20)
	require.NoError(t, err)
	require.Equal(t, updated, begin)
	require.Equal(t, all[2:], events, "the value before a deletion is held as long as the deletion is")

	events, begin, err = s.History(ctx, "/registry/", later, later, 1<<20)
	require.NoError(t, err)
	require.Equal(t, later, begin)
	require.Empty(t, events)
}

// More history than etcd sends in one response is complete.
func TestLongHistory(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir()})
	start, err := s.Revision(t.Context())
	require.NoError(t, err)
	var rev int64
	for i := range 3 * batchEvents {
		rev, err = s.Create(t.Context(), fmt.Sprintf("/registry/%d", i), []byte("x"), 0)
		require.NoError(t, err)
	}
	events, begin, err := s.History(t.Context(), "/registry/", start, rev, 1<<20)
	require.NoError(t, err)
	require.Equal(t, start, begin)
	require.Len(t, events, 3*batchEvents)
	for i, ev := range events {
		require.Equal(t, start+int64(i)+1, ev.Revision)
	}
}

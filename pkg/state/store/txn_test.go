package store

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTransactionsAreWholeOrNotAtAll(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir()})
	ctx := t.Context()
	at, err := s.Create(ctx, "/registry/a", []byte("a"), 0)
	require.NoError(t, err)
	put := func(key string, rev int64) Op { return Op{Key: key, Value: []byte("new"), Revision: rev} }
	for name, c := range map[string]struct {
		ops   []Op
		index int
		err   error
	}{
		"the key is there":  {[]Op{put("/registry/b", 0), put("/registry/a", 0)}, 1, ErrExists},
		"another revision":  {[]Op{put("/registry/b", 0), put("/registry/a", at+1)}, 1, ErrConflict},
		"update of nothing": {[]Op{put("/registry/a", at), put("/registry/b", 7)}, 1, ErrNotFound},
		"removal of nothing": {
			[]Op{{Action: Remove, Key: "/registry/b", Revision: 7}, put("/registry/a", at)}, 0, ErrNotFound,
		},
		"check of another": {
			[]Op{put("/registry/b", 0), {Action: Check, Key: "/registry/a", Revision: at - 1}}, 1, ErrConflict,
		},
		"check for nothing":      {[]Op{put("/registry/b", 0), {Action: Check, Key: "/registry/a"}}, 1, ErrExists},
		"the first of several":   {[]Op{put("/registry/b", 0), put("/registry/a", 0), put("/registry/c", 5)}, 1, ErrExists},
		"no operations":          {nil, 0, ErrTooLarge},
		"more than are accepted": {make([]Op, MaxOps+1), 0, ErrTooLarge},
		"a value too large": {
			[]Op{put("/registry/b", 0), {Key: "/registry/c", Value: make([]byte, MaxValueBytes+1)}}, 0, ErrTooLarge,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, index, err := s.Txn(ctx, c.ops...)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.index, index)
			kvs, _, _, err := s.Range(ctx, "/registry/", "", 0, 0)
			require.NoError(t, err)
			require.Len(t, kvs, 1)
			require.Equal(t, "a", string(kvs[0].Value))
		})
	}
	_, _, err = s.Txn(ctx, put("/registry/b", 0), put("/registry/b", 0))
	require.ErrorContains(t, err, "occurs twice")

	rev, _, err := s.Txn(ctx, put("/registry/b", 0), Op{Key: "/registry/c", Value: []byte("c"), TTL: time.Hour},
		Op{Action: Remove, Key: "/registry/a", Revision: at}, Op{Action: Check, Key: "/registry/d"})
	require.NoError(t, err)
	kvs, _, _, err := s.Range(ctx, "/registry/", "", 0, 0)
	require.NoError(t, err)
	require.Equal(t,
		[]KV{
			{Key: "/registry/b", Value: []byte("new"), Revision: rev},
			{Key: "/registry/c", Value: []byte("c"), Revision: rev},
		}, kvs)

	batches, _ := s.Watch(ctx, "/registry/", rev-1)
	require.Len(t, collect(t, batches, rev), 3, "one revision")
	_, _, err = s.Txn(ctx, Op{Action: Check, Key: "/registry/b", Revision: rev})
	require.NoError(t, err)
}

func TestALargeTransaction(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir()})
	ops := make([]Op, MaxOps)
	for i := range ops {
		ops[i] = Op{Key: fmt.Sprintf("/registry/x/%d", i), Value: []byte("x")}
	}
	_, _, err := s.Txn(t.Context(), ops...)
	require.NoError(t, err)
	kvs, _, _, err := s.Range(t.Context(), "/registry/x/", "", 0, 0)
	require.NoError(t, err)
	require.Len(t, kvs, MaxOps)
}

type marked struct{}

func (marked) Seal(key string, value []byte) ([]byte, func(), error) {
	return append([]byte(key+"="), value...), func() {}, nil
}

func (marked) Open(key string, stored []byte) ([]byte, error) {
	return bytes.TrimPrefix(stored, []byte(key+"=")), nil
}

func TestTransactionsSealTheirValues(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir(), Values: marked{}})
	_, _, err := s.Txn(t.Context(), Op{Key: "/registry/a", Value: []byte("1")}, Op{Key: "/registry/b", Value: []byte("2")},
		Op{Action: Check, Key: "/registry/c"})
	require.NoError(t, err)
	for key, want := range map[string]string{"/registry/a": "1", "/registry/b": "2"} {
		kv, err := s.Get(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, want, string(kv.Value))
		kvs, _, _, err := s.Stored(t.Context(), key, "", 0, 0)
		require.NoError(t, err)
		require.Equal(t, key+"="+want, string(kvs[0].Value))
	}
}

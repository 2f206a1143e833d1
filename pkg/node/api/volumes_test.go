package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// answers returns the node's responses about a copy.
func answers(t *testing.T, run func(copied func(uint64)) (*storage.Snapshot, error)) (out []storage.CopyProgress) {
	t.Helper()
	w := httptest.NewRecorder()
	copying(w, run)
	for in := json.NewDecoder(w.Body); ; {
		var p storage.CopyProgress
		err := in.Decode(&p)
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		out = append(out, p)
	}
}

// The node reports the progress of a copy, and sends heartbeats while it is slow.
func TestProgressOfCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.Equal(t,
			[]storage.CopyProgress{{}, {}, {}, {Copied: 2 << 30}, {Done: true, Snapshot: &storage.Snapshot{Volume: "pv"}}},
			answers(t, func(copied func(uint64)) (*storage.Snapshot, error) {
				time.Sleep(2*storage.CopyHeartbeat + time.Second)
				copied(1)
				copied(2 << 30)
				return &storage.Snapshot{Volume: "pv"}, nil
			}))
	})
	busy := answers(t, func(func(uint64)) (*storage.Snapshot, error) {
		return nil, fmt.Errorf("not now: %w", volume.ErrBusy)
	})
	require.True(t, busy[1].Busy)
	require.NotEmpty(t, busy[1].Error)
	long := answers(t, func(func(uint64)) (*storage.Snapshot, error) {
		return nil, errors.New(strings.Repeat("name/\xff", 1<<16))
	})
	require.LessOrEqual(t, len(long[1].Error), storage.MaxCopyError)
	require.True(t, long[1].Done)
	require.False(t, long[1].Busy)
}

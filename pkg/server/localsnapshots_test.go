package server

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/apis/storage"
)

// TestErrorsOfNodesAreCut checks that errors of nodes are truncated: they are stored in the status of objects.
func TestErrorsOfNodesAreCut(t *testing.T) {
	long, err := json.Marshal(storage.CopyProgress{Error: "x" + strings.Repeat("\u00e9", maxCopyAnswer/4)})
	require.NoError(t, err)
	var copied []uint64
	_, err = progress(strings.NewReader(`{"copied": 1}`+string(long)), func() {}, func(n uint64) {
		copied = append(copied, n)
	})
	require.Equal(t, []uint64{1}, copied)
	require.LessOrEqual(t, len(err.Error()), maxNodeError)
	require.True(t, utf8.ValidString(err.Error()), "without half a character")
	require.ErrorContains(t, err, "...")
	heard := 0
	_, err = progress(strings.NewReader(`{} {} {"error": "later", "busy": true, "done": true}`), func() {
		heard++
	}, func(uint64) {})
	require.ErrorIs(t, err, storage.ErrBusy)
	require.Equal(t, 3, heard)
	_, err = progress(strings.NewReader(strings.Repeat(`{"copied": 1}`, maxCopyAnswer)), func() {}, func(uint64) {})
	require.ErrorContains(t, err, "ended early")
}

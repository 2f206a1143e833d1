package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLogIsBounded checks that the log stays within its limit while the process runs, that it has the newest lines,
// and that one other file has the lines before.
func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), logFile)
	f, err := openLog(path)
	require.NoError(t, err)
	defer f.Close()
	w, ok := boundedLog(f, path).(*limitedLog)
	require.True(t, ok)
	w.limit = 1000
	for i := range 500 {
		_, err := fmt.Fprintf(w, "line %d\n", i)
		require.NoError(t, err)
	}
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	before, err := os.ReadFile(path + ".1")
	require.NoError(t, err)
	require.LessOrEqual(t, len(now), 1000)
	require.LessOrEqual(t, len(before), 1000)
	require.True(t, strings.HasSuffix(string(now), "line 499\n"))
	last := strings.Fields(string(before))
	var a, b int
	_, err = fmt.Sscan(last[len(last)-1], &a)
	require.NoError(t, err)
	_, err = fmt.Sscan(strings.Fields(string(now))[1], &b)
	require.NoError(t, err)
	require.Equal(t, a+1, b, "no line is lost")

	other, err := os.Create(filepath.Join(t.TempDir(), "terminal"))
	require.NoError(t, err)
	defer other.Close()
	require.Equal(t, other, boundedLog(other, path), "the log is not in this file")
}

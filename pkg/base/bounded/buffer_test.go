package bounded

import (
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBufferIsBounded: also for io.Copy, which would prefer a ReadFrom method.
func TestBufferIsBounded(t *testing.T) {
	b := NewBuffer(10)
	n, err := io.Copy(b, strings.NewReader(strings.Repeat("x", 1<<20)))
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, n, "all is taken")
	require.Equal(t, strings.Repeat("x", 10), b.String())
}

func TestBufferTakesSeveralStreams(t *testing.T) {
	b := NewBuffer(100)
	var streams sync.WaitGroup
	for range 8 {
		streams.Go(func() {
			for range 50 {
				_, _ = b.Write([]byte("abc"))
			}
		})
	}
	streams.Wait()
	require.Len(t, b.Bytes(), 100)
}

package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A small heap that grows fast gets more room; a large or calm one does not, and small changes have no effect.
func TestHeapPacer(t *testing.T) {
	now, alive := time.Unix(0, 0), uint64(20<<20)
	var set []int
	p := &heapPacer{now: func() time.Time { return now }, alive: func() uint64 { return alive }, percent: calmShare, last: now,
		set: func(percent int) int { set = append(set, percent); return 0 }}
	collected := func(after time.Duration, live uint64) {
		now, alive = now.Add(after), live
		p.look()
	}
	collected(time.Minute, 20<<20)
	require.Empty(t, set, "calm")
	collected(time.Second, 20<<20)
	collected(time.Second, 24<<20)
	require.Equal(t, []int{480}, set, "busy, and a second value near the first is not set")
	collected(time.Second, 48<<20)
	collected(time.Second, 400<<20)
	require.Equal(t, []int{480, 200, 100}, set)
	collected(time.Second, 32<<20)
	collected(2*time.Minute, 32<<20)
	require.Equal(t, []int{480, 200, 100, 300, 100}, set, "calm again")
}

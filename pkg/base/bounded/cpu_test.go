package bounded

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestCPU(t *testing.T) {
	require.True(t, CPU(t.Context(), 20*time.Millisecond, func(ctx context.Context) {
		for ctx.Err() == nil { //nolint:revive // it uses processor time
		}
		var used unix.Rusage
		require.NoError(t, unix.Getrusage(unix.RUSAGE_THREAD, &used))
		require.GreaterOrEqual(t, used.Utime.Nano()+used.Stime.Nano(), (10 * time.Millisecond).Nanoseconds())
	}))
	// Time in which the thread does not run does not count.
	waited := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() { close(waited) })
	require.False(t, CPU(t.Context(), 20*time.Millisecond, func(ctx context.Context) {
		<-waited
		require.NoError(t, ctx.Err())
	}))
}

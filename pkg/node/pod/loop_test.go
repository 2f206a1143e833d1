package pod

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Steps never overlap, no wake is lost, a pause delays every wake, and a stopped Manager ends the loop.
func TestSyncLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var steps, running, gone atomic.Int32
		var next atomic.Value
		next.Store(outcome{})
		var l *syncLoop
		l = &syncLoop{ctx: ctx, run: func(f func()) bool { go f(); return ctx.Err() == nil },
			gone: func() { gone.Add(1) },
			step: func() outcome {
				require.EqualValues(t, 1, running.Add(1))
				defer running.Add(-1)
				if steps.Add(1) == 1 {
					require.True(t, l.quiet())
					l.wake() // a wake during the step
					require.False(t, l.quiet())
				}
				time.Sleep(time.Millisecond)
				return next.Load().(outcome)
			}}
		l.wake()
		time.Sleep(time.Second)
		require.EqualValues(t, 2, steps.Load(), "a wake during a step is one more step")

		l.wakeAt(time.Now().Add(time.Minute))
		l.wakeAt(time.Now().Add(2 * time.Minute))
		time.Sleep(61 * time.Second)
		require.EqualValues(t, 2, steps.Load(), "the later timer replaced the earlier")
		time.Sleep(time.Minute)
		require.EqualValues(t, 3, steps.Load())

		next.Store(outcome{pause: time.Hour})
		l.wake()
		time.Sleep(time.Minute)
		require.EqualValues(t, 4, steps.Load())
		next.Store(outcome{})
		for range 10 {
			l.wake()
		}
		time.Sleep(30 * time.Minute)
		require.EqualValues(t, 4, steps.Load(), "paused")
		time.Sleep(time.Hour)
		require.EqualValues(t, 5, steps.Load(), "and stepped again by itself")

		next.Store(outcome{done: true})
		l.wake()
		time.Sleep(time.Second)
		require.EqualValues(t, 1, gone.Load())
		l.wake()
		l.wakeAt(time.Now())
		time.Sleep(time.Second)
		require.EqualValues(t, 6, steps.Load(), "the last step was made")
		require.EqualValues(t, 1, gone.Load())

		cancel()
		l.wake()
		time.Sleep(time.Second)
		require.EqualValues(t, 6, steps.Load())
		l.stop()
	})
}

package engine

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestBurstsAreTakenTogether checks the number of calls that a storm of changes causes.
func TestBurstsAreTakenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{bursts: map[string]*burst{}}
		var calls atomic.Int32
		var last atomic.Value
		change := func(name, object string) {
			p := aPod()
			p.Name = object
			s.batch(name, p, func(o client.Object) { calls.Add(1); last.Store(o.GetName()) })
		}
		settle := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}

		change("web", "alone")
		settle(pauseStep)
		require.EqualValues(t, 1, calls.Swap(0), "a change by itself")

		for i := range 500 {
			change("web", fmt.Sprint(i))
			change("db", fmt.Sprint(i))
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		require.Zero(t, calls.Load(), "the storm goes on")
		settle(pauseMost)
		require.EqualValues(t, 2, calls.Swap(0), "one call for each name")
		require.Equal(t, "499", last.Load())
		settle(2 * burstMost)
		require.Empty(t, s.bursts, "forgotten")

		for range 1000 { // for 10 s
			change("web", "busy")
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		require.InDelta(t, 13, calls.Swap(0), 4, "a storm without an end is looked at each second")

		settle(2 * burstMost)
		calls.Store(0)
		change("web", "dropped")
		s.endBursts()
		change("web", "late")
		settle(burstMost)
		require.Zero(t, calls.Load())
	})
}

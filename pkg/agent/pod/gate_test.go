package pod

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGate: so many run at a time, the others in the order in which they came. Those that hang hold up others for a while only.
func TestGate(t *testing.T) {
	require.Equal(t, 8, cap(newGate(1)))
	require.Equal(t, 64, cap(newGate(16)))
	synctest.Test(t, func(t *testing.T) {
		g := make(gate, 1)
		leave := g.enter(t.Context())
		var order []int
		for i := range 3 {
			go func() {
				leave := g.enter(t.Context())
				order = append(order, i)
				leave()
				leave()
			}()
			synctest.Wait()
		}
		require.Empty(t, order)
		leave()
		synctest.Wait()
		require.Equal(t, []int{0, 1, 2}, order)
		require.Empty(t, g)

		hangs, began := g.enter(t.Context()), time.Now()
		g.enter(t.Context())()
		require.Equal(t, gatePatience, time.Since(began))
		require.Len(t, g, 1, "who did not wait to the end has no room to give back")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		g.enter(ctx)()
		require.Equal(t, gatePatience, time.Since(began))
		hangs()
		require.Empty(t, g)
	})
}

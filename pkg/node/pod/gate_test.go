package pod

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGate checks the limit, the order, and that an operation that hangs blocks others only for a while.
func TestGate(t *testing.T) {
	require.Equal(t, 8, newGate(1).room)
	require.Equal(t, 64, newGate(16).room)
	synctest.Test(t, func(t *testing.T) {
		g := &gate{room: 1}
		leave := g.enter(t.Context(), stageSandbox)
		var order []int
		for i, s := range []stage{stageSandbox, stageStart, stageSandbox, stageRelease, stageStart} {
			go func() {
				leave := g.enter(t.Context(), s)
				order = append(order, i)
				leave()
				leave()
			}()
			synctest.Wait()
		}
		require.Empty(t, order)
		leave()
		synctest.Wait()
		require.Equal(t, []int{3, 1, 4, 0, 2}, order)
		require.Equal(t, 1, g.room)

		hangs, began := g.enter(t.Context(), stageStart), time.Now()
		g.enter(t.Context(), stageStart)()
		require.Equal(t, gatePatience, time.Since(began))
		require.Zero(t, g.room, "who did not wait to the end has no room to give back")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		g.enter(ctx, stageRelease)()
		require.Equal(t, gatePatience, time.Since(began))
		hangs()
		require.Equal(t, 1, g.room, "who gave up is not given room")
	})
}

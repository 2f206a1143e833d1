package check

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestTurns checks that one namespace never gets all turns, that waiting namespaces alternate, and that a cancelled
// wait is skipped.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, got := newTurns(3, 2), []string{}
		ask := func(ctx context.Context, namespace string) {
			go func() {
				if turns.take(ctx, namespace) == nil {
					got = append(got, namespace)
				}
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range 4 {
			ask(t.Context(), "a")
		}
		require.Equal(t, []string{"a", "a"}, got)
		ask(t.Context(), "b")
		require.Equal(t, []string{"a", "a", "b"}, got)
		ask(ctx, "b")
		ask(t.Context(), "c")
		turns.give("a") // the next turn goes to "a", which has waited longest
		synctest.Wait()
		cancel()
		synctest.Wait()
		turns.give("a")
		synctest.Wait()
		turns.give("b")
		synctest.Wait()
		require.Equal(t, []string{"a", "a", "b", "a", "c", "a"}, got)
		for _, namespace := range []string{"a", "a", "c"} {
			turns.give(namespace)
		}
		require.Equal(t, 3, turns.free)
		require.Empty(t, turns.busy)
		require.Empty(t, turns.waiting)
		require.Empty(t, turns.order)
	})
}

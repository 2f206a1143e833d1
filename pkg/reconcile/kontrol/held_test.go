package kontrol

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/kontrol/watch"
)

// TestOnlyThoseWhoWaitForItAreWoken, so that the change of one Resource does not make all others be looked at.
func TestOnlyThoseWhoWaitForItAreWoken(t *testing.T) {
	h := newHeld()
	a, b, c := watch.Pair{Resource: "a", Cluster: "x"}, watch.Pair{Resource: "b", Cluster: "x"}, watch.Pair{Resource: "a", Cluster: "y"}
	h.set(a, "first")
	h.set(b, onCluster)
	h.set(c, "first")
	require.Equal(t, []watch.Pair{a}, h.waiting("x", "first"))
	require.Equal(t, []watch.Pair{b}, h.waiting("x", onCluster))
	require.ElementsMatch(t, []watch.Pair{a, b}, h.all("x"))
	h.set(a, onKind)
	require.Empty(t, h.waiting("x", "first"))
	require.Equal(t, []watch.Pair{c}, h.waiting("y", "first"))
	h.set(a, "")
	h.forget(func(p watch.Pair) bool { return p != c })
	require.Equal(t, []watch.Pair{b}, h.all("x"))
	h.set(b, "")
	require.Equal(t, newHeld(), h, "nothing is kept")
}

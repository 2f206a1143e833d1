package localsnapshot

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// A node gets a limited number of concurrent requests. Other nodes are not blocked, and queued requests are
// returned when a turn ends.
func TestTurns(t *testing.T) {
	var all turns
	copying, other := turn{"a", true}, turn{"a", false}
	req := func(name string) engine.Request { return engine.RequestFor("", name) }
	for range perNode {
		require.True(t, all.take(copying, req("first")))
	}
	for _, name := range []string{"x", "y", "x"} {
		require.False(t, all.take(copying, req(name)))
	}
	require.True(t, all.take(other, req("z")), "a removal waits for no copy")
	require.True(t, all.take(turn{"b", true}, req("z")))
	require.Equal(t, map[engine.Request]bool{req("x"): true, req("y"): true}, all.end(copying))
	require.True(t, all.take(copying, req("x")))
	require.False(t, all.take(copying, req("y")))
	require.Equal(t, map[engine.Request]bool{req("y"): true}, all.end(copying))
	require.Empty(t, all.end(copying))
	require.Empty(t, all.end(other))
	require.Empty(t, all.end(turn{"b", true}))
	require.Empty(t, all.busy, "nothing is left")
}

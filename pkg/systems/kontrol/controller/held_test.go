package controller

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/systems/kontrol/watch"
)

func TestOnlyThoseWhoWaitForItAreWoken(t *testing.T) {
	h := newHeld()
	a, b, c := watch.Pair{Resource: "a", Cluster: "x"}, watch.Pair{Resource: "b", Cluster: "x"}, watch.Pair{
		Resource: "a", Cluster: "y",
	}
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

// TestAnOutageIsForgiven checks that failures on an unreachable cluster are retried at once after its return. Other
// clusters and the count of drift corrections stay unchanged.
func TestAnOutageIsForgiven(t *testing.T) {
	later := now.Add(time.Minute)
	a, b, fought, other := watch.Pair{Resource: "a", Cluster: "c"}, watch.Pair{Resource: "b", Cluster: "c"}, watch.Pair{
		Resource: "f", Cluster: "c",
	}, watch.Pair{Resource: "a", Cluster: "d"}
	failed := Tries{Generation: 1, Failures: 7, Next: later, Outage: 3}
	tries := map[watch.Pair]Tries{
		a:      failed,
		b:      {Generation: 1, Failures: 1, Next: later, Outage: 2, Corrections: 3},
		fought: {Generation: 1, Corrections: 6},
		other:  failed,
	}
	require.Equal(t, []watch.Pair{b}, forgive(maps.Clone(tries), "c", 3), "what failed since fails as before")
	require.ElementsMatch(t, []watch.Pair{a, b}, forgive(tries, "c", 4))
	require.Equal(t,
		map[watch.Pair]Tries{
			a:      {Generation: 1, Outage: 3},
			b:      {Generation: 1, Outage: 2, Corrections: 3},
			fought: {Generation: 1, Corrections: 6},
			other:  failed,
		}, tries)
}

// TestThePauseAfterAFailure checks that the pause grows to the resync period, plus or minus half, and further only
// if many pairs have failed.
func TestThePauseAfterAFailure(t *testing.T) {
	r := &applied{tries: map[watch.Pair]Tries{}}
	for others, most := range map[int]time.Duration{0: failUsual, 6000: time.Minute, 20_000: failMost} {
		clear(r.tries)
		for i := range others {
			r.tries[watch.Pair{Resource: fmt.Sprint(i)}] = Tries{}
		}
		pause := failFirst
		for range 20 {
			wait := r.failed(watch.Pair{Resource: "r", Cluster: "c"}, 1, 0, nil, now)
			require.GreaterOrEqual(t, wait, pause/2)
			require.LessOrEqual(t, wait, pause*3/2)
			pause = min(2*pause, most+failShare)
		}
	}
}

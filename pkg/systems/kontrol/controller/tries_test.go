package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/systems/kontrol/watch"
)

// TestAnOutageIsForgiven checks that failures from before an outage are retried at once. The count of drift corrections
// stays.
func TestAnOutageIsForgiven(t *testing.T) {
	failed := Tries{Generation: 1, Failures: 7, Next: now.Add(time.Minute), Outage: 3, Corrections: 3}
	require.Equal(t, failed, failed.after(3), "it failed since")
	require.Equal(t, Tries{Generation: 1, Outage: 3, Corrections: 3}, failed.after(4))
}

// TestThePauseAfterAFailure checks that the pause grows to failUsual, plus or minus half, and further only
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

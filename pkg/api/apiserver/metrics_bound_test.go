package apiserver

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// New kinds cannot create unlimited series: above the limit they share one.
func TestSeriesAreBounded(t *testing.T) {
	w := newWorld(t)
	m := w.srv.metrics
	label := func(i int) requestLabels {
		return requestLabels{
			verb:     "GET",
			group:    "example.org",
			version:  "v1",
			resource: fmt.Sprint("things", i),
			scope:    "resource",
			code:     200,
		}
	}
	for i := range mostSeries + 10 {
		m.of(label(i)).count.Inc()
	}
	require.LessOrEqual(t, len(m.series), mostSeries+1)
	require.Same(t, m.of(label(mostSeries+1)), m.of(label(mostSeries+2)))
	require.NotSame(t, m.of(label(1)), m.of(label(2)))
}

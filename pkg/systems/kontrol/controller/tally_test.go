package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// TestStatesAreCounted checks the metrics of states, and that the number of their label values is bounded.
func TestStatesAreCounted(t *testing.T) {
	counts := &tally{}
	ago := time.Now().Add(-time.Hour)
	counts.set("a", []counted{{"one", kontrol.StateDrifted, ago}, {"two", kontrol.StateSynced, ago}})
	counts.set("a", []counted{{"one", kontrol.StateDrifted, time.Now()}, {"two", kontrol.StateSynced, time.Now()}})
	counts.set("b", []counted{{"one", kontrol.StateDrifted, time.Now()}})
	counts.set("gone", []counted{{"one", kontrol.StateConflict, ago}})
	counts.set("gone", nil)
	require.NoError(t, testutil.CollectAndCompare(counts, strings.NewReader(`
# HELP coracle_kontrol_resources Kontrol's Resources by cluster and state, such as Synced or Drifted.
# TYPE coracle_kontrol_resources gauge
coracle_kontrol_resources{cluster="one",state="Drifted"} 2
coracle_kontrol_resources{cluster="two",state="Synced"} 1
`), "coracle_kontrol_resources"))
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(counts))
	families, err := reg.Gather()
	require.NoError(t, err)
	require.Equal(t, "coracle_kontrol_state_age_seconds", families[1].GetName())
	require.Len(t, families[1].GetMetric(), 1)
	require.InDelta(t, 3600, families[1].GetMetric()[0].GetGauge().GetValue(), 60, "a state keeps its age")

	for i := range maxLabelled + 10 {
		counts.set(fmt.Sprint(i), []counted{{fmt.Sprintf("cluster-%04d", i), kontrol.StateSynced, ago}})
	}
	families, err = reg.Gather()
	require.NoError(t, err)
	require.Equal(t, maxLabelled+2, len(families[0].GetMetric()), "the other clusters have two states")
}

package nodelifecycle

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/pkg/control/heartbeat"
	"github.com/coracle-dev/coracle/pkg/engine"
)

func in(z, name string, ready corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
	n := node(ready, taints...)
	n.Name, n.Labels = name, map[string]string{corev1.LabelTopologyZone: z}
	return n
}

// fill creates the nodes of a zone. The first ones are lost.
func fill(l *listener, z string, all, lost int) {
	for i := range all {
		ready := corev1.ConditionTrue
		if i < lost {
			ready = corev1.ConditionUnknown
		}
		name := fmt.Sprintf("%s%d", z, i)
		l.count(name, in(z, name, ready))
	}
}

func empty() *listener {
	return &listener{heard: &heartbeat.Record{}, census: newCensus(), evicted: map[string]turn{}}
}

func TestEvictionOfAZone(t *testing.T) {
	for name, c := range map[string]struct {
		all, lost, others int
		want              Eviction
		pace              time.Duration
	}{
		"one of two":              {all: 2, lost: 1, want: Evict, pace: pace},
		"two of three":            {all: 3, lost: 2, want: Evict, pace: pace},
		"three of four":           {all: 4, lost: 3, want: Hold},
		"three of six":            {all: 6, lost: 3, want: Evict, pace: pace},
		"three of five":           {all: 5, lost: 3, want: Hold},
		"most of a large zone":    {all: 60, lost: 40, want: Evict, pace: slowly},
		"a whole zone of several": {all: 4, lost: 4, others: 1, want: Evict, pace: pace},
		"everything":              {all: 4, lost: 4, want: Spare},
		"the only one":            {all: 1, lost: 1, want: Spare},
	} {
		t.Run(name, func(t *testing.T) {
			l := empty()
			fill(l, "a", c.all, c.lost)
			fill(l, "b", c.others, 0)
			e, wait := l.census.eviction("/a")
			require.Equal(t, c.want, e)
			require.Equal(t, c.pace, wait)
		})
	}
}

// TestCensusIsACount: after any sequence of events, the tallies match the existing nodes.
func TestCensusIsACount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, model := newCensus(), map[string]member{}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"n1", "n2", "n3", "n4"}).Draw(t, "node")
			if rapid.Bool().Draw(t, "gone") {
				c.set(name, nil)
				delete(model, name)
				continue
			}
			m := member{rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone"), rapid.Bool().Draw(t, "well")}
			c.set(name, &m)
			model[name] = m
		}
		zones, well := map[string]tally{}, 0
		for _, m := range model {
			y := zones[m.zone]
			y.all++
			if m.well {
				well++
			} else {
				y.lost++
			}
			zones[m.zone] = y
		}
		require.Equal(t, model, c.nodes)
		require.Equal(t, zones, c.zones)
		require.Equal(t, well, c.well)
	})
}

// TestOneAfterTheOther: the nodes of a zone are evicted at a pace, and the nodes of a disrupted zone not at all.
func TestOneAfterTheOther(t *testing.T) {
	l := empty()
	fill(l, "a", 10, 0)
	lost := func(i int) *corev1.Node { return in("a", fmt.Sprintf("a%d", i), corev1.ConditionUnknown) }
	ask := func(i int, at time.Duration) (Eviction, time.Duration) { return l.eviction(lost(i), now.Add(at)) }

	e, wait := ask(0, 0)
	require.Equal(t, Evict, e)
	require.Zero(t, wait)
	e, wait = ask(1, 4*time.Second)
	require.Equal(t, Hold, e)
	require.Equal(t, 6*time.Second, wait)
	e, _ = ask(0, 5*time.Second)
	require.Equal(t, Evict, e, "what could not be written is tried again")
	e, _ = l.eviction(in("b", "b0", corev1.ConditionUnknown), now.Add(5*time.Second))
	require.Equal(t, Evict, e, "another zone has a pace of its own")
	e, wait = ask(1, 15*time.Second)
	require.Equal(t, Evict, e)
	require.Zero(t, wait)

	for i := range 5 {
		require.Empty(t, l.count(lost(i).Name, lost(i)))
	}
	// The sixth lost node of ten disrupts the zone, even before its status says so. It is held, and all are
	// re-examined.
	e, wait = ask(5, time.Minute)
	require.Equal(t, Hold, e)
	require.Zero(t, wait)
	require.Empty(t, l.count("a9", in("a", "a9", corev1.ConditionTrue)), "asking changes no count")
	require.Len(t, l.count("a5", lost(5)), 6)
	tainted := in("a", "a0", corev1.ConditionUnknown, taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute))
	e, _ = l.eviction(tainted, now.Add(time.Minute))
	require.Equal(t, Hold, e)
	require.ElementsMatch(t, []engine.Request{
		engine.RequestFor("", "a1"), engine.RequestFor("", "a2"), engine.RequestFor("", "a3"), engine.RequestFor("", "a4"),
		engine.RequestFor("", "a5"),
	}, l.count("a0", in("a", "a0", corev1.ConditionTrue)))
	e, _ = ask(1, 2*time.Minute)
	require.Equal(t, Evict, e)
}

func TestPlanOfADisruptedZone(t *testing.T) {
	const unreachable = corev1.TaintNodeUnreachable
	fresh, had := node(corev1.ConditionTrue), node(corev1.ConditionFalse,
		taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule),
		taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute))
	for name, c := range map[string]struct {
		node     *corev1.Node
		eviction Eviction
		want     []string
	}{
		"held":                  {fresh, Hold, []string{unreachable + ":NoSchedule"}},
		"held, but had it":      {had, Hold, []string{unreachable + ":NoSchedule", unreachable + ":NoExecute"}},
		"spared":                {fresh, Spare, []string{unreachable + ":NoSchedule"}},
		"spared, though had it": {had, Spare, []string{unreachable + ":NoSchedule"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := Plan(Observed{Node: c.node, Heard: now.Add(-time.Hour), Patience: DefaultPatience, Eviction: c.eviction}, now)
			require.Equal(t, c.want, keys(a.Taints))
			require.True(t, a.PodsNotReady, "its services stop all the same")
		})
	}
}

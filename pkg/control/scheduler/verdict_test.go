package scheduler

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// A pod can be placed on each node that is explained to fit, and the scheduler picks one with the highest score.
func TestExplanationsAreTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newState(10, func(string) map[string]string { return nil })
		for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
			change := []func(*corev1.Node){
				zone(fmt.Sprint(i % 2)), ofNode(fmt.Sprint(rapid.IntRange(1, 4).Draw(t, "cpu")), "8Gi", i),
			}
			if rapid.Bool().Draw(t, "taint") {
				change = append(change,
					taint("k",
						rapid.SampledFrom([]corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule}).Draw(t,
							"effect")))
			}
			s.setNode(testNode(fmt.Sprint("n", i), change...))
		}
		changes := [][]func(*corev1.Pod){
			nil, {cpu("1")}, {cpu("3")}, {labelled("app", "x"), antiAffinity("app", "x", corev1.LabelTopologyZone)},
			{labelled("app", "x"), affinity("app", "x", corev1.LabelTopologyZone)},
			{labelled("app", "x"), spreadOver(corev1.LabelTopologyZone, "app", "x")},
		}
		for i := range rapid.IntRange(1, 12).Draw(t, "pods") {
			p := testPod(fmt.Sprint("p", i), rapid.SampledFrom(changes).Draw(t, "pod")...)
			if rapid.Bool().Draw(t, "task") {
				p.Spec.SchedulerName = TaskProfile
			}
			e := s.explain(p)
			info := newPodInfo(p)
			n, failed := s.pick(info)
			require.Equal(t, p.Spec.SchedulerName, e.Profile)
			if failed != nil {
				require.Equal(t, failed.message(""), e.Summary)
				require.False(t, e.Nodes[0].Fits)
				continue
			}
			require.Empty(t, e.Summary)
			for _, v := range e.Nodes {
				require.Equal(t, v.Fits, len(v.Refused) == 0)
				require.Equal(t, v.Fits, len(v.Scores) == len(e.Scores))
				if v.Name == n.name {
					require.True(t, v.Fits)
					require.Equal(t, e.Nodes[0].Total, v.Total)
					if e.Ordered {
						require.Equal(t, e.Nodes[0].Scores, v.Scores)
					}
				}
			}
			s.assign(info, n.name)
		}
	})
}

// A bound pod is explained as if it were scheduled now: it does not count itself, and is not tied to its node.
func TestExplanationOfABoundPod(t *testing.T) {
	there := testPod("p", cpu("4"))
	there.Spec.NodeName = "a"
	s := world([]*corev1.Node{
		testNode("a"),
		testNode("b", taint("k", corev1.TaintEffectNoSchedule), func(n *corev1.Node) { n.Spec.Unschedulable = true }),
	})
	e := s.explain(there)
	require.Equal(t, []string{"a", "b"}, []string{e.Nodes[0].Name, e.Nodes[1].Name})
	require.True(t, e.Nodes[0].Fits)
	require.Equal(t,
		map[string][]string{
			"NodeUnschedulable": {"node(s) were unschedulable"},
			"TaintToleration":   {"node(s) had untolerated taint(s) (k:NoSchedule)"},
		}, e.Nodes[1].Refused)
	require.Contains(t, e.Filters, "InterPodAffinity")
	require.NotContains(t, e.Applied, "InterPodAffinity")
	require.ErrorContains(t, e.Only([]string{"c"}), `node "c" not found`)
	require.NoError(t, e.Only([]string{"b"}))
	require.Len(t, e.Nodes, 1)
	require.Equal(t, "a", there.Spec.NodeName)
}

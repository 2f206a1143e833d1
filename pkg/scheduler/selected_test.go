package scheduler

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// TestSelected compares with upstream's matching of each node itself.
func TestSelected(t *testing.T) {
	zone := func(values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: values}}}
	}
	named := func(term corev1.NodeSelectorTerm, name string, op corev1.NodeSelectorOperator) corev1.NodeSelectorTerm {
		term.MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: op, Values: []string{name}}}
		return term
	}
	broken := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: "Like", Values: []string{"a"}}}}
	labelled := func(name, zone string) *corev1.Node {
		return testNode(name, func(n *corev1.Node) { n.Labels = map[string]string{"zone": zone} })
	}
	nodes := []*corev1.Node{labelled("n1", "a"), labelled("n2", "b"), testNode("n3", func(n *corev1.Node) { n.Labels = nil }), labelled("n4", "a")}
	for name, terms := range map[string][]corev1.NodeSelectorTerm{
		"labels":             {zone("a")},
		"alternatives":       {zone("a"), zone("b")},
		"nothing":            {{}},
		"name":               {named(corev1.NodeSelectorTerm{}, "n2", corev1.NodeSelectorOpIn)},
		"another name":       {named(corev1.NodeSelectorTerm{}, "n2", corev1.NodeSelectorOpNotIn)},
		"labels and name":    {named(zone("a"), "n1", corev1.NodeSelectorOpIn)},
		"labels or name":     {zone("b"), named(corev1.NodeSelectorTerm{}, "n3", corev1.NodeSelectorOpIn)},
		"invalid, or labels": {broken, zone("b")},
		"invalid":            {broken},
	} {
		for _, selector := range []map[string]string{nil, {"zone": "a"}} {
			pod := testPod("p", func(p *corev1.Pod) {
				p.Spec.NodeSelector = selector
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
			})
			s := world(nodes)
			c := s.cycle(newPodInfo(pod))
			for _, n := range s.order {
				want, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(n.node)
				require.Equal(t, want && err == nil, selected(c, n), "%s, node selector %v, node %s", name, selector, n.name)
			}
		}
	}
}

package scheduler

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// The result equals upstream's matching of each node.
func TestSelected(t *testing.T) {
	zone := func(values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: values}},
		}
	}
	named := func(term corev1.NodeSelectorTerm, name string, op corev1.NodeSelectorOperator) corev1.NodeSelectorTerm {
		term.MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: op, Values: []string{name}}}
		return term
	}
	broken := corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: "Like", Values: []string{"a"}}},
	}
	labelled := func(name, zone string) *corev1.Node {
		return testNode(name, func(n *corev1.Node) { n.Labels = map[string]string{"zone": zone} })
	}
	nodes := []*corev1.Node{
		labelled("n1", "a"), labelled("n2", "b"), testNode("n3", func(n *corev1.Node) { n.Labels = nil }),
		labelled("n4", "a"),
	}
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
				p.Spec.Affinity = &corev1.Affinity{
					NodeAffinity: &corev1.NodeAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
					},
				}
			})
			s := world(nodes)
			c := s.cycle(newPodInfo(pod))
			for _, n := range append(s.order, s.order...) { // the second pass uses cached results
				want, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(n.node)
				require.Equal(t, want && err == nil, selected(c, n), "%s, node selector %v, node %s", name, selector, n.name)
			}
		}
	}
}

func selecting(term corev1.NodeSelectorTerm) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{term},
				},
			},
		}
	}
}

// Cached results end when the node's labels or its place in the order change.
func TestSelectionsFollowNodes(t *testing.T) {
	zone := func(z string) func(*corev1.Node) { return func(n *corev1.Node) { n.Labels["zone"] = z } }
	in := func(z string) *podInfo {
		return newPodInfo(testPod("p", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": z} }))
	}
	s := world([]*corev1.Node{testNode("a", zone("x")), testNode("b", zone("y")), testNode("c", zone("y"))})
	picked := func(z string) string {
		n, failed := s.pick(in(z))
		if failed != nil {
			return failed.message("")
		}
		return n.name
	}
	require.Equal(t, "a", picked("x"))
	require.Equal(t, "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.", picked("z"))
	s.setNode(testNode("a", zone("z")))
	require.Equal(t, "a", picked("z"))
	s.removeNode("a") // another node takes its place
	require.Contains(t, []string{"b", "c"}, picked("y"))
	require.Equal(t, "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", picked("z"))
	s.setNode(testNode("d", zone("z")))
	require.Equal(t, "d", picked("z"))
	for i := range 3 * mostSelections {
		picked(fmt.Sprint("other", i))
		require.LessOrEqual(t, len(s.selections), mostSelections)
	}
}

// A pod that names its node, as in a DaemonSet, is compared only with this node. The others are rejected by name.
func TestNamedNodes(t *testing.T) {
	var nodes []*corev1.Node
	for i := range 50 {
		nodes = append(nodes, testNode(fmt.Sprint("n", i)))
	}
	nodes[7].Spec.Unschedulable = true
	s := world(nodes)
	named := func(names ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{
			MatchFields: []corev1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: names},
			},
		}
	}
	n, failed := s.pick(newPodInfo(testPod("p", selecting(named("n33")))))
	require.Nil(t, failed)
	require.Equal(t, "n33", n.name)
	require.Zero(t, s.start, "the next pod begins where the one before ended")
	for term, want := range map[string]string{
		"n7": "0/50 nodes are available: 1 node(s) were unschedulable, 49 node(s) didn't match Pod's node " +
			"affinity/selector.",
		"gone": "0/50 nodes are available: 50 node(s) didn't match Pod's node affinity/selector.",
	} {
		_, failed = s.pick(newPodInfo(testPod("p", selecting(named(term)))))
		require.Equal(t, want, failed.message(""))
	}
	but := named("n33")
	but.MatchFields = append(but.MatchFields, corev1.NodeSelectorRequirement{
		Key:      "metadata.name",
		Operator: corev1.NodeSelectorOpNotIn,
		Values:   []string{"n33"},
	})
	_, failed = s.pick(newPodInfo(testPod("p", selecting(but))))
	require.NotNil(t, failed)
}

// A pod's demand is parsed once while the pod waits, and freed when it gets a node.
func TestDemandsAreKeptWhileAPodWaits(t *testing.T) {
	s := world([]*corev1.Node{testNode("a"), testNode("b")})
	p := newPodInfo(testPod("p", func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "b"}
	}))
	require.False(t, s.mayFit(p, s.nodes["a"]))
	kept := p.demand
	require.NotNil(t, kept)
	n, failed := s.pick(p)
	require.Nil(t, failed)
	require.Same(t, kept, p.demand)
	s.assign(p, n.name)
	require.Nil(t, p.demand)
	s.remove(p)
	require.True(t, s.mayFit(p, s.nodes["b"]))
	require.False(t, s.mayFit(p, s.nodes["a"]))
}

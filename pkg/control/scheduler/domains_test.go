package scheduler

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// The topology keys of pods are not limited in number. A key takes memory only for the nodes that have its label.
func TestDomainsAreBounded(t *testing.T) {
	const labels, others = 200, 100
	var nodes []*corev1.Node
	for i := range others {
		nodes = append(nodes, testNode(fmt.Sprint("n", i)))
	}
	odd := testNode("odd")
	for i := range labels {
		odd.Labels[fmt.Sprint("k", i)] = "v"
	}
	s := world(append(nodes, odd))
	for round := range 3 {
		for i := range labels {
			name := fmt.Sprint("p", round, "-", i)
			s.assign(newPodInfo(testPod(name, antiAffinity("app", name, fmt.Sprint("k", i)))), "odd")
			_, failed := s.pick(newPodInfo(testPod("q", labelled("app", name), spreadOver(fmt.Sprint("k", i), "app", "x"))))
			require.NotNil(t, failed)
			require.Same(t, nowhere, s.domainsOf(fmt.Sprint("unknown", i)))
		}
	}
	for i := range labels {
		d := s.domainsOf(fmt.Sprint("k", i))
		at, ok := d.of(s.nodes["odd"])
		require.True(t, ok)
		require.Equal(t, domain(others), at)
		_, ok = d.of(s.nodes["n1"])
		require.False(t, ok)
	}
	all := map[*domains]bool{}
	for _, g := range s.existing().forbid {
		all[g.domains] = true
	}
	for _, d := range s.domains {
		all[d] = true
	}
	places := 0
	for d := range all {
		places += len(d.nodes) + len(d.few)
	}
	require.Equal(t, labels, places)
	require.Len(t, s.domainsOf(corev1.LabelHostname).nodes, others+1, "most nodes have it")
}

package scheduler

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestDomainsAreBounded: pods may name any number of labels, of which only so many are kept, and none that no node has.
func TestDomainsAreBounded(t *testing.T) {
	node := testNode("a")
	for i := range 3 * mostDomains {
		node.Labels[fmt.Sprint("k", i)] = "v"
	}
	s := world([]*corev1.Node{testNode("b"), node})
	for i := range 3 * mostDomains {
		_, failed := s.pick(newPodInfo(testPod(fmt.Sprint("p", i), spreadOver(fmt.Sprint("k", i), "app", "x"))))
		require.Nil(t, failed)
		require.Same(t, nowhere, s.domainsOf(fmt.Sprint("unknown", i)))
		require.LessOrEqual(t, len(s.domains), mostDomains)
		d := s.domainsOf(fmt.Sprint("k", i))
		at, ok := d.of(s.nodes["a"])
		require.True(t, ok)
		require.Equal(t, domain(1), at)
		_, ok = d.of(s.nodes["b"])
		require.False(t, ok)
	}
}

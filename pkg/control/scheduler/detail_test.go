package scheduler

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// An explanation says what the pod wants and what the node has. The message in the pod's condition stays upstream's.
func TestReasonsAreDetailed(t *testing.T) {
	hostPort := func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080, Protocol: corev1.ProtocolTCP}}
	}
	selects := func(k, v string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{k: v} }
	}
	wants := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"ssd", "nvme"}},
					{Key: "gpu", Operator: corev1.NodeSelectorOpExists},
				},
			}}},
		}}
	}
	for name, c := range map[string]struct {
		node      func(*corev1.Node)
		pod       func(*corev1.Pod)
		filter    string
		want, sum string
	}{
		"resources": {zone("z"), cpu("9"), "NodeResourcesFit", "Insufficient cpu (cpu: wants 9, 2500m of 4 is free)",
			"0/1 nodes are available: 1 Insufficient cpu."},
		"taint": {taint("dedicated", corev1.TaintEffectNoSchedule), cpu("1"), "TaintToleration",
			"node(s) had untolerated taint(s) (dedicated:NoSchedule)",
			"0/1 nodes are available: 1 node(s) had untolerated taint(s)."},
		"label missing": {zone("z"), selects("disk", "ssd"), nodeAffinity,
			"node(s) didn't match Pod's node affinity/selector (the node has no label disk=ssd)",
			"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."},
		"label different": {zone("z"), selects(corev1.LabelTopologyZone, "y"), nodeAffinity,
			"node(s) didn't match Pod's node affinity/selector (its label topology.kubernetes.io/zone is z, not y)",
			"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."},
		"affinity of nodes": {zone("z"), wants, nodeAffinity,
			"node(s) didn't match Pod's node affinity/selector (it wants disk In ssd|nvme and gpu Exists)",
			"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."},
		"port": {zone("z"), hostPort, "NodePorts",
			"node(s) didn't have free ports for the requested pod ports (pod default/old has port 8080/TCP)",
			"0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."},
		"spread": {func(*corev1.Node) {}, spreadOver(corev1.LabelTopologyZone, "app", "x"), "PodTopologySpread",
			"node(s) didn't match pod topology spread constraints (missing required label) " +
				"(the node has no label topology.kubernetes.io/zone)",
			"0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label)."},
		"affinity": {zone("z"), affinity("app", "databse", corev1.LabelTopologyZone), "InterPodAffinity",
			"node(s) didn't match pod affinity rules (it wants a pod with app=databse at the same topology.kubernetes.io/zone)",
			"0/1 nodes are available: 1 node(s) didn't match pod affinity rules."},
	} {
		t.Run(name, func(t *testing.T) {
			s := newState(10, func(string) map[string]string { return nil })
			s.setNode(testNode("n", c.node))
			s.assign(newPodInfo(testPod("old", cpu("1500m"), hostPort)), "n")
			e := s.explain(testPod("new", c.pod))
			require.Equal(t, []string{c.want}, e.Nodes[0].Refused[c.filter])
			require.Equal(t, c.sum, e.Summary)
		})
	}
	s := newState(10, func(string) map[string]string { return nil })
	s.setNode(testNode("n"))
	long := s.explain(testPod("new", selects("k", strings.Repeat("é", 4000)))).Nodes[0].Refused[nodeAffinity][0]
	require.Less(t, len(long), 300)
	require.Equal(t, "1000", cores(1_000_000))
	require.Equal(t, "2500m", cores(2500))
	require.Equal(t, "4000Gi", binary(4000<<30))
	require.Equal(t, "23.5Gi", binary(47<<29))
	require.Equal(t, "1.5Mi", binary(3<<19))
}

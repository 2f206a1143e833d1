package scheduler

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/coracle-dev/coracle/pkg/kind/nodeselector"
)

// cycle is one scheduling attempt for one pod.
type cycle struct {
	*podInfo
	state     *state
	selection *nodeSelection // nil: all nodes
	// Set by the prepare functions of filters and scores.
	volumes     *volumeCycle
	csi         csiVolumes                     // nil: not read yet
	attached    map[string]csiVolumes          // by node; nil: not read yet
	served      map[corev1.ResourceName]string // extended resources and the classes whose devices can serve them
	devices     *deviceCycle
	podAffinity *podAffinityCounts
	spread      *spread
	preferred   nodeselector.Preferred
	preferences []preference
}

var unschedulableTaint = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

func schedulable(c *cycle, n *nodeInfo) bool {
	return !n.cordoned || tolerates(c.pod, &unschedulableTaint)
}

func nodeNamed(c *cycle, n *nodeInfo) bool {
	return c.pod.Spec.NodeName == "" || c.pod.Spec.NodeName == n.name
}

func tolerates(p *corev1.Pod, t *corev1.Taint) bool {
	for i := range p.Spec.Tolerations {
		if p.Spec.Tolerations[i].ToleratesTaint(klog.Logger{}, t, true) {
			return true
		}
	}
	return false
}

// untolerated returns the first taint that the pod does not tolerate, or nil.
func untolerated(p *corev1.Pod, n *nodeInfo) *corev1.Taint {
	for i := range n.taints {
		t := &n.taints[i]
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !tolerates(p, t) {
			return t
		}
	}
	return nil
}

func tolerated(c *cycle, n *nodeInfo) bool { return untolerated(c.pod, n) == nil }

func portsFree(c *cycle, n *nodeInfo) bool {
	for _, want := range c.ports {
		for have := range n.ports {
			if want.clashes(have) {
				return false
			}
		}
	}
	return true
}

// promised returns the resources and the number of pods that are nominated to a node with at least this pod's
// priority. Members of a gang that is being placed may already have taken part of them.
func (c *cycle) promised(n *nodeInfo) (need amounts, pods int) {
	for _, p := range n.nominated {
		if p.pod.UID != c.pod.UID && p.node == nil && p.priority >= c.priority {
			need.add(p.need, 1)
			pods++
		}
	}
	return need, pods
}

// Bits of the messages of NodeResourcesFit.
const (
	noPods = 1 << iota
	noCPU
	noMemory
	noStorage
)

// insufficient has the messages for each set of bits, so that a refusal does not allocate.
var insufficient = func() (all [noStorage << 1][]string) {
	for set := range all {
		for i, text := range []string{
			"Too many pods", "Insufficient cpu", "Insufficient memory", "Insufficient ephemeral-storage",
		} {
			if set&(1<<i) != 0 {
				all[set] = append(all[set], text)
			}
		}
	}
	return all
}()

// shortages names each resource that the node lacks, extended ones last.
func shortages(c *cycle, n *nodeInfo) []string {
	promised, pods := c.promised(n)
	set := 0
	if len(n.pods)+pods+1 > n.max {
		set |= noPods
	}
	short := func(need, promised, used, most int64) bool { return need != 0 && need+promised+used > most }
	if short(c.need.cpu, promised.cpu, n.used.cpu, n.most.cpu) {
		set |= noCPU
	}
	if short(c.need.memory, promised.memory, n.used.memory, n.most.memory) {
		set |= noMemory
	}
	if short(c.need.ephemeral, promised.ephemeral, n.used.ephemeral, n.most.ephemeral) {
		set |= noStorage
	}
	var extended []string
	for name, need := range c.need.extended {
		if !c.byDevices(name, n) && short(need, promised.extended[name], n.used.extended[name], n.most.extended[name]) {
			extended = append(extended, "Insufficient "+string(name))
		}
	}
	if extended == nil {
		return insufficient[set]
	}
	slices.Sort(extended)
	return append(slices.Clip(insufficient[set]), extended...)
}

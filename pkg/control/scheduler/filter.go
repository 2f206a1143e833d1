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
	selection *nodeSelection // nil: any node
	// Filled in by the prepare of filters and scores.
	volumes     *volumeCycle
	csi         csiVolumes                     // nil: not looked up yet
	attached    map[string]csiVolumes          // by node; nil: not looked up yet
	served      map[corev1.ResourceName]string // the classes of extended resources that devices can serve
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

// untolerated is the first taint that the pod does not tolerate, or nil.
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

// promised returns what is kept free on a node for pods that are expected there and not less important, and their
// number. Those of a pod group that is being placed may have it already.
func (c *cycle) promised(n *nodeInfo) (need amounts, pods int) {
	for _, p := range n.nominated {
		if p.pod.UID != c.pod.UID && p.node == nil && p.priority >= c.priority {
			need.add(p.need, 1)
			pods++
		}
	}
	return need, pods
}

// fits checks the conditions that explainFit reports, stopping at the first failure.
func fits(c *cycle, n *nodeInfo) bool {
	promised, pods := c.promised(n)
	if len(n.pods)+pods+1 > n.max {
		return false
	}
	ok := func(need, promised, used, most int64) bool { return need == 0 || need+promised+used <= most }
	if !ok(c.need.cpu, promised.cpu, n.used.cpu, n.most.cpu) ||
		!ok(c.need.memory, promised.memory, n.used.memory, n.most.memory) ||
		!ok(c.need.ephemeral, promised.ephemeral, n.used.ephemeral, n.most.ephemeral) {
		return false
	}
	for name, need := range c.need.extended {
		if !c.byDevices(name, n) && !ok(need, promised.extended[name], n.used.extended[name], n.most.extended[name]) {
			return false
		}
	}
	return true
}

func explainFit(c *cycle, n *nodeInfo) []string {
	promised, pods := c.promised(n)
	var out []string
	if len(n.pods)+pods+1 > n.max {
		out = append(out, "Too many pods")
	}
	short := func(name string, need, promised, used, most int64) {
		if need != 0 && need+promised+used > most {
			out = append(out, "Insufficient "+name)
		}
	}
	short("cpu", c.need.cpu, promised.cpu, n.used.cpu, n.most.cpu)
	short("memory", c.need.memory, promised.memory, n.used.memory, n.most.memory)
	short("ephemeral-storage", c.need.ephemeral, promised.ephemeral, n.used.ephemeral, n.most.ephemeral)
	names := make([]string, 0, len(c.need.extended))
	for name := range c.need.extended {
		names = append(names, string(name))
	}
	slices.Sort(names)
	for _, s := range names {
		name := corev1.ResourceName(s)
		if !c.byDevices(name, n) {
			short(s, c.need.extended[name], promised.extended[name], n.used.extended[name], n.most.extended[name])
		}
	}
	return out
}

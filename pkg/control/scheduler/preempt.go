package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

type eviction struct {
	node    *nodeInfo
	victims []*podInfo // the most important first
	// violations is the number of victims whose eviction violates a disruption budget.
	violations int
}

// preempt looks for a node where the pod fits after pods of lower priority are evicted. It does not change the
// state. Without such a node, it returns the text that upstream appends to the message.
func (f *failure) preempt() (*eviction, string) {
	c := f.cycle
	nodes := c.state.order
	if len(nodes) == 0 {
		return nil, ""
	}
	if p := c.pod.Spec.PreemptionPolicy; p != nil && *p == corev1.PreemptNever {
		return nil, " preemption: not eligible due to preemptionPolicy=Never."
	}
	if f.waits() {
		return nil, " preemption: not eligible due to a terminating pod on the nominated node."
	}
	if c.spread != nil {
		c.spread.own()
	}
	if c.podAffinity != nil {
		c.podAffinity.own()
	}
	lower := false
	for priority := range c.state.priorities {
		lower = lower || priority < c.priority
	}
	var found []*eviction
	clean := false // whether an eviction violates no budget
	var budgets []*budget
	if lower {
		budgets = c.state.budgets()
	}
	count := map[string]int{}
	for i, n := range nodes {
		if !f.active[f.refused[i]].curable {
			count["Preemption is not helpful for scheduling"]++
			continue
		}
		if lower && (len(found) < c.state.enough(c.profile) || !clean) {
			if e := f.victims(n, budgets); e != nil {
				found = append(found, e)
				clean = clean || e.violations == 0
				continue
			}
		}
		count["No preemption victims found for incoming pod"]++
	}
	if len(found) == 0 {
		return nil, fmt.Sprintf(" preemption: 0/%d nodes are available: %s.", len(nodes), histogram(count))
	}
	return slices.MinFunc(found, (*eviction).compare), ""
}

// waits reports whether the pod is nominated to a node where a preempted pod of lower priority is terminating, and
// where an eviction can help. Other terminating pods do not count, because they may take arbitrarily long.
func (f *failure) waits() bool {
	n := f.cycle.state.nominations[f.cycle.pod.UID]
	if n == nil || !f.active[f.refused[n.at]].curable {
		return false
	}
	for _, p := range n.pods {
		if p.priority < f.cycle.priority && p.pod.DeletionTimestamp != nil && preempted(p.pod) {
			return true
		}
	}
	return false
}

// preempted reports whether a scheduler is deleting the pod to make room.
func preempted(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
			c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

// victims returns a minimal set of pods to evict from a node, or nil. It reprieves pods with a violated budget first.
func (f *failure) victims(n *nodeInfo, budgets []*budget) *eviction {
	c := f.cycle
	var lower []*podInfo
	for _, p := range n.pods {
		if p.priority < c.priority {
			lower = append(lower, p)
		}
	}
	if len(lower) == 0 {
		return nil
	}
	// The most important pods come last and are reprieved first. Of equal priority, the oldest is the most
	// important.
	slices.SortFunc(lower, byImportance)
	try := n.without()
	move := func(p *podInfo, sign int) {
		try.count(p, sign)
		if c.spread != nil {
			c.spread.move(p, sign)
		}
		if c.podAffinity != nil {
			c.podAffinity.move(p, sign)
		}
	}
	for _, p := range lower {
		move(p, -1)
	}
	fitsWithout := c.refusedBy(f.active, try) < 0
	violating := violations(lower, budgets)
	var gone []*podInfo
	broken := 0
	for _, first := range []bool{true, false} {
		for _, p := range slices.Backward(lower) {
			if violating[p] != first {
				continue
			}
			move(p, 1)
			if fitsWithout && c.refusedBy(f.active, try) >= 0 {
				move(p, -1)
				gone = append(gone, p)
			}
		}
		if first {
			broken = len(gone)
		}
	}
	for _, p := range gone { // restore the cycle's counts
		move(p, 1)
	}
	if !fitsWithout || len(gone) == 0 {
		return nil
	}
	if broken > 0 {
		slices.SortFunc(gone, func(a, b *podInfo) int { return byImportance(b, a) })
	}
	return &eviction{n, gone, broken}
}

func byImportance(a, b *podInfo) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), b.started().Compare(a.started()), cmp.Compare(a.pod.UID, b.pod.UID))
}

// move removes (sign -1) a pod from the counts of affinity and anti-affinity, or adds it back.
func (b *podAffinityCounts) move(p *podInfo, sign int) {
	for _, t := range b.affinity {
		t.count(p, sign)
	}
	for _, t := range b.antiAffinity {
		t.count(p, sign)
	}
	if p.affinity == nil {
		return
	}
	for i := range p.affinity.requiredAnti {
		for _, g := range b.forbidden {
			if v, ok := g.domains.of(p.node); ok && g.id == p.affinity.requiredAnti[i].id {
				g.values[v] += sign
			}
		}
	}
}

func (p *podInfo) started() time.Time {
	if p.pod.Status.StartTime != nil {
		return p.pod.Status.StartTime.Time
	}
	return p.pod.CreationTimestamp.Time
}

// compare orders evictions as upstream: fewest budget violations, lowest priority of the most important victim,
// lowest sum of priorities, fewest victims, latest start of the oldest of the most important victims.
func (e *eviction) compare(o *eviction) int {
	most := func(e *eviction) int32 { return e.victims[0].priority }
	sum := func(e *eviction) (s int64) {
		for _, p := range e.victims {
			s += int64(p.priority) + 1<<31
		}
		return s
	}
	oldest := func(e *eviction) time.Time {
		t := e.victims[0].started()
		for _, p := range e.victims {
			if p.priority == most(e) && p.started().Before(t) {
				t = p.started()
			}
		}
		return t
	}
	return cmp.Or(cmp.Compare(e.violations, o.violations), cmp.Compare(most(e), most(o)), cmp.Compare(sum(e), sum(o)),
		cmp.Compare(len(e.victims), len(o.victims)),
		oldest(o).Compare(oldest(e)))
}

package scheduler

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// spread holds one cycle's counts for its pod's topology spread constraints (KEP-895).
type spread struct {
	hard, soft []constraint
}

type constraint struct {
	*corev1.TopologySpreadConstraint
	selector labels.Selector
	self     int            // 1 if the pod matches its own constraint
	pods     map[string]int // matching pods by topology value, on eligible nodes
	least    int
}

func prepareSpread(c *cycle) bool {
	in := c.pod.Spec.TopologySpreadConstraints
	if len(in) == 0 {
		return false
	}
	c.spread = &spread{}
	for i := range in {
		k := constraint{TopologySpreadConstraint: &in[i], pods: map[string]int{}}
		k.selector = selectorOf(withLabelKeys(in[i].LabelSelector, c.pod.Labels, in[i].MatchLabelKeys, nil))
		if k.selector.Matches(labels.Set(c.pod.Labels)) {
			k.self = 1
		}
		if in[i].WhenUnsatisfiable == corev1.DoNotSchedule {
			c.spread.hard = append(c.spread.hard, k)
		} else {
			c.spread.soft = append(c.spread.soft, k)
		}
	}
	c.spread.count(c)
	return len(c.spread.hard) > 0
}

func (s *spread) count(c *cycle) {
	for _, set := range [][]constraint{s.hard, s.soft} {
		for i := range set {
			k := &set[i]
			for _, n := range c.state.order {
				v, ok := topology(n, k.TopologyKey)
				if !ok || !s.counts(c, k, n, set) {
					continue
				}
				here := k.pods[v]
				for _, p := range n.pods {
					if p.pod.Namespace == c.pod.Namespace && p.pod.DeletionTimestamp == nil && k.selector.Matches(labels.Set(p.pod.Labels)) {
						here++
					}
				}
				k.pods[v] = here
			}
			k.findLeast()
		}
	}
}

func (k *constraint) findLeast() {
	k.least = -1
	for _, n := range k.pods {
		if k.least < 0 || n < k.least {
			k.least = n
		}
	}
	if k.MinDomains != nil && len(k.pods) < int(*k.MinDomains) {
		k.least = 0
	}
	k.least = max(k.least, 0)
}

// counts reports whether the node is eligible for the constraint (KEP-3094); it must also have the other constraints' keys.
func (s *spread) counts(c *cycle, k *constraint, n *nodeInfo, set []constraint) bool {
	for i := range set {
		if _, ok := topology(n, set[i].TopologyKey); !ok {
			return false
		}
	}
	if (k.NodeAffinityPolicy == nil || *k.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor) && c.selects && !selected(c, n) {
		return false
	}
	return k.NodeTaintsPolicy == nil || *k.NodeTaintsPolicy == corev1.NodeInclusionPolicyIgnore || tolerated(c, n)
}

func spreads(c *cycle, n *nodeInfo) bool { return crowded(c, n) == "" }

func explainSpread(c *cycle, n *nodeInfo) []string { return []string{crowded(c, n)} }

func crowded(c *cycle, n *nodeInfo) string {
	const refused = "node(s) didn't match pod topology spread constraints"
	for i := range c.spread.hard {
		k := &c.spread.hard[i]
		v, ok := topology(n, k.TopologyKey)
		if !ok {
			return refused + " (missing required label)"
		}
		if k.pods[v]+k.self-k.least > int(k.MaxSkew) {
			return refused
		}
	}
	return ""
}

// move removes a matching pod from its node (sign -1) or adds it back, for preemption.
func (s *spread) move(c *cycle, p *podInfo, n *nodeInfo, sign int) {
	for i := range s.hard {
		k := &s.hard[i]
		if v, ok := topology(n, k.TopologyKey); ok && p.pod.Namespace == c.pod.Namespace && p.pod.DeletionTimestamp == nil &&
			k.selector.Matches(labels.Set(p.pod.Labels)) && s.counts(c, k, n, s.hard) {
			k.pods[v] += sign
			k.findLeast()
		}
	}
}

// prepareSpreadScore spreads pods with constraints by their ScheduleAnyway constraints, others by their group.
func prepareSpreadScore(c *cycle) bool {
	if len(c.pod.Spec.TopologySpreadConstraints) > 0 {
		return c.spread != nil && len(c.spread.soft) > 0
	}
	return c.group != "" && c.state.groups[c.group] != nil
}

// spreadScore prefers nodes and zones with few pods that match the constraints or belong to the same group.
func spreadScore(c *cycle, n *nodeInfo) (sum int64) {
	if len(c.pod.Spec.TopologySpreadConstraints) == 0 {
		sum = -int64(n.groups[c.group])
		if len(c.state.zones) > 1 {
			sum -= 2 * int64(c.state.groups[c.group][n.zone])
		}
		return sum
	}
	for i := range c.spread.soft {
		k := &c.spread.soft[i]
		if v, ok := topology(n, k.TopologyKey); ok {
			sum -= 100 * int64(k.pods[v]) / int64(max(k.MaxSkew, 1))
		} else {
			sum -= math.MaxInt32
		}
	}
	return sum
}

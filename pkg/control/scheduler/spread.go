package scheduler

import (
	"encoding/json"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

type spread struct {
	hard, soft []constraint
}

type constraint struct {
	*corev1.TopologySpreadConstraint
	selector labels.Selector
	self     int // 1 if the pod matches its own constraint
	*tally       // matching pods on eligible nodes
}

// fewest returns the lowest number of matching pods in a domain. It is 0 if there are fewer domains than minDomains.
func (k *constraint) fewest() int {
	if k.MinDomains != nil && len(k.pods) < int(*k.MinDomains) {
		return 0
	}
	return k.least
}

func prepareSpread(c *cycle) bool {
	in := c.pod.Spec.TopologySpreadConstraints
	if len(in) == 0 {
		return false
	}
	c.spread = &spread{}
	for i := range in {
		k := constraint{TopologySpreadConstraint: &in[i]}
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
			set[i].tally = c.spreadTally(&set[i], set)
		}
	}
}

// spreadTally counts the pods that a constraint selects.
func (c *cycle) spreadTally(k *constraint, set []constraint) *tally {
	of := &cycle{podInfo: c.podInfo, selection: c.selection} // keep only this of the cycle
	keys := make([]string, len(set))
	for i := range set {
		keys[i] = set[i].TopologyKey
	}
	name := []string{"spread", c.pod.Namespace, k.TopologyKey, strings.Join(keys, ","), selectorID(k.selector)}
	affinity, taints := k.honorsAffinity() && c.selection != nil, k.honorsTaints()
	if affinity {
		name = append(name, c.selection.key)
	}
	if taints {
		tolerations, _ := json.Marshal(c.pod.Spec.Tolerations)
		name = append(name, string(tolerations))
	}
	namespace, selector := c.pod.Namespace, k.selector
	return c.state.tally(strings.Join(name, "\x00"), func() *tally {
		return &tally{key: k.TopologyKey, matches: func(p *corev1.Pod) bool {
			return p.Namespace == namespace && p.DeletionTimestamp == nil && selector.Matches(labels.Set(p.Labels))
		}, eligible: func(n *nodeInfo) bool {
			for _, key := range keys {
				if _, ok := n.node.Labels[key]; !ok {
					return false
				}
			}
			return (!affinity || selected(of, n)) && (!taints || tolerated(of, n))
		}}
	})
}

// Node inclusion policies (KEP-3094). Eligible nodes must also have the keys of the other constraints.

func (k *constraint) honorsAffinity() bool {
	return k.NodeAffinityPolicy == nil || *k.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor
}

func (k *constraint) honorsTaints() bool {
	return k.NodeTaintsPolicy != nil && *k.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor
}

// Messages of PodTopologySpread.
var (
	skewed    = []string{"node(s) didn't match pod topology spread constraints"}
	unlabeled = []string{"node(s) didn't match pod topology spread constraints (missing required label)"}
)

func crowded(c *cycle, n *nodeInfo) []string {
	for i := range c.spread.hard {
		k := &c.spread.hard[i]
		v, ok := k.domains.of(n)
		if !ok {
			return unlabeled
		}
		if k.pods[v]+k.self-k.fewest() > int(k.MaxSkew) {
			return skewed
		}
	}
	return nil
}

// own copies the counts, so that preemption can change them in this cycle.
func (s *spread) own() {
	for _, set := range [][]constraint{s.hard, s.soft} {
		for i := range set {
			set[i].tally = set[i].clone()
		}
	}
}

// move removes (sign -1) a matching pod from its node's count or adds it back, for preemption.
func (s *spread) move(p *podInfo, sign int) {
	for i := range s.hard {
		s.hard[i].count(p, sign)
	}
}

// prepareSpreadScore reports whether the pod is spread by ScheduleAnyway constraints or, without any, by its siblings.
func prepareSpreadScore(c *cycle) bool {
	if len(c.pod.Spec.TopologySpreadConstraints) > 0 {
		return c.spread != nil && len(c.spread.soft) > 0
	}
	return c.siblings != "" && c.state.siblings[c.siblings] != nil
}

// spreadScore prefers nodes and zones with few pods that match the constraints or are siblings.
func spreadScore(c *cycle, n *nodeInfo) (sum int64) {
	if len(c.pod.Spec.TopologySpreadConstraints) == 0 {
		sum = -int64(n.siblings[c.siblings])
		if len(c.state.zones) > 1 {
			sum -= 2 * int64(c.state.siblings[c.siblings][n.zone])
		}
		return sum
	}
	for i := range c.spread.soft {
		k := &c.spread.soft[i]
		if v, ok := k.domains.of(n); ok {
			sum -= 100 * int64(k.pods[v]) / int64(max(k.MaxSkew, 1))
		} else {
			sum -= math.MaxInt32
		}
	}
	return sum
}

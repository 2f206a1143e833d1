package scheduler

import (
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Weights, as upstream's default profile has them; each score is from 0 to 100.
const (
	weightTaints   = 3
	weightAffinity = 2
	weightSpread   = 2
	weightPods     = 2
	mostScore      = 100
)

// Images smaller than minImage or larger than maxImage per container make no difference to locality.
const (
	minImage = 23 << 20
	maxImage = 1000 << 20
)

// best picks the node with the highest score; of equals, the one that comes first after the last one chosen.
func (c *cycle) best(nodes []*nodeInfo) *nodeInfo {
	if len(nodes) == 1 {
		return nodes[0]
	}
	total := c.state.scratch(len(nodes))
	for i, n := range nodes {
		total[i] = c.least(n) + c.balance(n) + c.locality(n)
	}
	c.scoreTaints(nodes, total)
	c.scoreAffinity(nodes, total)
	c.scoreSpread(nodes, total)
	c.scorePods(nodes, total)
	at := 0
	for i := range total {
		if total[i] > total[at] {
			at = i
		}
	}
	return nodes[at]
}

// least prefers nodes with much left of cpu and memory.
func (c *cycle) least(n *nodeInfo) int64 {
	left := func(most, used int64) int64 {
		if most == 0 || used > most {
			return 0
		}
		return (most - used) * mostScore / most
	}
	return (left(n.most.cpu, n.score.cpu+c.scoreCPU) + left(n.most.memory, n.score.mem+c.scoreMem)) / 2
}

// balance prefers nodes whose cpu and memory are used up alike.
func (c *cycle) balance(n *nodeInfo) int64 {
	if n.most.cpu == 0 || n.most.memory == 0 {
		return 0
	}
	part := func(most, used int64) float64 { return min(float64(used)/float64(most), 1) }
	d := math.Abs(part(n.most.cpu, n.used.cpu+c.need.cpu)-part(n.most.memory, n.used.memory+c.need.memory)) / 2
	return int64((1 - d) * mostScore)
}

// locality prefers nodes that have the pod's large images.
func (c *cycle) locality(n *nodeInfo) int64 {
	if len(n.images) == 0 {
		return 0
	}
	var sum int64
	for i := range c.pod.Spec.Containers {
		name := c.pod.Spec.Containers[i].Image
		size, ok := n.images[name]
		if !ok && !strings.Contains(name[strings.LastIndexByte(name, '/')+1:], ":") {
			size = n.images[name+":latest"]
		}
		sum += size
	}
	most := int64(maxImage * len(c.pod.Spec.Containers))
	sum = min(max(sum, minImage), most)
	return mostScore * (sum - minImage) / (most - minImage)
}

func (c *cycle) scoreTaints(nodes []*nodeInfo, total []int64) {
	if c.state.soft == 0 {
		return
	}
	raw := make([]int64, len(nodes))
	for i, n := range nodes {
		for t := range n.node.Spec.Taints {
			if taint := &n.node.Spec.Taints[t]; taint.Effect == corev1.TaintEffectPreferNoSchedule && !tolerates(c.pod, taint) {
				raw[i]--
			}
		}
	}
	normalize(raw, total, weightTaints)
}

func (c *cycle) scoreAffinity(nodes []*nodeInfo, total []int64) {
	a := c.pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
		return
	}
	terms, err := nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		return
	}
	raw := make([]int64, len(nodes))
	for i, n := range nodes {
		raw[i] = terms.Score(n.node)
	}
	normalize(raw, total, weightAffinity)
}

// scoreSpread prefers nodes, and zones, with few pods of the same group or, where the pod has constraints
// of its own that may be violated, of those.
func (c *cycle) scoreSpread(nodes []*nodeInfo, total []int64) {
	if len(c.pod.Spec.TopologySpreadConstraints) > 0 {
		if c.spread == nil || len(c.spread.soft) == 0 {
			return
		}
		raw := make([]int64, len(nodes))
		for i, n := range nodes {
			for j := range c.spread.soft {
				k := &c.spread.soft[j]
				if v, ok := topology(n, k.TopologyKey); ok {
					raw[i] -= 100 * int64(k.pods[v]) / int64(max(k.MaxSkew, 1))
				} else {
					raw[i] -= math.MaxInt32
				}
			}
		}
		normalize(raw, total, weightSpread)
		return
	}
	if c.group == "" || c.state.groups[c.group] == nil {
		return
	}
	zones := c.state.groups[c.group]
	raw := make([]int64, len(nodes))
	for i, n := range nodes {
		raw[i] = -int64(n.groups[c.group])
		if len(c.state.zones) > 1 {
			raw[i] -= 2 * int64(zones[n.zone])
		}
	}
	normalize(raw, total, weightSpread)
}

// scorePods follows preferred pod affinity, of this pod and of those that are there.
func (c *cycle) scorePods(nodes []*nodeInfo, total []int64) {
	a := c.affinity
	asks := a != nil && len(a.preferNear)+len(a.preferApart) > 0
	if !asks && len(c.state.prefers) == 0 {
		return
	}
	sums := map[place]int64{}
	add := func(terms []term, of *podInfo, about *corev1.Pod, sign int64) {
		for i := range terms {
			if v, ok := topology(of.node, terms[i].key); ok && terms[i].matches(c.state, about) {
				sums[place{terms[i].key, v}] += sign * terms[i].weight
			}
		}
	}
	for p := range c.state.prefers {
		add(p.affinity.preferNear, p, c.pod, 1)
		add(p.affinity.preferApart, p, c.pod, -1)
		for i := range p.affinity.near { // a required affinity also draws, with weight 1
			if t := &p.affinity.near[i]; t.matches(c.state, c.pod) {
				if v, ok := topology(p.node, t.key); ok {
					sums[place{t.key, v}]++
				}
			}
		}
	}
	if asks {
		for _, p := range c.state.pods {
			add(a.preferNear, p, p.pod, 1)
			add(a.preferApart, p, p.pod, -1)
		}
	}
	if len(sums) == 0 {
		return
	}
	raw := make([]int64, len(nodes))
	for i, n := range nodes {
		for at, w := range sums {
			if v, ok := topology(n, at.key); ok && v == at.value {
				raw[i] += w
			}
		}
	}
	normalize(raw, total, weightPods)
}

// normalize adds raw, stretched to 0..mostScore, to total. All alike make no difference.
func normalize(raw, total []int64, weight int64) {
	low, high := raw[0], raw[0]
	for _, v := range raw {
		low, high = min(low, v), max(high, v)
	}
	if low == high {
		return
	}
	for i, v := range raw {
		total[i] += weight * mostScore * (v - low) / (high - low)
	}
}

package scheduler

import (
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/kind/nodeselector"
)

const mostScore = 100

// Image sizes per container below minImage or above maxImage do not affect locality.
const (
	minImage = 23 << 20
	maxImage = 1000 << 20
)

// best picks the node with the highest score. Of equals, it picks the first one after the last chosen node.
func (c *cycle) best(nodes []*nodeInfo) *nodeInfo {
	if len(nodes) == 1 {
		return nodes[0]
	}
	if c.profile.ordered {
		return c.first(nodes)
	}
	total, raw := c.state.scratch(len(nodes))
	for i := range c.profile.scores {
		f := &c.profile.scores[i]
		if f.prepare != nil && !f.prepare(c) {
			continue
		}
		if f.relative {
			for j, n := range nodes {
				raw[j] = f.of(c, n)
			}
			stretch(raw, total, f.weight)
			continue
		}
		for j, n := range nodes {
			total[j] += f.weight * f.of(c, n)
		}
	}
	at := 0
	for i := range total {
		if total[i] > total[at] {
			at = i
		}
	}
	return nodes[at]
}

// least prefers nodes with a low fraction of allocated CPU and memory.
func least(c *cycle, n *nodeInfo) int64 {
	left := func(most, used int64) int64 {
		if most == 0 || used > most {
			return 0
		}
		return (most - used) * mostScore / most
	}
	return (left(n.most.cpu, n.score.cpu+c.scoreCPU) + left(n.most.memory, n.score.mem+c.scoreMem)) / 2
}

// balance prefers nodes whose CPU and memory are allocated to a similar degree.
func balance(c *cycle, n *nodeInfo) int64 {
	if n.most.cpu == 0 || n.most.memory == 0 {
		return 0
	}
	part := func(most, used int64) float64 { return min(float64(used)/float64(most), 1) }
	d := math.Abs(part(n.most.cpu, n.used.cpu+c.need.cpu)-part(n.most.memory, n.used.memory+c.need.memory)) / 2
	return int64((1 - d) * mostScore)
}

func locality(c *cycle, n *nodeInfo) int64 {
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

// softTaints returns minus the number of the node's untolerated PreferNoSchedule taints.
func softTaints(c *cycle, n *nodeInfo) (sum int64) {
	if !n.soft {
		return 0
	}
	for t := range n.node.Spec.Taints {
		if taint := &n.node.Spec.Taints[t]; taint.Effect == corev1.TaintEffectPreferNoSchedule && !tolerates(c.pod, taint) {
			sum--
		}
	}
	return sum
}

func prepareNodePreferences(c *cycle) bool {
	a := c.pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
		return false
	}
	terms, err := nodeselector.PreferredOf(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	c.preferred = terms
	return err == nil
}

func nodePreferences(c *cycle, n *nodeInfo) int64 { return c.preferred.Score(n.node) }

// stretch scales raw to 0..mostScore and adds it to total. If all scores are equal, it adds nothing.
func stretch(raw, total []int64, weight int64) {
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

package nodelifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Eviction decides whether a lost node gets the NoExecute taint that evicts its pods.
type Eviction int

const (
	// Evict: the node failed individually.
	Evict Eviction = iota
	// Hold: not now. An existing taint stays.
	Hold
	// Spare: the node is not tainted, and an existing taint is removed.
	Spare
)

// The numbers are upstream's defaults.
const (
	// pace is the minimum interval between evictions in a zone. slowly applies to large disrupted zones.
	pace   = 10 * time.Second
	slowly = 100 * time.Second
	// A zone is disrupted if more than disruptedNodes and at least disruptedPercent of its nodes are lost.
	disruptedNodes   = 2
	disruptedPercent = 55
	largeZone        = 50
)

func zone(n *corev1.Node) string {
	return n.Labels[corev1.LabelTopologyRegion] + "/" + n.Labels[corev1.LabelTopologyZone]
}

func well(conditions []corev1.NodeCondition) bool {
	c := find(conditions, corev1.NodeReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// evicted reports whether the node has a NoExecute taint for being not ready or unreachable.
func evicted(n *corev1.Node) bool {
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute &&
			(t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable) {
			return true
		}
	}
	return false
}

// census counts the nodes, and the lost nodes, of each zone.
type census struct {
	nodes map[string]member
	zones map[string]tally
	well  int
}

type member struct {
	zone string
	well bool
}

type tally struct{ all, lost int }

func newCensus() *census {
	return &census{nodes: map[string]member{}, zones: map[string]tally{}}
}

// set records the node's current state, nil if it was deleted.
func (c *census) set(name string, is *member) {
	count := func(m member, by int) {
		t := c.zones[m.zone]
		t.all += by
		if m.well {
			c.well += by
		} else {
			t.lost += by
		}
		if t.all > 0 {
			c.zones[m.zone] = t
		} else {
			delete(c.zones, m.zone)
		}
	}
	if was, ok := c.nodes[name]; ok {
		count(was, -1)
		delete(c.nodes, name)
	}
	if is != nil {
		count(*is, 1)
		c.nodes[name] = *is
	}
}

// eviction decides about lost nodes in a zone, and returns the interval between evictions there. If most of a zone
// is lost, a network partition is likely: its pods probably still run, and the remaining nodes could hardly take
// them all. If no node is reachable at all, the control plane is partitioned.
func (c *census) eviction(zone string) (Eviction, time.Duration) {
	t := c.zones[zone]
	switch {
	case c.well == 0:
		return Spare, 0
	case t.lost == t.all || t.lost <= disruptedNodes || t.lost*100 < t.all*disruptedPercent:
		return Evict, pace
	case t.all > largeZone:
		return Evict, slowly
	}
	return Hold, 0
}

func (c *census) unwell() (names []string) {
	for name, m := range c.nodes {
		if !m.well {
			names = append(names, name)
		}
	}
	return names
}

package nodelifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Eviction is whether a node that is lost gets the taint by which its pods leave.
type Eviction int

const (
	// Evict it, as one that failed by itself.
	Evict Eviction = iota
	// Hold: not now. A node that has the taint keeps it.
	Hold
	// Spare: nobody has it.
	Spare
)

// The numbers are upstream's defaults.
const (
	// pace is the least time between two nodes of a zone that get the taint; slowly is that in a large zone that is disrupted.
	pace   = 10 * time.Second
	slowly = 100 * time.Second
	// A zone is disrupted when more than disruptedNodes of it, and this percentage, are lost.
	disruptedNodes   = 2
	disruptedPercent = 55
	largeZone        = 50
)

// zone is where a node fails together with others.
func zone(n *corev1.Node) string {
	return n.Labels[corev1.LabelTopologyRegion] + "/" + n.Labels[corev1.LabelTopologyZone]
}

// well tells whether a node reports that it is Ready.
func well(conditions []corev1.NodeCondition) bool {
	c := find(conditions, corev1.NodeReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// evicted tells whether the node has a taint by which pods leave it because it is lost.
func evicted(n *corev1.Node) bool {
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable) {
			return true
		}
	}
	return false
}

// census counts the nodes of each zone, and those of them that are lost.
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

// set takes in what a node is now; nil if it is gone.
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

// eviction tells the loss of nodes from that of the network between them and us, and how long to wait from one node of the zone to the
// next. When most of a zone is lost, its pods likely run on, and what is left could hardly take them all. When no node at all
// is there any more, it is us who are lost.
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

// unwell lists the nodes that are lost.
func (c *census) unwell() (names []string) {
	for name, m := range c.nodes {
		if !m.well {
			names = append(names, name)
		}
	}
	return names
}

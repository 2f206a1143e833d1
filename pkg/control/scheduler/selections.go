package scheduler

import (
	"crypto/sha256"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/kind/nodeselector"
)

// mostSelections limits the selections that are cached between cycles. Each takes a byte per node.
const mostSelections = 64

// acceptance is whether a node satisfies a node selector and required node affinity. It is cached until nodes
// change: pods of one workload have the same demand, and comparing labels takes longer than all other filters of an
// ordinary pod.
type acceptance uint8

const (
	unknown acceptance = iota
	accepted
	rejected
)

// demand is a pod's parsed node selector and required node affinity. Parsing may be expensive.
type demand struct {
	required nodeselector.Required
	key      string // a digest, equal for equal demands
	named    bool   // depends on node names, too
	// names contains the only possible nodes. Nil means any node.
	names []string
}

// demands returns the pod's demand of nodes, or nil if it has none. It is cached while the pod waits.
func (p *podInfo) demands() *demand {
	var terms *corev1.NodeSelector
	if a := p.pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		terms = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	if p.demand != nil || len(p.pod.Spec.NodeSelector) == 0 && terms == nil {
		return p.demand
	}
	var raw []byte
	if terms != nil {
		raw, _ = terms.Marshal() // never fails
	}
	key := sha256.Sum256(append([]byte(labelKey(p.pod.Spec.NodeSelector)+"\x00"), raw...))
	p.demand = &demand{
		required: nodeselector.RequiredOf(p.pod.Spec.NodeSelector, p.pod.Spec.Affinity), key: string(key[:]),
	}
	if terms != nil &&
		slices.ContainsFunc(terms.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool { return len(t.MatchFields) > 0 }) {
		p.demand.named, p.demand.names = true, namesIn(terms)
	}
	return p.demand
}

// nodeSelection is a pod's demand of nodes in one attempt.
type nodeSelection struct {
	*demand
	// unnamed gets the labels of each node to match, unless required depends on names: upstream's matcher allocates
	// a map for a named node. Nil means that the node itself is matched.
	unnamed *corev1.Node
	// known contains the cached results, indexed like state.order; nil if the demand depends on names, as few share it.
	known []acceptance
}

// selectionOf returns a pod's selection, or nil if it has no demand.
func (s *state) selectionOf(p *podInfo) *nodeSelection {
	d := p.demands()
	switch {
	case d == nil:
		return nil
	case d.named:
		return &nodeSelection{demand: d}
	}
	return &nodeSelection{demand: d, unnamed: &corev1.Node{}, known: s.acceptances(d.key)}
}

func (s *state) acceptances(key string) []acceptance {
	known := s.selections[key]
	if known == nil {
		if len(s.selections) >= mostSelections {
			clear(s.selections)
		}
		known = make([]acceptance, len(s.order))
		s.selections[key] = known
	}
	return known
}

// namesIn returns the only node names that terms can match, as for a pod of a DaemonSet, or nil if a term has no
// names. A node with one of the names need not match.
func namesIn(terms *corev1.NodeSelector) []string {
	names := []string{}
	for _, t := range terms.NodeSelectorTerms {
		i := slices.IndexFunc(t.MatchFields, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn
		})
		if i < 0 {
			return nil
		}
		names = append(names, t.MatchFields[i].Values...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (c *nodeSelection) accepts(n *nodeInfo) bool {
	if c.known == nil {
		return c.matches(n.node)
	}
	a := &c.known[n.at]
	if *a == unknown {
		*a = rejected
		if c.matches(n.node) {
			*a = accepted
		}
	}
	return *a == accepted
}

func (c *nodeSelection) matches(node *corev1.Node) bool {
	if c.unnamed != nil {
		c.unnamed.Labels = node.Labels
		node = c.unnamed
	}
	return c.required.Match(node)
}

func selected(c *cycle, n *nodeInfo) bool { return c.selection.accepts(n) }

package scheduler

import (
	"crypto/sha256"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/kind/nodeselector"
)

// mostSelections limits the selections whose acceptances are kept between cycles: each takes a byte for each node.
const mostSelections = 64

// acceptance is whether a node selector and a required node affinity accept a node. It is remembered until nodes
// change: pods of one workload ask the same of each node, and comparing labels takes longer than all other filters of
// an ordinary pod.
type acceptance uint8

const (
	unknown acceptance = iota
	accepted
	rejected
)

// demand is what a pod asks of nodes by their labels and names, which may take long to find out.
type demand struct {
	required nodeselector.Required
	key      string // a digest, the same for pods that ask for the same
	named    bool   // also by their names
	// names are the only nodes that may be chosen; nil: any.
	names []string
}

// demands returns what a pod asks of nodes; nil: nothing. That does not change, and is kept while the pod waits.
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

// nodeSelection is what a pod asks of nodes in one attempt.
type nodeSelection struct {
	*demand
	// unnamed gets the labels of each node that is matched with required, unless required asks for names, for which
	// upstream makes a map for each node. Nil: the node itself is matched.
	unnamed *corev1.Node
	// known are the acceptances, as in state.order; nil if the pod asks for names, which others hardly ask for.
	known []acceptance
}

// selectionOf returns what a pod asks of nodes; nil: nothing.
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

// acceptances returns what is known of a selection.
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

// namesIn returns the names of nodes without which no term matches, or nil if a term does not ask for names; as a pod
// of a DaemonSet asks for one. A node with one of them need not match.
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

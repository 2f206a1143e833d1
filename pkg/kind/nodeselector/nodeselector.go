// Package nodeselector decides which nodes a pod's selector and affinity accept, with upstream's nodeaffinity package.
// Upstream sorts all requirements of a term again for each requirement: 20,000 of them, half a megabyte, take several
// seconds. Here the time is proportional to their number. The functions are pure.
package nodeselector

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// chunk is the number of a term's requirements passed to upstream's package at a time.
const chunk = 16

// term is a NodeSelectorTerm: a node has to match all of its parts.
type term []*nodeaffinity.NodeSelector

// parse returns nil for a term without requirements, which matches no node.
func parse(t *corev1.NodeSelectorTerm) (out term, err error) {
	add := func(part corev1.NodeSelectorTerm) {
		if err != nil {
			return
		}
		var s *nodeaffinity.NodeSelector
		s, err = nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{part}})
		out = append(out, s)
	}
	if len(t.MatchFields) > 0 {
		add(corev1.NodeSelectorTerm{MatchFields: t.MatchFields})
	}
	for part := range slices.Chunk(t.MatchExpressions, chunk) {
		add(corev1.NodeSelectorTerm{MatchExpressions: part})
	}
	return out, err
}

func (t term) match(n *corev1.Node) bool {
	return len(t) > 0 && !slices.ContainsFunc(t, func(part *nodeaffinity.NodeSelector) bool { return !part.Match(n) })
}

// Required is the set of nodes that a pod requires. The zero value accepts every node.
type Required struct {
	labels nodeaffinity.RequiredNodeAffinity
	terms  []term // one of them has to match; nil: no affinity
}

// RequiredOf returns the requirements of a selector and an affinity. A term that cannot be parsed matches no node.
func RequiredOf(selector map[string]string, affinity *corev1.Affinity) Required {
	r := Required{labels: nodeaffinity.NewRequiredNodeAffinity(selector, nil)}
	if affinity == nil || affinity.NodeAffinity == nil ||
		affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return r
	}
	r.terms = []term{}
	for i := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if t, err := parse(&affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[i]); err ==
			nil {
			r.terms = append(r.terms, t)
		}
	}
	return r
}

// Match reports whether a node is accepted.
func (r Required) Match(n *corev1.Node) bool {
	ok, err := r.labels.Match(n)
	return ok && err == nil && (r.terms == nil || slices.ContainsFunc(r.terms, func(t term) bool { return t.match(n) }))
}

// Preferred are a pod's node preferences.
type Preferred []preference

type preference struct {
	term
	weight int64
}

// PreferredOf returns the preferences in terms. It fails if a term cannot be parsed.
func PreferredOf(terms []corev1.PreferredSchedulingTerm) (Preferred, error) {
	var out Preferred
	for i := range terms {
		if terms[i].Weight == 0 {
			continue
		}
		t, err := parse(&terms[i].Preference)
		if err != nil {
			return nil, err
		}
		out = append(out, preference{t, int64(terms[i].Weight)})
	}
	return out, nil
}

// Score is the sum of the weights of the terms that match a node.
func (p Preferred) Score(n *corev1.Node) (sum int64) {
	for i := range p {
		if p[i].match(n) {
			sum += p[i].weight
		}
	}
	return sum
}

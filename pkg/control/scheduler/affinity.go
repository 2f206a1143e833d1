package scheduler

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// term is a parsed affinity or anti-affinity term.
type term struct {
	selector   labels.Selector
	namespaces []string        // namespaces by name
	selected   labels.Selector // namespaces by label; nil: none
	key        string
	weight     int64 // of preferred terms
	// id is equal for terms that differ only in weight.
	id string
}

// fixed reports whether the selected pods do not depend on the labels of namespaces.
func (t *term) fixed() bool { return t.selected == nil || t.selected.Empty() }

// podAffinity is a pod's parsed affinity and anti-affinity. It is nil if the pod has neither.
type podAffinity struct {
	required, requiredAnti   []term
	preferred, preferredAnti []term
}

func newPodAffinity(p *corev1.Pod) *podAffinity {
	a := p.Spec.Affinity
	if a == nil || a.PodAffinity == nil && a.PodAntiAffinity == nil {
		return nil
	}
	out := &podAffinity{}
	if n := a.PodAffinity; n != nil {
		out.required = parseTerms(p, n.RequiredDuringSchedulingIgnoredDuringExecution)
		out.preferred = weighted(p, n.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if n := a.PodAntiAffinity; n != nil {
		out.requiredAnti = parseTerms(p, n.RequiredDuringSchedulingIgnoredDuringExecution)
		out.preferredAnti = weighted(p, n.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return out
}

func parseTerms(p *corev1.Pod, in []corev1.PodAffinityTerm) []term {
	out := make([]term, 0, len(in))
	for i := range in {
		out = append(out, newTerm(p, &in[i]))
	}
	return out
}

func weighted(p *corev1.Pod, in []corev1.WeightedPodAffinityTerm) []term {
	out := make([]term, 0, len(in))
	for i := range in {
		t := newTerm(p, &in[i].PodAffinityTerm)
		t.weight = int64(in[i].Weight)
		out = append(out, t)
	}
	return out
}

func newTerm(p *corev1.Pod, in *corev1.PodAffinityTerm) term {
	t := term{
		selector:   selectorOf(withLabelKeys(in.LabelSelector, p.Labels, in.MatchLabelKeys, in.MismatchLabelKeys)),
		namespaces: in.Namespaces,
		key:        in.TopologyKey,
	}
	if in.NamespaceSelector != nil {
		t.selected = selectorOf(in.NamespaceSelector)
	} else if len(t.namespaces) == 0 {
		t.namespaces = []string{p.Namespace}
	}
	t.id = strings.Join([]string{
		t.key, strings.Join(slices.Sorted(slices.Values(t.namespaces)), ","), selectorID(t.selected), selectorID(t.selector),
	}, "|")
	return t
}

// selectorID is equal for equal selectors. Selectors of nothing and of everything have different IDs.
func selectorID(s labels.Selector) string {
	switch {
	case s == nil:
		return "-"
	case s.Empty():
		return "*"
	}
	return s.String()
}

// selectorOf parses a selector. An invalid one, which validation rejects, selects nothing.
func selectorOf(s *metav1.LabelSelector) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return out
}

// withLabelKeys narrows a selector to pods with the same or different values of some labels (KEP-3243, KEP-3633).
// The API server does so on admission, too; doing it twice has no effect.
func withLabelKeys(s *metav1.LabelSelector, l map[string]string, same, other []string) *metav1.LabelSelector {
	if s == nil || len(same)+len(other) == 0 {
		return s
	}
	out := s.DeepCopy()
	add := func(keys []string, op metav1.LabelSelectorOperator) {
		for _, k := range keys {
			if v, ok := l[k]; ok {
				out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{
					Key: k, Operator: op, Values: []string{v},
				})
			}
		}
	}
	add(same, metav1.LabelSelectorOpIn)
	add(other, metav1.LabelSelectorOpNotIn)
	return out
}

func (t *term) matches(s *state, p *corev1.Pod) bool {
	in := slices.Contains(t.namespaces, p.Namespace)
	if !in && t.selected != nil {
		in = t.selected.Empty() || t.selected.Matches(labels.Set(s.namespaceLabels(p.Namespace)))
	}
	return in && t.selector.Matches(labels.Set(p.Labels))
}

// podAffinityCounts holds the pod counts of one cycle for required inter-pod affinity.
type podAffinityCounts struct {
	affinity     []*tally // per required term: pods that match all required terms, as upstream
	antiAffinity []*tally // per required term
	// forbidden contains the terms of existing pods' anti-affinity that match the pod.
	forbidden []*termGroup
	anyNear   bool
}

// preparePodAffinity computes the counts. It returns false if no required term concerns the pod.
func preparePodAffinity(c *cycle) bool {
	a := c.affinity
	b := &podAffinityCounts{}
	for _, g := range c.state.existing().forbid {
		if g.matches(c.state, c.pod) {
			b.forbidden = append(b.forbidden, g)
		}
	}
	asks := a != nil && len(a.required)+len(a.requiredAnti) > 0
	if !asks && len(b.forbidden) == 0 {
		return false
	}
	c.podAffinity = b
	if !asks {
		return true
	}
	for i := range a.required {
		t := c.tallyOf(a.required[i].key, a.required...)
		b.affinity = append(b.affinity, t)
		b.anyNear = b.anyNear || t.total > 0
	}
	for i := range a.requiredAnti {
		b.antiAffinity = append(b.antiAffinity, c.tallyOf(a.requiredAnti[i].key, a.requiredAnti[i]))
	}
	return true
}

// tallyOf counts, by the values of a topology key, the pods that match all terms.
func (c *cycle) tallyOf(key string, all ...term) *tally {
	var name strings.Builder
	name.WriteString("affinity " + key)
	fixed := true
	for i := range all {
		name.WriteString(" " + all[i].id)
		fixed = fixed && all[i].fixed()
	}
	s := c.state
	of := func() *tally {
		return &tally{key: key, matches: func(p *corev1.Pod) bool {
			for i := range all {
				if !all[i].matches(s, p) {
					return false
				}
			}
			return true
		}}
	}
	if !fixed {
		return s.tally("", of)
	}
	return s.tally(name.String(), of)
}

// own copies the counts, so that preemption can change them in this cycle.
func (b *podAffinityCounts) own() {
	for _, all := range [][]*tally{b.affinity, b.antiAffinity} {
		for i := range all {
			all[i] = all[i].clone()
		}
	}
	for i, g := range b.forbidden {
		c := *g
		c.values = maps.Clone(g.values)
		b.forbidden[i] = &c
	}
}

// Messages of InterPodAffinity.
var (
	affinityRefusal     = []string{"node(s) didn't match pod affinity rules"}
	antiAffinityRefusal = []string{"node(s) didn't match pod anti-affinity rules"}
	existingPodsRefusal = []string{"node(s) didn't satisfy existing pods anti-affinity rules"}
)

// violatedAffinity returns the message for the affinity rule that the node violates.
func violatedAffinity(c *cycle, n *nodeInfo) []string {
	b := c.podAffinity
	if !c.affinitySatisfied(n) {
		return affinityRefusal
	}
	for _, t := range b.antiAffinity {
		if v, ok := t.domains.of(n); ok && t.pods[v] > 0 {
			return antiAffinityRefusal
		}
	}
	for _, g := range b.forbidden {
		if v, ok := g.domains.of(n); ok && g.values[v] > 0 {
			return existingPodsRefusal
		}
	}
	return nil
}

func (c *cycle) affinitySatisfied(n *nodeInfo) bool {
	b := c.podAffinity
	met := true
	for _, t := range b.affinity {
		v, ok := t.domains.of(n)
		if !ok {
			return false
		}
		met = met && t.pods[v] > 0
	}
	if met || b.anyNear {
		return met
	}
	// The first pod of a group with affinity to itself may run anywhere.
	for i := range c.affinity.required {
		if !c.affinity.required[i].matches(c.state, c.pod) {
			return false
		}
	}
	return true
}

// preference adds weight to a node's score for each matching pod in the node's domain.
type preference struct {
	domains *domains
	weight  int64
	pods    map[domain]int
}

// preparePodPreferences collects the preferred affinity of the pod, and of existing pods towards it.
func preparePodPreferences(c *cycle) bool {
	prefer := func(d *domains, weight int64, pods map[domain]int) {
		if len(pods) > 0 {
			c.preferences = append(c.preferences, preference{d, weight, pods})
		}
	}
	c.preferences = nil
	for key, g := range c.state.existing().prefer {
		if g.matches(c.state, c.pod) {
			sign := int64(1)
			if key.kind == repels {
				sign = -1
			}
			prefer(g.domains, sign*key.weight, g.values)
		}
	}
	if a := c.affinity; a != nil {
		for i := range a.preferred {
			t := c.tallyOf(a.preferred[i].key, a.preferred[i])
			prefer(t.domains, a.preferred[i].weight, t.pods)
		}
		for i := range a.preferredAnti {
			t := c.tallyOf(a.preferredAnti[i].key, a.preferredAnti[i])
			prefer(t.domains, -a.preferredAnti[i].weight, t.pods)
		}
	}
	return len(c.preferences) > 0
}

func podPreferences(c *cycle, n *nodeInfo) (sum int64) {
	for i := range c.preferences {
		p := &c.preferences[i]
		if v, ok := p.domains.of(n); ok {
			sum += p.weight * int64(p.pods[v])
		}
	}
	return sum
}

func labelKey(l map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(l)) {
		b.WriteString(k)
		b.WriteByte('=')
		b.WriteString(l[k])
		b.WriteByte(',')
	}
	return b.String()
}

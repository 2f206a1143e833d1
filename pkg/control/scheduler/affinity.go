package scheduler

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// term is one affinity or anti-affinity term, parsed.
type term struct {
	selector   labels.Selector
	namespaces []string        // matched by name
	selected   labels.Selector // or by label; nil: none
	key        string
	weight     int64 // of preferences
	// id is the same for terms that differ in nothing but their weight.
	id string
}

// fixed reports whether what the term selects depends on pods only, and not on the labels of namespaces.
func (t *term) fixed() bool { return t.selected == nil || t.selected.Empty() }

// podAffinity is a pod's parsed affinity and anti-affinity; nil if it has none.
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

// selectorID is the same for equal selectors. It also tells apart those that select nothing and everything.
func selectorID(s labels.Selector) string {
	switch {
	case s == nil:
		return "-"
	case s.Empty():
		return "*"
	}
	return s.String()
}

// selectorOf parses a selector; an invalid one, which validation rejects, selects nothing.
func selectorOf(s *metav1.LabelSelector) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return out
}

// withLabelKeys narrows a selector to pods with the same (or other) values of some labels (KEP-3243, KEP-3633).
// The API server does this on admission too; repeating it has no effect.
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

// podAffinityCounts counts the pods that are relevant to one cycle's inter-pod affinity.
type podAffinityCounts struct {
	affinity     []*tally // per required term: the pods that match all of them, as upstream
	antiAffinity []*tally // per required term
	// forbidden are the existing pods' terms that the pod matches.
	forbidden []*termGroup
	anyNear   bool
}

// preparePodAffinity computes the counts.
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

// tallyOf counts the pods that match all of the terms by the values of a topology key.
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

// own copies the counts for this cycle, so that it can change them.
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

func affinityMet(c *cycle, n *nodeInfo) bool { return violatedRule(c, n) == "" }

func explainPodAffinity(c *cycle, n *nodeInfo) []string { return []string{violatedRule(c, n)} }

// violatedRule is upstream's message for the affinity rule that the node violates, or "".
func violatedRule(c *cycle, n *nodeInfo) string {
	b := c.podAffinity
	if !c.affinitySatisfied(n) {
		return "node(s) didn't match pod affinity rules"
	}
	for _, t := range b.antiAffinity {
		if v, ok := t.domains.of(n); ok && t.pods[v] > 0 {
			return "node(s) didn't match pod anti-affinity rules"
		}
	}
	for _, g := range b.forbidden {
		if v, ok := g.domains.of(n); ok && g.values[v] > 0 {
			return "node(s) didn't satisfy existing pods anti-affinity rules"
		}
	}
	return ""
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
	// The first pod of a group with affinity to itself may be placed anywhere.
	for i := range c.affinity.required {
		if !c.affinity.required[i].matches(c.state, c.pod) {
			return false
		}
	}
	return true
}

// preference is what a node's score gets for each pod that is near by one term.
type preference struct {
	domains *domains
	weight  int64
	pods    map[domain]int
}

// preparePodPreferences collects the preferred pod affinity of this pod and of the existing pods.
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

// podPreferences sums the pod preferences for the node's topology values.
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

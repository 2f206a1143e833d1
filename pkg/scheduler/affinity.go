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
	selected   labels.Selector // or by their labels; nil: not
	key        string
	weight     int64 // of preferences
}

// podAffinity is what a pod asks of the pods near it; nil if nothing.
type podAffinity struct {
	near, apart             []term // required
	preferNear, preferApart []term
}

func newPodAffinity(p *corev1.Pod) *podAffinity {
	a := p.Spec.Affinity
	if a == nil || a.PodAffinity == nil && a.PodAntiAffinity == nil {
		return nil
	}
	out := &podAffinity{}
	if n := a.PodAffinity; n != nil {
		out.near = terms(p, n.RequiredDuringSchedulingIgnoredDuringExecution)
		out.preferNear = weighted(p, n.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if n := a.PodAntiAffinity; n != nil {
		out.apart = terms(p, n.RequiredDuringSchedulingIgnoredDuringExecution)
		out.preferApart = weighted(p, n.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return out
}

func terms(p *corev1.Pod, in []corev1.PodAffinityTerm) []term {
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
	t := term{selector: selectorOf(withLabelKeys(in.LabelSelector, p.Labels, in.MatchLabelKeys, in.MismatchLabelKeys)), namespaces: in.Namespaces, key: in.TopologyKey}
	if in.NamespaceSelector != nil {
		t.selected = selectorOf(in.NamespaceSelector)
	} else if len(t.namespaces) == 0 {
		t.namespaces = []string{p.Namespace}
	}
	return t
}

// selectorOf parses a selector; a wrong one, which validation would not have let in, selects nothing.
func selectorOf(s *metav1.LabelSelector) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return out
}

// withLabelKeys narrows a selector to pods with the same (or other) values of some labels (KEP-3243, KEP-3633).
// The server does so itself when it admits pod affinity; repeating it changes nothing.
func withLabelKeys(s *metav1.LabelSelector, l map[string]string, same, other []string) *metav1.LabelSelector {
	if s == nil || len(same)+len(other) == 0 {
		return s
	}
	out := s.DeepCopy()
	add := func(keys []string, op metav1.LabelSelectorOperator) {
		for _, k := range keys {
			if v, ok := l[k]; ok {
				out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{Key: k, Operator: op, Values: []string{v}})
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

// place is a value of a topology key: a zone, a node.
type place struct{ key, value string }

// between is what one cycle knows of the pods that matter for its pod's affinity.
type between struct {
	near      []map[string]int // per required term: matching pods by topology value
	apart     []map[string]int
	forbidden map[place]int // by existing pods' anti-affinity
	anyNear   bool
}

// prepareBetween counts. It looks at all pods only if this pod asks for it; else only at
// those that have required anti-affinity themselves.
func prepareBetween(c *cycle) bool {
	a := c.affinity
	asks := a != nil && len(a.near)+len(a.apart) > 0
	if !asks && len(c.state.apart) == 0 {
		return false
	}
	b := &between{forbidden: map[place]int{}}
	c.between = b
	for p := range c.state.apart {
		for i := range p.affinity.apart {
			t := &p.affinity.apart[i]
			if v, ok := topology(p.node, t.key); ok && t.matches(c.state, c.pod) {
				b.forbidden[place{t.key, v}]++
			}
		}
	}
	if asks {
		b.near, b.apart = make([]map[string]int, len(a.near)), make([]map[string]int, len(a.apart))
		for i := range b.near {
			b.near[i] = map[string]int{}
		}
		for i := range b.apart {
			b.apart[i] = map[string]int{}
		}
		for _, p := range c.state.pods {
			b.count(c, p, 1)
		}
	}
	return asks || len(b.forbidden) > 0
}

func (b *between) count(c *cycle, p *podInfo, sign int) {
	if p.node == nil || p.node.node == nil {
		return
	}
	// A pod is near only if it matches all terms, as upstream has it.
	all := len(b.near) > 0
	for i := range b.near {
		all = all && c.affinity.near[i].matches(c.state, p.pod)
	}
	if all {
		for i := range b.near {
			if v, ok := topology(p.node, c.affinity.near[i].key); ok {
				b.near[i][v] += sign
				b.anyNear = true
			}
		}
	}
	for i := range b.apart {
		if v, ok := topology(p.node, c.affinity.apart[i].key); ok && c.affinity.apart[i].matches(c.state, p.pod) {
			b.apart[i][v] += sign
		}
	}
}

func topology(n *nodeInfo, key string) (string, bool) {
	if n == nil || n.node == nil {
		return "", false
	}
	v, ok := n.node.Labels[key]
	return v, ok
}

func affinityMet(c *cycle, n *nodeInfo) bool { return unfriendly(c, n) == "" }

func explainBetween(c *cycle, n *nodeInfo) []string { return []string{unfriendly(c, n)} }

// unfriendly says which rule keeps the pod off the node, or "".
func unfriendly(c *cycle, n *nodeInfo) string {
	b := c.between
	if !c.nearEnough(n) {
		return "node(s) didn't match pod affinity rules"
	}
	for i := range b.apart {
		if v, ok := topology(n, c.affinity.apart[i].key); ok && b.apart[i][v] > 0 {
			return "node(s) didn't match pod anti-affinity rules"
		}
	}
	for at, count := range b.forbidden {
		if v, ok := topology(n, at.key); ok && v == at.value && count > 0 {
			return "node(s) didn't satisfy existing pods anti-affinity rules"
		}
	}
	return ""
}

func (c *cycle) nearEnough(n *nodeInfo) bool {
	b := c.between
	met := true
	for i := range b.near {
		v, ok := topology(n, c.affinity.near[i].key)
		if !ok {
			return false
		}
		met = met && b.near[i][v] > 0
	}
	if met || b.anyNear {
		return met
	}
	// The first of a group that wants to be near itself may go anywhere.
	for i := range c.affinity.near {
		if !c.affinity.near[i].matches(c.state, c.pod) {
			return false
		}
	}
	return true
}

// preparePodPreferences adds up the preferred pod affinity of this pod and of those that are there.
func preparePodPreferences(c *cycle) bool {
	a := c.affinity
	asks := a != nil && len(a.preferNear)+len(a.preferApart) > 0
	if !asks && len(c.state.prefers) == 0 {
		return false
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
	c.preferences = sums
	return len(sums) > 0
}

// podPreferences is what the preferences of pods say of the node's places.
func podPreferences(c *cycle, n *nodeInfo) (sum int64) {
	for at, w := range c.preferences {
		if v, ok := topology(n, at.key); ok && v == at.value {
			sum += w
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

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
}

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
		out.required = terms(p, n.RequiredDuringSchedulingIgnoredDuringExecution)
		out.preferred = weighted(p, n.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if n := a.PodAntiAffinity; n != nil {
		out.requiredAnti = terms(p, n.RequiredDuringSchedulingIgnoredDuringExecution)
		out.preferredAnti = weighted(p, n.PreferredDuringSchedulingIgnoredDuringExecution)
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

// topologyPair is a topology key with a value, such as a zone or a hostname.
type topologyPair struct{ key, value string }

// podAffinityCounts counts the pods that are relevant to one cycle's inter-pod affinity.
type podAffinityCounts struct {
	affinity     []map[string]int // per required term: matching pods by topology value
	antiAffinity []map[string]int
	forbidden    map[topologyPair]int // by existing pods' anti-affinity
	anyNear      bool
}

// preparePodAffinity computes the counts. It visits all pods only if this pod has required terms; otherwise only
// the pods that have required anti-affinity themselves.
func preparePodAffinity(c *cycle) bool {
	a := c.affinity
	asks := a != nil && len(a.required)+len(a.requiredAnti) > 0
	if !asks && len(c.state.antiAffinity) == 0 {
		return false
	}
	b := &podAffinityCounts{forbidden: map[topologyPair]int{}}
	c.podAffinity = b
	for p := range c.state.antiAffinity {
		for i := range p.affinity.requiredAnti {
			t := &p.affinity.requiredAnti[i]
			if v, ok := topology(p.node, t.key); ok && t.matches(c.state, c.pod) {
				b.forbidden[topologyPair{t.key, v}]++
			}
		}
	}
	if asks {
		b.affinity, b.antiAffinity = make([]map[string]int, len(a.required)), make([]map[string]int, len(a.requiredAnti))
		for i := range b.affinity {
			b.affinity[i] = map[string]int{}
		}
		for i := range b.antiAffinity {
			b.antiAffinity[i] = map[string]int{}
		}
		for _, p := range c.state.pods {
			b.count(c, p, 1)
		}
	}
	return asks || len(b.forbidden) > 0
}

func (b *podAffinityCounts) count(c *cycle, p *podInfo, sign int) {
	if p.node == nil || p.node.node == nil {
		return
	}
	// A pod counts only if it matches all terms, as upstream.
	all := len(b.affinity) > 0
	for i := range b.affinity {
		all = all && c.affinity.required[i].matches(c.state, p.pod)
	}
	if all {
		for i := range b.affinity {
			if v, ok := topology(p.node, c.affinity.required[i].key); ok {
				b.affinity[i][v] += sign
				b.anyNear = true
			}
		}
	}
	for i := range b.antiAffinity {
		if v, ok := topology(p.node, c.affinity.requiredAnti[i].key); ok && c.affinity.requiredAnti[i].matches(c.state, p.pod) {
			b.antiAffinity[i][v] += sign
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

func affinityMet(c *cycle, n *nodeInfo) bool { return violatedRule(c, n) == "" }

func explainPodAffinity(c *cycle, n *nodeInfo) []string { return []string{violatedRule(c, n)} }

// violatedRule is upstream's message for the affinity rule that the node violates, or "".
func violatedRule(c *cycle, n *nodeInfo) string {
	b := c.podAffinity
	if !c.affinitySatisfied(n) {
		return "node(s) didn't match pod affinity rules"
	}
	for i := range b.antiAffinity {
		if v, ok := topology(n, c.affinity.requiredAnti[i].key); ok && b.antiAffinity[i][v] > 0 {
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

func (c *cycle) affinitySatisfied(n *nodeInfo) bool {
	b := c.podAffinity
	met := true
	for i := range b.affinity {
		v, ok := topology(n, c.affinity.required[i].key)
		if !ok {
			return false
		}
		met = met && b.affinity[i][v] > 0
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

// preparePodPreferences sums up the preferred pod affinity of this pod and of the existing pods.
func preparePodPreferences(c *cycle) bool {
	a := c.affinity
	asks := a != nil && len(a.preferred)+len(a.preferredAnti) > 0
	if !asks && len(c.state.prefers) == 0 {
		return false
	}
	sums := map[topologyPair]int64{}
	add := func(terms []term, of *podInfo, about *corev1.Pod, sign int64) {
		for i := range terms {
			if v, ok := topology(of.node, terms[i].key); ok && terms[i].matches(c.state, about) {
				sums[topologyPair{terms[i].key, v}] += sign * terms[i].weight
			}
		}
	}
	for p := range c.state.prefers {
		add(p.affinity.preferred, p, c.pod, 1)
		add(p.affinity.preferredAnti, p, c.pod, -1)
		for i := range p.affinity.required { // required affinity also attracts, with weight 1
			if t := &p.affinity.required[i]; t.matches(c.state, c.pod) {
				if v, ok := topology(p.node, t.key); ok {
					sums[topologyPair{t.key, v}]++
				}
			}
		}
	}
	if asks {
		for _, p := range c.state.pods {
			add(a.preferred, p, p.pod, 1)
			add(a.preferredAnti, p, p.pod, -1)
		}
	}
	c.preferences = sums
	return len(sums) > 0
}

// podPreferences sums the pod preferences for the node's topology values.
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

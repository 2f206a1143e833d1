package netpolicy

import (
	"encoding/binary"
	"iter"
	"maps"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// tenant resolves the policies of one namespace, within its limits.
type tenant struct {
	sets
	ends    map[*pod]ends
	over    *excess // the first excess; resolving stops after it
	cluster *cluster
	name    string
	limits  limits
	left    limits
	policy  *networkingv1.NetworkPolicy // the policy being resolved
	matches map[string][]*pod           // selected pods, by set name
	// compared are the namespaces whose pods were compared with selectors, byLabels is true if their labels were.
	compared map[string]bool
	byLabels bool
}

// changes are the differences between two clusters.
type changes struct {
	before         *compiled
	policies, pods map[string]bool // namespaces
	labels         bool            // of any namespace
}

func changesSince(before *compiled, now *cluster) changes {
	d := changes{before: before, policies: map[string]bool{}, pods: map[string]bool{}}
	if before == nil {
		return d
	}
	was := before.cluster
	for _, from := range []struct{ a, b *cluster }{{was, now}, {now, was}} {
		for name, p := range from.a.policies {
			if from.b.policies[name] != p {
				d.policies[name.Namespace] = true
			}
		}
		for namespace, pods := range from.a.pods {
			if !maps.Equal(pods, from.b.pods[namespace]) {
				d.pods[namespace] = true
			}
		}
	}
	d.labels = !maps.EqualFunc(was.namespaces, now.namespaces, func(a, b labels.Set) bool { return maps.Equal(a, b) })
	return d
}

// unchanged returns the result of a namespace, or nil if it may differ now.
func (d changes) unchanged(namespace string) *tenant {
	if d.before == nil {
		return nil
	}
	t := d.before.tenants[namespace]
	if t == nil || d.policies[namespace] || t.byLabels && d.labels {
		return nil
	}
	for namespace := range t.compared {
		if d.pods[namespace] {
			return nil
		}
	}
	return t
}

// policy is a resolved policy. The rules of a direction that it does not isolate are nil.
type policy struct {
	number          int
	ingress, egress []allowed
	in, out         bool
}

// allowed is one rule of a policy: each peer with each port.
type allowed struct {
	peers []Rule // without ports; one empty rule stands for all peers
	ports []portRange
	// endpoints is the set of the peers' named ports, for an egress rule.
	endpoints string
	any       bool // all ports are allowed
}

// portRange is a protocol with a range of ports, or with a name whose ports differ from pod to pod.
type portRange struct {
	protocol byte
	from, to uint16
	name     string
}

func newTenant(c *cluster, namespace string, l limits) *tenant {
	return &tenant{
		sets:    newSets(),
		ends:    map[*pod]ends{},
		cluster: c,
		name:    namespace,
		limits:  l,
		left:    l,
		matches: map[string][]*pod{},

		compared: map[string]bool{namespace: true},
	}
}

// resolve computes the chains of the namespace's pods. Over a limit it isolates the selected pods or, if not all
// selectors were evaluated, all pods of the namespace.
func (t *tenant) resolve(list []*networkingv1.NetworkPolicy) {
	selected := map[*pod][]*policy{}
	var all []*policy
	for i, p := range list {
		t.policy = p
		one := &policy{
			number: i,
			in:     slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress),
			out:    slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress),
		}
		all = append(all, one)
		pods := t.cluster.pods[t.name]
		selects, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err != nil {
			continue // validation rejects such a policy
		}
		if !t.spend((1 + len(pods)) * weight(&p.Spec.PodSelector)) {
			t.isolate(pods)
			return
		}
		for _, pod := range pods {
			if selects.Matches(pod.labels) {
				selected[pod] = append(selected[pod], one)
			}
		}
	}
	for i, p := range list {
		t.policy = p
		if all[i].in {
			for _, rule := range p.Spec.Ingress {
				all[i].ingress = append(all[i].ingress, t.allow(rule.From, rule.Ports, false))
			}
		}
		if all[i].out {
			for _, rule := range p.Spec.Egress {
				all[i].egress = append(all[i].egress, t.allow(rule.To, rule.Ports, true))
			}
		}
	}
	known := map[string]ends{}
	for p, policies := range selected {
		t.ends[p] = t.endsOf(p, policies, list, known)
	}
	if t.over == nil {
		return
	}
	t.sets = newSets()
	for p, at := range t.ends {
		t.deny(&at.ingress, &at.egress)
		t.ends[p] = at
	}
}

func (t *tenant) isolate(pods map[string]*pod) {
	for _, p := range pods {
		t.ends[p] = ends{t.chain("in", nil), t.chain("out", nil)}
	}
}

// endsOf returns the chains of a pod. Pods with the same policies and ports share them.
func (t *tenant) endsOf(p *pod, policies []*policy, list []*networkingv1.NetworkPolicy, known map[string]ends) ends {
	var key []byte
	for _, one := range policies {
		key = binary.AppendUvarint(key, uint64(one.number)+1)
	}
	key = append(key, 0)
	for _, port := range p.ports {
		key = binary.BigEndian.AppendUint16(append(key, port.protocol), port.port)
		key = append(append(key, port.name...), 0)
	}
	if at, there := known[string(key)]; there {
		return at
	}
	var at ends
	for _, one := range policies {
		if one.in {
			at.ingress = "in-"
		}
		if one.out {
			at.egress = "out-"
		}
	}
	var ingress, egress []Rule
	for _, one := range policies {
		t.policy = list[one.number]
		if !t.spend(1 + len(one.ingress) + len(one.egress)) {
			return at // over the limit: resolve replaces the chains
		}
		for i := range one.ingress {
			ingress = t.rules(&one.ingress[i], p, ingress)
		}
		for i := range one.egress {
			egress = t.rules(&one.egress[i], p, egress)
		}
	}
	if at.ingress != "" {
		at.ingress = t.keep("in", ingress)
	}
	if at.egress != "" {
		at.egress = t.keep("out", egress)
	}
	known[string(key)] = at
	return at
}

// keep adds a chain, unless one with these rules exists, and returns its name.
func (t *tenant) keep(direction string, rules []Rule) string {
	before := len(t.chains)
	name := t.chain(direction, rules)
	if len(t.chains) > before {
		t.hold(len(rules), ruleSize)
	}
	return name
}

// rules appends the rules that a allows for pod p. Port names in ingress rules refer to the ports of p.
func (t *tenant) rules(a *allowed, p *pod, to []Rule) []Rule {
	for _, peer := range a.peers {
		if !t.spend(1 + len(a.ports)) {
			return to
		}
		if a.any {
			to = append(to, peer)
		}
		for _, port := range a.ports {
			rule := peer
			rule.Protocol, rule.From, rule.To = port.protocol, port.from, port.to
			if port.name == "" {
				to = append(to, rule)
				continue
			}
			if !t.spend(len(p.ports)) {
				return to
			}
			for _, n := range p.named(port) {
				rule.From, rule.To = n, n
				to = append(to, rule)
			}
		}
	}
	if a.endpoints != "" {
		to = append(to, Rule{Endpoints: a.endpoints})
	}
	return to
}

func (t *tenant) allow(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort,
	egress bool) allowed {
	var out allowed
	if !t.spend(1 + len(peers) + len(ports)) {
		return out
	}
	var selected []networkingv1.NetworkPolicyPeer
	var blocks []Range
	for _, p := range peers {
		if p.IPBlock == nil {
			selected = append(selected, p)
		} else if t.spend(len(p.IPBlock.Except)) {
			blocks = append(blocks, rangesOf(p.IPBlock)...)
		}
	}
	if len(peers) == 0 {
		out.peers = []Rule{{}}
		selected = []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}} // for named ports
	} else if len(selected) > 0 {
		out.peers = append(out.peers, Rule{Addresses: t.addressSet(selected)})
	}
	if len(blocks) > 0 {
		blocks = union(blocks)
		name := "b" + digest(blocks)
		if _, known := t.blocks[name]; !known && t.hold(len(blocks), rangeSize) {
			t.blocks[name] = blocks
		}
		out.peers = append(out.peers, Rule{Blocks: name})
	}
	out.any = len(ports) == 0
	var named []portRange
	for _, p := range ports {
		if r := rangeOf(p); r.name == "" || !egress {
			out.ports = append(out.ports, r)
		} else {
			named = append(named, r)
		}
	}
	if len(named) > 0 {
		out.endpoints = t.endpointSet(selected, named)
	}
	return out
}

func (t *tenant) addressSet(peers []networkingv1.NetworkPolicyPeer) string {
	name, pods := t.selected(peers)
	if _, known := t.addresses[name]; !known && t.hold(len(pods), addressSize) {
		t.addresses[name] = addressesOf(pods)
	}
	return name
}

func (t *tenant) endpointSet(peers []networkingv1.NetworkPolicyPeer, named []portRange) string {
	of, pods := t.selected(peers)
	name := "e" + digest([]any{of, portNames(named)})
	if _, known := t.endpoints[name]; known {
		return name
	}
	work := 0
	for _, p := range pods {
		work += (1 + len(p.ports)) * len(named)
	}
	if !t.spend(work) {
		return name
	}
	if all := endpointsOf(pods, named); t.hold(len(all), destinationSize) {
		t.endpoints[name] = all
	}
	return name
}

func portNames(named []portRange) (out []any) {
	for _, n := range named {
		out = append(out, n.protocol, n.name)
	}
	return out
}

// selected returns the pods that peers select and a name for them. It resolves equal peers once.
func (t *tenant) selected(peers []networkingv1.NetworkPolicyPeer) (string, []*pod) {
	name := "p" + digest([]any{t.name, peers})
	pods, known := t.matches[name]
	if !known {
		pods = t.matching(peers)
		t.matches[name] = pods
	}
	return name, pods
}

func (t *tenant) matching(peers []networkingv1.NetworkPolicyPeer) []*pod {
	var out []*pod
	seen := map[*pod]bool{}
	for _, p := range peers {
		if !t.spend(weight(p.PodSelector)) {
			return nil
		}
		selector := labels.Everything()
		if p.PodSelector != nil {
			var err error
			if selector, err = metav1.LabelSelectorAsSelector(p.PodSelector); err != nil {
				continue
			}
		}
		names := t.namespaces(p.NamespaceSelector)
		for _, name := range names {
			t.compared[name] = true // before the limit ends the loop
		}
		for _, name := range names {
			pods := t.cluster.pods[name]
			if !t.spend(len(pods) * weight(p.PodSelector)) {
				return nil
			}
			for one := range t.candidates(name, p.PodSelector) {
				if one.address.IsValid() && !seen[one] && selector.Matches(one.labels) {
					seen[one] = true
					out = append(out, one)
				}
			}
		}
	}
	return out
}

// candidates returns the pods of a namespace that a selector may select.
func (t *tenant) candidates(namespace string, s *metav1.LabelSelector) iter.Seq[*pod] {
	if s != nil {
		for key, value := range s.MatchLabels {
			return slices.Values(t.cluster.withLabel(namespace, key+"="+value))
		}
	}
	return maps.Values(t.cluster.pods[namespace])
}

// namespaces returns the names of the namespaces that a selector selects; nil selects the policy's own.
func (t *tenant) namespaces(s *metav1.LabelSelector) []string {
	if s == nil {
		return []string{t.name}
	}
	t.byLabels = true
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil || !t.spend(len(t.cluster.namespaces)*weight(s)) {
		return nil
	}
	var out []string
	for name, labels := range t.cluster.namespaces {
		if selector.Matches(labels) {
			out = append(out, name)
		}
	}
	return out
}

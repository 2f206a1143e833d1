package netpolicy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// pod is what matters of a pod with a network of its own.
type pod struct {
	types.NamespacedName
	uid     types.UID
	node    string
	labels  labels.Set
	address netip.Addr // zero: none yet
	ports   []namedPort
}

type namedPort struct {
	name     string
	protocol byte
	port     uint16
}

// cluster is everything that rules are made from. Its objects must not change.
type cluster struct {
	policies   map[types.NamespacedName]*networkingv1.NetworkPolicy
	namespaces map[string]labels.Set
	pods       map[string]map[string]*pod // by namespace and name
}

// compiled is a cluster whose policies were resolved, for all nodes.
type compiled struct {
	policies  map[string][]*policy // by namespace, in the order of names
	addresses map[string][]netip.Addr
	blocks    map[string][]Range
	endpoints map[string][]Destination
}

// policy is a resolved policy. The rules of a direction that it does not isolate are nil.
type policy struct {
	selects         labels.Selector
	ingress, egress []allowed
	in, out         bool
}

// allowed is one rule of a policy: peers, each with each port.
type allowed struct {
	peers []Rule // without ports; one empty rule for all peers
	ports []portRange
	// endpoints are the named ports of an egress rule's peers.
	endpoints string
	any       bool // all ports
}

// portRange is a protocol with ports, or with a name that differs from pod to pod.
type portRange struct {
	protocol byte
	from, to uint16
	name     string
}

// compile resolves the policies. Its time is proportional to the number of rules and the pods in the namespaces they select.
func compile(c *cluster) *compiled {
	out := &compiled{policies: map[string][]*policy{}, addresses: map[string][]netip.Addr{}, blocks: map[string][]Range{}, endpoints: map[string][]Destination{}}
	for _, name := range slices.SortedFunc(maps.Keys(c.policies), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		p := c.policies[name]
		selects, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err != nil {
			continue // validation refuses it
		}
		r := &policy{selects: selects, in: slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress), out: slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)}
		if r.in {
			for _, rule := range p.Spec.Ingress {
				r.ingress = append(r.ingress, out.allow(c, name.Namespace, rule.From, rule.Ports, false))
			}
		}
		if r.out {
			for _, rule := range p.Spec.Egress {
				r.egress = append(r.egress, out.allow(c, name.Namespace, rule.To, rule.Ports, true))
			}
		}
		out.policies[name.Namespace] = append(out.policies[name.Namespace], r)
	}
	return out
}

// allow resolves one rule.
func (o *compiled) allow(c *cluster, namespace string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, egress bool) allowed {
	var out allowed
	var selected []networkingv1.NetworkPolicyPeer
	var blocks []Range
	for _, p := range peers {
		if p.IPBlock != nil {
			blocks = append(blocks, rangesOf(p.IPBlock)...)
		} else {
			selected = append(selected, p)
		}
	}
	var pods []*pod
	switch {
	case len(peers) == 0:
		out.peers = []Rule{{}}
		pods = c.matching(namespace, []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}})
	default:
		if len(selected) > 0 {
			pods = c.matching(namespace, selected)
			name := "p" + digest([]any{namespace, selected})
			o.addresses[name] = addressesOf(pods)
			out.peers = append(out.peers, Rule{Addresses: name})
		}
		if len(blocks) > 0 {
			blocks = union(blocks)
			name := "b" + digest(blocks)
			o.blocks[name] = blocks
			out.peers = append(out.peers, Rule{Blocks: name})
		}
	}
	out.any = len(ports) == 0
	var named []portRange
	for _, p := range ports {
		r := rangeOf(p)
		switch {
		case r.name == "" || !egress:
			out.ports = append(out.ports, r)
		default:
			named = append(named, r)
		}
	}
	if len(named) > 0 {
		name := "e" + digest([]any{namespace, peers, ports})
		o.endpoints[name] = endpointsOf(pods, named)
		out.endpoints = name
	}
	return out
}

// matching returns the pods that one of the peers selects.
func (c *cluster) matching(own string, peers []networkingv1.NetworkPolicyPeer) []*pod {
	var out []*pod
	seen := map[*pod]bool{}
	for _, p := range peers {
		names := []string{own}
		if p.NamespaceSelector != nil {
			names = nil
			selector, err := metav1.LabelSelectorAsSelector(p.NamespaceSelector)
			if err != nil {
				continue
			}
			for name, labels := range c.namespaces {
				if selector.Matches(labels) {
					names = append(names, name)
				}
			}
		}
		selector := labels.Everything()
		if p.PodSelector != nil {
			var err error
			if selector, err = metav1.LabelSelectorAsSelector(p.PodSelector); err != nil {
				continue
			}
		}
		for _, name := range names {
			for _, one := range c.pods[name] {
				if one.address.IsValid() && !seen[one] && selector.Matches(one.labels) {
					seen[one] = true
					out = append(out, one)
				}
			}
		}
	}
	return out
}

func addressesOf(pods []*pod) []netip.Addr {
	out := make([]netip.Addr, 0, len(pods))
	for _, p := range pods {
		out = append(out, p.address)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

func endpointsOf(pods []*pod, named []portRange) []Destination {
	out := []Destination{}
	for _, p := range pods {
		for _, n := range named {
			for _, port := range p.named(n) {
				out = append(out, Destination{n.protocol, netip.AddrPortFrom(p.address, port)})
			}
		}
	}
	slices.SortFunc(out, func(a, b Destination) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), a.Address.Compare(b.Address))
	})
	return slices.Compact(out)
}

// named returns the ports of a name and protocol.
func (p *pod) named(r portRange) []uint16 {
	var out []uint16
	for _, port := range p.ports {
		if port.name == r.name && port.protocol == r.protocol {
			out = append(out, port.port)
		}
	}
	return out
}

func rangeOf(p networkingv1.NetworkPolicyPort) portRange {
	r := portRange{protocol: unix.IPPROTO_TCP, to: 65535}
	if p.Protocol != nil {
		r.protocol = protocolOf(*p.Protocol)
	}
	switch {
	case p.Port == nil:
	case p.Port.Type == intstr.String:
		r.name = p.Port.StrVal
	default:
		r.from, r.to = uint16(p.Port.IntVal), uint16(p.Port.IntVal)
		if p.EndPort != nil {
			r.to = uint16(*p.EndPort)
		}
	}
	return r
}

func protocolOf(p corev1.Protocol) byte {
	switch p {
	case corev1.ProtocolUDP:
		return unix.IPPROTO_UDP
	case corev1.ProtocolSCTP:
		return unix.IPPROTO_SCTP
	}
	return unix.IPPROTO_TCP
}

// node returns the rules of a node with these pods.
func (o *compiled) node(pods []*pod) *Rules {
	r := &Rules{Active: true, Chains: map[string][]Rule{}, Addresses: map[string][]netip.Addr{}, Blocks: map[string][]Range{}, Endpoints: map[string][]Destination{}}
	for _, p := range pods {
		var ingress, egress []Rule
		var in, out bool
		for _, policy := range o.policies[p.Namespace] {
			if !policy.selects.Matches(p.labels) {
				continue
			}
			in, out = in || policy.in, out || policy.out
			for i := range policy.ingress {
				ingress = policy.ingress[i].rules(p, ingress)
			}
			for i := range policy.egress {
				egress = policy.egress[i].rules(p, egress)
			}
		}
		at := Pod{Namespace: p.Namespace, Name: p.Name, UID: p.uid, Address: p.address}
		if in {
			at.Ingress = o.chain(r, "in", ingress)
		}
		if out {
			at.Egress = o.chain(r, "out", egress)
		}
		r.Pods = append(r.Pods, at)
	}
	slices.SortFunc(r.Pods, func(a, b Pod) int { return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) })
	return r.seal()
}

// chain adds a chain with the sets it uses, and returns its name.
func (o *compiled) chain(r *Rules, direction string, rules []Rule) string {
	name := direction + "-" + digest(rules)
	r.Chains[name] = rules
	for _, rule := range rules {
		switch {
		case rule.Addresses != "":
			r.Addresses[rule.Addresses] = o.addresses[rule.Addresses]
		case rule.Blocks != "":
			r.Blocks[rule.Blocks] = o.blocks[rule.Blocks]
		case rule.Endpoints != "":
			r.Endpoints[rule.Endpoints] = o.endpoints[rule.Endpoints]
		}
	}
	return name
}

// rules appends what is allowed for a pod, whose ports the names of ingress rules mean.
func (a *allowed) rules(p *pod, to []Rule) []Rule {
	for _, peer := range a.peers {
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

package netpolicy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// pod is the part of a pod with its own network that the rules depend on.
type pod struct {
	types.NamespacedName
	uid     types.UID
	node    string
	labels  labels.Set
	address netip.Addr // zero until the pod has one
	ports   []namedPort
}

type namedPort struct {
	name     string
	protocol byte
	port     uint16
}

// cluster is the input of compile. Its objects are not modified.
type cluster struct {
	policies   map[types.NamespacedName]*networkingv1.NetworkPolicy
	namespaces map[string]labels.Set
	pods       map[string]map[string]*pod // by namespace and name

	labelled map[string]map[string][]*pod // see withLabel
}

// withLabel returns the pods of a namespace with a label, such as app=web. It is not safe for concurrent use.
func (c *cluster) withLabel(namespace, label string) []*pod {
	all, known := c.labelled[namespace]
	if !known {
		all = map[string][]*pod{}
		for _, p := range c.pods[namespace] {
			for key, value := range p.labels {
				all[key+"="+value] = append(all[key+"="+value], p)
			}
		}
		if c.labelled == nil {
			c.labelled = map[string]map[string][]*pod{}
		}
		c.labelled[namespace] = all
	}
	return all[label]
}

func (c *cluster) clone() *cluster {
	out := &cluster{
		policies:   maps.Clone(c.policies),
		namespaces: maps.Clone(c.namespaces),
		pods:       make(map[string]map[string]*pod, len(c.pods)),
	}
	for namespace, pods := range c.pods {
		out.pods[namespace] = maps.Clone(pods)
	}
	return out
}

// compiled holds the resolved policies for all nodes. It is not modified.
type compiled struct {
	sets
	limits limits
	nodes  map[string][]*pod
	ends   map[*pod]ends // isolated pods only
	over   []excess
	first  map[string]*networkingv1.NetworkPolicy // the first policy of each namespace, by name

	cluster *cluster           // the input
	tenants map[string]*tenant // by namespace
}

// sets holds chains and the sets they refer to, by name.
type sets struct {
	chains    map[string][]Rule
	addresses map[string][]netip.Addr
	blocks    map[string][]Range
	endpoints map[string][]Destination
}

// ends are the chains for connections to and from a pod. An empty name means that the pod is not isolated in that
// direction.
type ends struct{ ingress, egress string }

// excess is a namespace over a limit, represented by one of its policies.
type excess struct {
	policy *networkingv1.NetworkPolicy
	why    string
}

func newSets() sets {
	return sets{map[string][]Rule{}, map[string][]netip.Addr{}, map[string][]Range{}, map[string][]Destination{}}
}

func (s *sets) add(o sets) {
	maps.Copy(s.chains, o.chains)
	maps.Copy(s.addresses, o.addresses)
	maps.Copy(s.blocks, o.blocks)
	maps.Copy(s.endpoints, o.endpoints)
}

// compile resolves the policies, applying the limits to each namespace. It takes the results of namespaces for which
// nothing has changed from before, which may be nil.
func compile(c *cluster, l limits, before *compiled) *compiled {
	out := &compiled{
		cluster: c,
		tenants: map[string]*tenant{},
		limits:  l,
		sets:    newSets(),
		nodes:   map[string][]*pod{},
		ends:    map[*pod]ends{},
		first:   map[string]*networkingv1.NetworkPolicy{},
	}
	byNamespace := map[string][]*networkingv1.NetworkPolicy{}
	for name, p := range c.policies {
		byNamespace[name.Namespace] = append(byNamespace[name.Namespace], p)
	}
	changes := changesSince(before, c)
	for _, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
		policies := byNamespace[namespace]
		slices.SortFunc(policies, func(a, b *networkingv1.NetworkPolicy) int { return cmp.Compare(a.Name, b.Name) })
		out.first[namespace] = policies[0]
		t := changes.unchanged(namespace)
		if t == nil {
			t = newTenant(c, namespace, l)
			t.resolve(policies)
			t.cluster, t.matches = nil, nil // of no further use
		}
		out.tenants[namespace] = t
		out.add(t.sets)
		maps.Copy(out.ends, t.ends)
		if t.over != nil {
			out.over = append(out.over, *t.over)
		}
	}
	for _, pods := range c.pods {
		for _, p := range pods {
			out.nodes[p.node] = append(out.nodes[p.node], p)
		}
	}
	return out
}

// node returns the rules of a node. If they exceed the limit of a node, the largest namespaces allow nothing on this
// node and node also returns them.
func (o *compiled) node(name string) (*Rules, []excess) {
	parts := map[string]*sets{}
	r := &Rules{Active: true}
	for _, p := range o.nodes[name] {
		at := o.ends[p]
		r.Pods = append(r.Pods, Pod{
			Namespace: p.Namespace,
			Name:      p.Name,
			UID:       p.uid,
			Address:   p.address,
			Ingress:   at.ingress,
			Egress:    at.egress,
		})
		for _, chain := range []string{at.ingress, at.egress} {
			if chain != "" {
				if parts[p.Namespace] == nil {
					parts[p.Namespace] = new(newSets())
				}
				parts[p.Namespace].take(&o.sets, chain)
			}
		}
	}
	slices.SortFunc(r.Pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	total, sizes := 0, map[string]int{}
	for namespace, part := range parts {
		sizes[namespace] = part.size()
		total += sizes[namespace]
	}
	var over []excess
	for _, namespace := range slices.SortedFunc(maps.Keys(parts), func(a, b string) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b))
	}) {
		if total <= o.limits.node {
			break
		}
		total -= sizes[namespace]
		*parts[namespace] = newSets()
		for i := range r.Pods {
			if p := &r.Pods[i]; p.Namespace == namespace {
				parts[namespace].deny(&p.Ingress, &p.Egress)
			}
		}
		over = append(over, excess{o.first[namespace], fmt.Sprintf(
			"the rules for the pods of node %s exceed %d MiB, and this namespace has the largest", name,
			o.limits.node>>20)})
	}
	all := newSets()
	for _, part := range parts {
		all.add(*part)
	}
	r.Chains, r.Addresses, r.Blocks, r.Endpoints = all.chains, all.addresses, all.blocks, all.endpoints
	return r, over
}

// take copies a chain from another sets, with the sets it uses.
func (s *sets) take(from *sets, chain string) {
	if _, there := s.chains[chain]; there {
		return
	}
	s.chains[chain] = from.chains[chain]
	for _, rule := range from.chains[chain] {
		switch {
		case rule.Addresses != "":
			s.addresses[rule.Addresses] = from.addresses[rule.Addresses]
		case rule.Blocks != "":
			s.blocks[rule.Blocks] = from.blocks[rule.Blocks]
		case rule.Endpoints != "":
			s.endpoints[rule.Endpoints] = from.endpoints[rule.Endpoints]
		}
	}
}

// deny replaces a pod's chains by chains that allow nothing.
func (s *sets) deny(ingress, egress *string) {
	if *ingress != "" {
		*ingress = s.chain("in", nil)
	}
	if *egress != "" {
		*egress = s.chain("out", nil)
	}
}

func (s *sets) chain(direction string, rules []Rule) string {
	name := direction + "-" + digest(rules)
	s.chains[name] = rules
	return name
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

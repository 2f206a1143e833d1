package proxy

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
)

// conditionPool and reasonPool identify a service whose address is from the cluster's own pool. The controller
// pkg/control/controllers/loadbalancer sets the condition; the nodes answer ARP for such an address. Other load
// balancer addresses belong to another implementation or to a node.
const (
	conditionPool = "coracle.dev/LoadBalancer"
	reasonPool    = "PoolAddress"
)

// maxSources is the maximum number of loadBalancerSourceRanges. A service with more admits no client.
const maxSources = 256

type machine struct {
	addresses []netip.Addr
	// eligible is false for nodes that take no load balancer traffic.
	eligible, ready bool
}

func machineOf(n *corev1.Node) machine {
	_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
	m := machine{
		eligible: !excluded && n.DeletionTimestamp == nil && !nodestate.External(n),
		ready:    nodestate.Ready(n),
	}
	for _, a := range n.Status.Addresses {
		m.addresses = append(m.addresses, addresses([]string{a.Address})...)
	}
	return m
}

func (m machine) equal(o machine) bool {
	return m.eligible == o.eligible && m.ready == o.ready && slices.Equal(m.addresses, o.addresses)
}

// holders returns, sorted, the nodes that may answer ARP for pool addresses: the eligible nodes that are ready or,
// if none is ready, all eligible nodes. The caller must hold p.mu.
func (p *Proxy) holders() []string {
	var ready, all []string
	for name, m := range p.nodes {
		if m.eligible {
			all = append(all, name)
			if m.ready {
				ready = append(ready, name)
			}
		}
	}
	if len(ready) > 0 {
		all = ready
	}
	slices.Sort(all)
	return all
}

// poolAddresses returns the service's load balancer addresses for which nodes answer ARP.
func poolAddresses(svc *corev1.Service) []netip.Addr {
	c := meta.FindStatusCondition(svc.Status.Conditions, conditionPool)
	if c == nil || c.Reason != reasonPool || svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	var all []netip.Addr
	for _, i := range svc.Status.LoadBalancer.Ingress {
		all = append(all, addresses([]string{i.IP})...)
	}
	return all
}

// holder returns the node that answers ARP for an address. It prefers nodes with ready endpoints; without such a
// node it chooses among all, so that clients are rejected at once instead of timing out. The choice is a rendezvous
// hash: all nodes agree, and adding or removing a node moves no address between other nodes.
func holder(a netip.Addr, nodes []string, endpoints []*discoveryv1.EndpointSlice) string {
	with := map[string]bool{}
	for _, s := range endpoints {
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; e.NodeName != nil && deref(e.Conditions.Ready, true) {
				with[*e.NodeName] = true
			}
		}
	}
	if some := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return !with[n] }); len(some) > 0 {
		nodes = some
	}
	if len(nodes) == 0 {
		return ""
	}
	rank := func(node string) string {
		sum := sha256.Sum256([]byte(node + " " + a.String()))
		return string(sum[:])
	}
	return slices.MinFunc(nodes, func(x, y string) int { return cmp.Compare(rank(x), rank(y)) })
}

// sources returns the IPv4 prefixes of spec.loadBalancerSourceRanges, none within another, and whether they restrict
// clients. As in upstream's cloud providers, the legacy annotation applies if the field is empty.
func sources(svc *corev1.Service) (ranges []netip.Prefix, restricted bool, err error) {
	texts := svc.Spec.LoadBalancerSourceRanges
	if len(texts) == 0 {
		if text := strings.TrimSpace(svc.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]); text != "" {
			texts = strings.Split(text, ",")
		}
	}
	if len(texts) == 0 {
		return nil, false, nil
	}
	if n := len(texts); n > maxSources {
		return nil, true, fmt.Errorf("%d loadBalancerSourceRanges are too many: at most %d", n, maxSources)
	}
	for _, text := range texts {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil && p.Addr().Is4() { // spaces are valid
			ranges = append(ranges, p.Masked())
		}
	}
	// Shortest prefixes first: of two prefixes that overlap, the shorter contains the other.
	slices.SortFunc(ranges, func(a, b netip.Prefix) int { return cmp.Or(a.Bits()-b.Bits(), a.Addr().Compare(b.Addr())) })
	var kept []netip.Prefix
	for _, p := range ranges {
		if !slices.ContainsFunc(kept, func(k netip.Prefix) bool { return k.Contains(p.Addr()) }) {
			kept = append(kept, p)
		}
	}
	return kept, len(kept) != 1 || kept[0].Bits() > 0, nil
}

// sourceKey encodes a frontend and a client prefix as an interval: the first key, then the last.
func sourceKey(f Frontend, p netip.Prefix) string {
	last := p.Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	return f.key() + string(p.Addr().AsSlice()) + f.key() + string(last[:])
}

// hold records the addresses for which this node answers ARP on behalf of a service. It reports whether they
// changed.
func (p *Proxy) hold(name types.NamespacedName, held []netip.Addr) bool {
	if slices.Equal(p.held[name], held) {
		return false
	}
	if len(held) > 0 {
		p.held[name] = held
	} else {
		delete(p.held, name)
	}
	return true
}

// announce makes this node answer ARP for the addresses it holds. It logs an error once, not per attempt. The rules
// for the addresses exist even if announcing them fails.
func (p *Proxy) announce(refresh bool) {
	all := slices.Concat(slices.Collect(maps.Values(p.held))...)
	slices.SortFunc(all, netip.Addr.Compare)
	text := ""
	if err := p.arp.Set(slices.Compact(all), refresh); err != nil {
		text = err.Error()
	}
	if text != "" && text != p.arpError {
		p.Logger.Error("could not announce addresses of services", "error", text)
	}
	p.arpError = text
}

package proxy

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// portSSH is never redirected from a node.
const portSSH = 22

var apiService = types.NamespacedName{Namespace: "default", Name: "kubernetes"}

// Guarded lists the addresses and ports that no service may claim as an external address: anyone who may create
// services can set spec.externalIPs (CVE-2020-8554), and load balancer controllers set status.loadBalancer. It is
// not modified once in use.
type Guarded struct {
	// Services are the ranges of cluster IPs, which only the API server allocates. Ranges adds the pod range to
	// them.
	Services, Ranges []netip.Prefix
	// Nodes are the addresses of all nodes. Ports are the ports on which nodes themselves serve: API, agent, DNS,
	// SSH.
	Nodes map[netip.Addr]bool
	Ports []uint16
	// API holds the addresses of all API servers.
	API map[netip.AddrPort]bool
}

// refuse returns why a service must not have a frontend, or "". A nil Guarded refuses only unreachable addresses.
func (g *Guarded) refuse(f Frontend) string {
	if !f.Addr.IsGlobalUnicast() {
		return fmt.Sprintf("%s is not an address that clients can reach", f.Addr)
	}
	if g == nil {
		return ""
	}
	for _, r := range g.Ranges {
		if r.Contains(f.Addr) {
			return fmt.Sprintf("%s is in the cluster's own range %s", f.Addr, r)
		}
	}
	return g.refusePort(f)
}

// refusePort is refuse for an address that is known to belong to a node.
func (g *Guarded) refusePort(f Frontend) string {
	switch {
	case g == nil:
	case g.API[netip.AddrPortFrom(f.Addr, f.Port)]:
		return fmt.Sprintf("%s:%d is the API server", f.Addr, f.Port)
	case g.Nodes[f.Addr] && slices.Contains(g.Ports, f.Port):
		return fmt.Sprintf("port %d of %s is the node's own", f.Port, f.Addr)
	}
	return ""
}

// newGuarded builds the current Guarded. The caller must hold p.mu.
func (p *Proxy) newGuarded() *Guarded {
	g := &Guarded{
		Nodes: map[netip.Addr]bool{p.NodeIP: true},
		API:   map[netip.AddrPort]bool{},
		Ports: append([]uint16{portSSH}, p.Ports...),
	}
	g.Services = p.prefixes()
	g.Ranges = slices.Clone(g.Services)
	if p.ClusterCIDR.IsValid() {
		g.Ranges = append(g.Ranges, p.ClusterCIDR)
	}
	for _, a := range p.node.Addresses {
		g.Nodes[a] = true
	}
	for _, m := range p.nodes {
		for _, a := range m.addresses {
			g.Nodes[a] = true
		}
	}
	for _, s := range p.slices[apiService] {
		for i := range s.Endpoints {
			for _, a := range addresses(s.Endpoints[i].Addresses) {
				for _, port := range s.Ports {
					if port.Port != nil {
						g.API[netip.AddrPortFrom(a, uint16(*port.Port))] = true
					}
				}
			}
		}
	}
	return g
}

// setNode records a node's addresses and its part in load balancing and, for this node, the zone.
func (p *Proxy) setNode(n *corev1.Node, there bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if zone := n.Labels[corev1.LabelTopologyZone]; there && n.Name == p.NodeName && zone != p.node.Zone {
		p.node.Zone = zone
		p.recheckHints()
	}
	before, was := p.nodes[n.Name]
	now := machineOf(n)
	if was == there && before.equal(now) {
		return
	}
	if there {
		p.nodes[n.Name] = now
	} else {
		delete(p.nodes, n.Name)
	}
	if holders := p.holders(); !slices.Equal(holders, p.node.Holders) {
		p.node.Holders, p.refresh = holders, true
		for name, s := range p.services {
			if poolAddresses(s) != nil {
				p.mark(name)
			}
		}
	}
	if !slices.Equal(before.addresses, now.addresses) || !there {
		p.recheckGuarded()
	}
}

// recheckGuarded schedules new plans for all services with external addresses or node ports. The caller must hold
// p.mu.
func (p *Proxy) recheckGuarded() {
	p.node.Guarded = nil // the next sync computes it
	for name, s := range p.services {
		if len(s.Spec.ExternalIPs)+len(s.Status.LoadBalancer.Ingress) > 0 || s.Spec.Type != corev1.ServiceTypeClusterIP {
			p.mark(name)
		}
	}
	p.notify()
}

// recheckHints schedules new plans for all services whose endpoints have hints. The caller must hold p.mu.
func (p *Proxy) recheckHints() {
	for name, list := range p.slices {
		for _, s := range list {
			if slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Hints != nil }) {
				p.mark(name)
				break
			}
		}
	}
}

// complain logs the external addresses that a service does not get and records events for them, once per change.
func (p *Proxy) complain(name types.NamespacedName, complaints []string) {
	slices.Sort(complaints)
	complaints = slices.Compact(complaints)
	if slices.Equal(p.complaints[name], complaints) {
		return
	}
	if len(complaints) == 0 {
		delete(p.complaints, name)
		return
	}
	p.complaints[name] = complaints
	p.mu.Lock()
	svc := p.services[name]
	p.mu.Unlock()
	for _, c := range complaints {
		p.Logger.Warn("ignoring external address of service", "service", name, "reason", c)
		if svc != nil {
			p.events.Event(svc, corev1.EventTypeWarning, "ExternalAddressRefused", "not served on node %s: %s", p.NodeName, c)
		}
	}
}

// ignored reports whether the proxy ignores a slice, by kube-proxy's rules.
func ignored(s *discoveryv1.EndpointSlice) bool {
	_, headless := s.Labels[corev1.IsHeadlessService]
	return headless
}

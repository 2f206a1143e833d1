package proxy

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Node is what a plan depends on besides the service and its endpoints.
type Node struct {
	Name string
	// Zone is the node's label topology.kubernetes.io/zone.
	Zone string
	// Addresses are those on which node ports are served: the node's addresses, and loopback.
	Addresses []netip.Addr
	// Local services are served by this node at the given address, whatever their endpoints.
	Local map[types.NamespacedName]netip.AddrPort
	// Guarded are the external addresses that services may not have; nil means none.
	Guarded *Guarded
	// Holders are the nodes that may answer ARP for addresses of the pool, by name.
	Holders []string
}

// Frontend is an address, protocol and port to which clients connect.
type Frontend struct {
	Addr     netip.Addr
	Protocol byte // IPPROTO_TCP, _UDP, _SCTP
	Port     uint16
}

// slot identifies a set of endpoints: a hash of its name and its service's UID. With 64 bits, the probability of a
// collision among 10,000 slots is below 10^-11, and the server chooses the UID, so that nobody can look for a name
// whose slot is another service's.
type slot [8]byte

// backend are the endpoints of a slot in the order of their numbers.
type backend struct {
	slot      slot
	name      string // service, protocol and port, and whether there are only local endpoints: default/web/TCP/80/local
	endpoints []netip.AddrPort
	frontends int    // how many lead to it
	inside    bool   // some lead to it for packets of this node and its pods only
	affinity  uint32 // timeout of session affinity in seconds; 0 means none
	// members are what clients with session affinity are bound to instead of the numbers, one of each endpoint as long as
	// it is there.
	members []netip.Addr
}

// maxCopies is the maximum number of elements by which the kernel has endpoints of a backend more than once. A service
// with a node port has two frontends more, one with a load balancer on the nodes' addresses as many as there are nodes.
const maxCopies = 256

// maxElements limits what one service, with ports times endpoints, makes the kernel and this process hold: 0.4 kB for
// each, and up to 10 us when it changes. Ports beyond it are not served.
const maxElements = 100_000

// apart reports whether the endpoints are in the kernel once for all frontends, with a chain of their own, rather than
// once for each frontend.
func (b *backend) apart() bool {
	return b.affinity > 0 || b.inside || (b.frontends-1)*len(b.endpoints) > maxCopies
}

// action is what is done with packets to a frontend.
type action struct {
	verdict verdict
	backend slot
	class   class
}

type verdict byte

const (
	balance verdict = iota
	reject          // there are no endpoints
	drop            // there are no local endpoints, and only local ones are used
)

// servicePlan is the desired state of one service in the kernel.
type servicePlan struct {
	// frontends apply to all packets, except that inside overrides them for packets of this node and its pods
	// (externalTrafficPolicy Local).
	frontends, inside map[Frontend]action
	backends          map[slot]*backend
	// masquerade are the frontends whose clients are masqueraded, so that replies return through this node.
	masquerade map[Frontend]bool
	// hairpin are the endpoints on this node: one that connects to itself through the service must be masqueraded.
	hairpin map[netip.Addr]bool
	// healthPort is the healthCheckNodePort, or 0.
	healthPort  uint16
	healthCount int
	// flows are the UDP frontends, with the endpoints to which clients that have one may stay connected. As with TCP, and
	// upstream, that depends neither on policies nor on hints, nor on whether an endpoint that is still serving
	// terminates.
	flows map[Frontend]map[netip.AddrPort]bool
	// created is the service's creation time, in seconds.
	created int64
	// restricted are the frontends of load balancers that only clients of these ranges may use.
	restricted map[Frontend][]netip.Prefix
	// virtual are the addresses of the pool that the service has, held those for which this node answers ARP.
	virtual, held []netip.Addr
	// refused are the external addresses that the service does not get, with the reason.
	refused []string
}

// labelProxyName marks services that another proxy implements, whatever its value.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// plan computes the desired state of a service; svc is nil for a deleted one. It is a pure function. Endpoints that are
// in before keep their numbers, so that a change of one endpoint changes one or two elements in the kernel.
func plan(node Node, svc *corev1.Service, endpoints []*discoveryv1.EndpointSlice, before *servicePlan) *servicePlan {
	p := &servicePlan{frontends: map[Frontend]action{}, inside: map[Frontend]action{}, backends: map[slot]*backend{},
		masquerade: map[Frontend]bool{}, hairpin: map[netip.Addr]bool{}, restricted: map[Frontend][]netip.Prefix{},
		flows: map[Frontend]map[netip.AddrPort]bool{}}
	if svc == nil || svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.ClusterIP == "" ||
		svc.Spec.ClusterIP == corev1.ClusterIPNone {
		return p
	}
	if _, others := svc.Labels[labelProxyName]; others {
		return p
	}
	p.created = svc.CreationTimestamp.Unix()
	s := newServicePlanner(node, svc, endpoints, before, p)
	for i := range svc.Spec.Ports {
		if !s.port(i) {
			break
		}
	}
	for _, a := range poolAddresses(svc) {
		if node.Guarded.refuse(Frontend{Addr: a}) != "" || node.Guarded != nil && node.Guarded.Nodes[a] {
			continue
		}
		p.virtual = append(p.virtual, a)
		if holder(a, node.Holders, endpoints) == node.Name {
			p.held = append(p.held, a)
		}
	}
	if s.outsideLocal && svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.HealthCheckNodePort != 0 {
		p.healthPort, p.healthCount = uint16(svc.Spec.HealthCheckNodePort), len(s.local)
	}
	return p
}

// candidate is an endpoint of one port.
type candidate struct {
	to    netip.AddrPort
	hints *discoveryv1.EndpointHints
}

// chosen are endpoints of one port.
type chosen struct {
	// all are those for this node, here those of them that are on it: ready ones or, if there are none, those that are
	// serving while terminating (KEP-1669). Those for this node are all, unless hints prefer some of them.
	all, here []netip.AddrPort
	// readyHere are those on this node that are ready, serving all to which what is connected may stay connected.
	readyHere, serving []netip.AddrPort
}

func choose(node Node, portName string, protocol corev1.Protocol, endpoints []*discoveryv1.EndpointSlice) (c chosen) {
	var ready []candidate
	var ending, endingHere []netip.AddrPort
	for _, s := range endpoints {
		if s.AddressType != discoveryv1.AddressTypeIPv4 {
			continue
		}
		var number uint16
		for _, p := range s.Ports {
			if p.Port != nil && deref(p.Name, "") == portName && deref(p.Protocol, corev1.ProtocolTCP) == protocol {
				number = uint16(*p.Port)
			}
		}
		if number == 0 {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if len(e.Addresses) == 0 {
				continue
			}
			a, err := netip.ParseAddr(e.Addresses[0])
			if err != nil || !a.Is4() {
				continue
			}
			to, isHere := netip.AddrPortFrom(a, number), e.NodeName != nil && *e.NodeName == node.Name
			isReady := deref(e.Conditions.Ready, true)
			isServing := deref(e.Conditions.Serving, isReady)
			isEnding := isServing && deref(e.Conditions.Terminating, false)
			if isServing {
				c.serving = append(c.serving, to)
			}
			switch {
			case isReady && isHere:
				c.readyHere = append(c.readyHere, to)
				fallthrough
			case isReady:
				ready = append(ready, candidate{to, e.Hints})
			case isEnding && isHere:
				endingHere = append(endingHere, to)
				fallthrough
			case isEnding:
				ending = append(ending, to)
			}
		}
	}
	c.readyHere = sorted(c.readyHere)
	c.here = c.readyHere
	if len(c.here) == 0 {
		c.here = sorted(endingHere)
	}
	c.all = preferred(node, ready)
	if len(c.all) == 0 {
		c.all = ending
	}
	c.all = sorted(c.all)
	return c
}

// preferred returns the ready endpoints that their hints give this node (KEP-2433, KEP-4444, KEP-3015): those for the
// node or else those for its zone, if every endpoint says for which ones it is and some are for this one. Otherwise it
// returns all.
func preferred(node Node, ready []candidate) []netip.AddrPort {
	forNode := func(h *discoveryv1.EndpointHints) (hinted, ours bool) {
		return len(h.ForNodes) > 0, slices.ContainsFunc(h.ForNodes, func(n discoveryv1.ForNode) bool {
			return n.Name == node.Name
		})
	}
	forZone := func(h *discoveryv1.EndpointHints) (hinted, ours bool) {
		return len(h.ForZones) > 0, slices.ContainsFunc(h.ForZones, func(z discoveryv1.ForZone) bool {
			return z.Name == node.Zone
		})
	}
	for _, of := range []func(*discoveryv1.EndpointHints) (hinted, ours bool){forNode, forZone} {
		if near := hinted(ready, of); len(near) > 0 {
			return near
		}
	}
	all := make([]netip.AddrPort, len(ready))
	for i, c := range ready {
		all[i] = c.to
	}
	return all
}

// hinted returns the endpoints whose hints are ours, none if one of all has no hint.
func hinted(ready []candidate, of func(*discoveryv1.EndpointHints) (hinted, ours bool)) (near []netip.AddrPort) {
	for _, c := range ready {
		if c.hints == nil {
			return nil
		}
		has, ours := of(c.hints)
		if !has {
			return nil
		}
		if ours {
			near = append(near, c.to)
		}
	}
	return near
}

func sorted(e []netip.AddrPort) []netip.AddrPort {
	slices.SortFunc(e, netip.AddrPort.Compare)
	return slices.Compact(e)
}

// renumber orders now so that endpoints that are in before keep their positions, as far as now is long enough.
func renumber(before, now []netip.AddrPort) []netip.AddrPort {
	fresh := make(map[netip.AddrPort]bool, len(now))
	for _, e := range now {
		fresh[e] = true
	}
	out := make([]netip.AddrPort, len(now))
	for i, e := range before[:min(len(before), len(now))] {
		if fresh[e] {
			out[i] = e
			delete(fresh, e)
		}
	}
	next := 0
	for _, e := range now { // in order, for a deterministic result
		if !fresh[e] {
			continue
		}
		for out[next].IsValid() {
			next++
		}
		out[next] = e
	}
	return out
}

var protocols = map[corev1.Protocol]byte{corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17, corev1.ProtocolSCTP: 132}

func slotOf(name string) slot {
	sum := sha256.Sum256([]byte(name))
	return slot(sum[:8])
}

// addresses parses IPv4 addresses, and drops others and duplicates.
func addresses(texts []string, more ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range slices.Concat(texts, more) {
		if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
			all = append(all, a)
		}
	}
	if len(all) < 2 {
		return all
	}
	seen := make(map[netip.Addr]bool, len(all))
	return slices.DeleteFunc(all, func(a netip.Addr) bool {
		had := seen[a]
		seen[a] = true
		return had
	})
}

func deref[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// key encodes a frontend for the kernel's sets: network byte order, each part padded to four bytes.
func (f Frontend) key() string {
	b := make([]byte, 0, 12)
	b = append(b, f.Addr.AsSlice()...)
	b = append(b, f.Protocol, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, f.Port)
	return string(append(b, 0, 0))
}

// nameMembers sets the members of a backend with session affinity. Endpoints that are in before, which may be nil, keep
// theirs; a new one has its address or, if another has that, one that no endpoint can have.
func (b *backend) nameMembers(before *backend) {
	known, taken := map[netip.AddrPort]netip.Addr{}, map[netip.Addr]bool{}
	if before != nil && before.affinity > 0 {
		for i, e := range before.endpoints {
			known[e] = before.members[i]
		}
	}
	for _, e := range b.endpoints {
		if m, stays := known[e]; stays {
			taken[m] = true
		}
	}
	b.members = make([]netip.Addr, len(b.endpoints))
	spare := netip.AddrFrom4([4]byte{})
	for i, e := range b.endpoints {
		m, stays := known[e]
		if !stays {
			for m = e.Addr(); taken[m]; m = spare {
				spare = spare.Next()
			}
			taken[m] = true
		}
		b.members[i] = m
	}
}

func target(e netip.AddrPort) string {
	b := make([]byte, 0, 8)
	b = append(b, e.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, e.Port())
	return string(append(b, 0, 0))
}

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

// Node is the input of a plan other than the service and its endpoints.
type Node struct {
	Name string
	// Zone is the value of the node's label topology.kubernetes.io/zone.
	Zone string
	// Addresses serve node ports: the node's addresses and loopback.
	Addresses []netip.Addr
	// Local maps services to the address on this node that serves them, whatever their endpoints.
	Local map[types.NamespacedName]netip.AddrPort
	// Guarded are the external addresses that services may not have; nil means none.
	Guarded *Guarded
	// InUse reports whether a process of this machine has a frontend's port, which then no service gets. It may be nil.
	InUse func(Frontend) bool
	// Holders are the names of the nodes that may answer ARP for pool addresses.
	Holders []string
}

// elsewhere reports whether an address belongs to another node. Only that node serves it: it alone knows whether one of
// its processes has the port, from which a service would take the connections of this node's pods otherwise.
func (n *Node) elsewhere(a netip.Addr) bool {
	return n.Guarded != nil && n.Guarded.Nodes[a] && !slices.Contains(n.Addresses, a)
}

// Frontend is an address, protocol and port to which clients connect.
type Frontend struct {
	Addr     netip.Addr
	Protocol byte // IPPROTO_TCP, _UDP, _SCTP
	Port     uint16
}

// slot identifies a backend: a hash of its name and its service's UID. With 64 bits, the probability of a collision
// among 10,000 slots is below 10^-11. Since the API server chooses the UID, users cannot search for a name that
// collides with another service's slot.
type slot [8]byte

// backend is the endpoints of a slot, ordered by number.
type backend struct {
	slot      slot
	name      string // service, protocol and port; "/local" if it has only local endpoints: default/web/TCP/80/local
	endpoints []netip.AddrPort
	frontends int    // number of frontends that lead to it
	inside    bool   // some frontends lead here only for packets from this node and its pods
	affinity  uint32 // timeout of session affinity in seconds; 0 means none
	clients   int    // with session affinity: the maximum number of clients that keep their endpoint
	// members identify the endpoints for clients with session affinity, one per endpoint. Unlike a number, a member
	// stays the same as long as its endpoint exists.
	members []netip.Addr
}

// maxCopies is the maximum number of redundant elements for the endpoints of a shared chain's backend. A node port
// adds two frontends; a load balancer on the nodes' addresses adds one per node.
const maxCopies = 256

// maxElements limits what one service (ports times endpoints) can allocate in the kernel and in this process: about
// 0.4 kB per element, and up to 10 us when it changes. Ports beyond the limit are not served.
const maxElements = 100_000

// maxLooked limits the endpoints that the plan of one service looks at, for all of its ports: the plan is made anew at
// each change. 1,000,000 take 50 ms.
const maxLooked = 5_000_000

// apart reports whether the backend has a chain of its own, which stores its endpoints once for all frontends.
// Otherwise they are stored once per frontend.
func (b *backend) apart() bool {
	return b.affinity > 0 || b.inside || (b.frontends-1)*len(b.endpoints) > maxCopies
}

type action struct {
	verdict verdict
	backend slot
	class   class
}

type verdict byte

const (
	balance verdict = iota
	reject          // no endpoints
	drop            // the policy is Local and no endpoint is on this node
)

// servicePlan is the desired state of one service in the kernel.
type servicePlan struct {
	// frontends apply to all packets. With externalTrafficPolicy Local, inside overrides them for packets from this
	// node and its pods.
	frontends, inside map[Frontend]action
	backends          map[slot]*backend
	// masquerade are the frontends whose clients are masqueraded, so that replies return through this node.
	masquerade map[Frontend]bool
	// hairpin are the endpoints on this node. An endpoint that connects to itself through the service needs
	// masquerading.
	hairpin map[netip.Addr]bool
	// healthPort is the healthCheckNodePort, or 0.
	healthPort  uint16
	healthCount int
	// flows maps UDP frontends to the endpoints to which connected clients may stay connected. As for TCP, and as
	// upstream, this depends neither on traffic policies nor on hints, nor on whether a serving endpoint terminates.
	flows map[Frontend]map[netip.AddrPort]bool
	// created is the service's creation time, in seconds since 1970.
	created int64
	// restricted maps load balancer frontends to the only client ranges that may use them.
	restricted map[Frontend][]netip.Prefix
	// virtual are the service's pool addresses. held are those for which this node answers ARP.
	virtual, held []netip.Addr
	// refused are the reasons why the service does not get some external addresses or ports.
	refused []string
	// inUse means that a process of this machine has one of the ports.
	inUse bool
}

// labelProxyName marks services that another proxy implements. Any value counts.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// plan computes the desired state of a service; svc is nil for a deleted service. It has no side effects, and depends
// on the machine only by Node.InUse. Endpoints in before keep their numbers, so that a change of one endpoint changes
// one or two elements in the kernel.
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

type candidate struct {
	to    netip.AddrPort
	hints *discoveryv1.EndpointHints
}

type chosen struct {
	// all are the endpoints that this node uses, here the ones on this node. Both hold ready endpoints or, if there
	// are none, endpoints that are serving while terminating (KEP-1669). Hints narrow all, but not here.
	all, here []netip.AddrPort
	// readyHere are the ready endpoints on this node. serving are all endpoints to which existing connections may
	// stay.
	readyHere, serving []netip.AddrPort
	// looked is the number of endpoints that were looked at.
	looked int
}

// portKey identifies a port of a service's slices.
type portKey struct {
	name     string
	protocol corev1.Protocol
}

// portSlice is a slice that has a port, and the port's number.
type portSlice struct {
	*discoveryv1.EndpointSlice
	number uint16
}

func byPort(endpoints []*discoveryv1.EndpointSlice) map[portKey][]portSlice {
	out := map[portKey][]portSlice{}
	for _, s := range endpoints {
		if s.AddressType != discoveryv1.AddressTypeIPv4 {
			continue
		}
		for _, p := range s.Ports {
			if p.Port == nil || uint16(*p.Port) == 0 {
				continue
			}
			key := portKey{deref(p.Name, ""), deref(p.Protocol, corev1.ProtocolTCP)}
			have := out[key]
			if n := len(have); n > 0 && have[n-1].EndpointSlice == s {
				have[n-1].number = uint16(*p.Port)
				continue
			}
			out[key] = append(have, portSlice{s, uint16(*p.Port)})
		}
	}
	return out
}

func choose(node Node, endpoints []portSlice) (c chosen) {
	var ready []candidate
	var ending, endingHere []netip.AddrPort
	for _, s := range endpoints {
		number := s.number
		c.looked += len(s.Endpoints)
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

// preferred returns the ready endpoints that the hints assign to this node (KEP-2433, KEP-4444, KEP-3015): the
// endpoints for the node or else for its zone. A kind of hint counts only if all endpoints have it and at least one
// matches; otherwise preferred returns all endpoints.
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

// hinted returns the endpoints whose hints match this node, or nil if any endpoint has no hint of this kind.
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

// renumber orders now so that endpoints that are in before keep their positions, if the positions still exist.
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

// addresses parses IPv4 addresses. It drops duplicates and everything else.
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

// nameMembers sets the members of a backend with session affinity. Endpoints in before (which may be nil) keep their
// members. A new endpoint's member is its address or, if that is taken, a free one of 0.0.0.0/8, which no endpoint
// can have.
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

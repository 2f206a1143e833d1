package proxy

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// servicePlanner adds the ports of one service to its plan.
type servicePlanner struct {
	plan      *servicePlan
	before    *servicePlan
	node      Node
	svc       *corev1.Service
	name      types.NamespacedName
	endpoints map[portKey][]portSlice
	// affinity is the timeout of session affinity in seconds; 0 means none. clients is the number of tracked clients of
	// one port.
	affinity                  uint32
	clients                   int
	insideLocal, outsideLocal bool
	// ranges are the client ranges that may use the load balancer addresses, if restricted.
	ranges                  []netip.Prefix
	restricted              bool
	clusterIPs, externalIPs []netip.Addr
	// local are the addresses of ready endpoints on this node, for the health check: load balancers are to avoid a
	// node that has only terminating endpoints.
	local map[netip.Addr]bool
	// budget is the number of kernel elements that the service may still add, looks the number of endpoints that it may
	// still look at.
	budget, looks int
}

func newServicePlanner(node Node, svc *corev1.Service, endpoints []*discoveryv1.EndpointSlice, before,
	p *servicePlan) *servicePlanner {
	s := &servicePlanner{
		plan: p, before: before, node: node, svc: svc, endpoints: byPort(endpoints),
		name:   types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name},
		local:  map[netip.Addr]bool{},
		budget: maxElements,
		looks:  maxLooked,
	}
	if svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		s.affinity = 10800
		if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			s.affinity = uint32(*c.ClientIP.TimeoutSeconds)
		}
		s.clients = max(affinityLimit/max(1, len(svc.Spec.Ports)), 1)
	}
	s.insideLocal = svc.Spec.InternalTrafficPolicy != nil &&
		*svc.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	s.outsideLocal = svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	var err error
	if s.ranges, s.restricted, err = sources(svc); err != nil {
		p.refused = append(p.refused, err.Error())
	}
	s.clusterIPs = addresses(svc.Spec.ClusterIPs, svc.Spec.ClusterIP)
	s.externalIPs = addresses(svc.Spec.ExternalIPs)
	return s
}

// port adds the port at index i. It returns false once the service exceeds its budget.
func (s *servicePlanner) port(i int) bool {
	port := &s.svc.Spec.Ports[i]
	number, ok := protocols[port.Protocol]
	if !ok {
		return true
	}
	t := &portPlanner{servicePlanner: s, port: port, number: number}
	t.are = choose(s.node, s.endpoints[portKey{port.Name, port.Protocol}])
	if s.looks -= t.are.looked; s.looks < 0 && i > 0 {
		s.plan.refused = append(s.plan.refused, fmt.Sprintf("%d ports from %d on are too many for the endpoints of the "+
			"service: use fewer ports", len(s.svc.Spec.Ports)-i, port.Port))
		return false
	}
	if own, ok := s.node.Local[s.name]; ok {
		only := []netip.AddrPort{own}
		t.are = chosen{all: only, here: only, readyHere: only, serving: only}
	}
	frontends := len(s.clusterIPs) + len(s.node.Addresses) + len(s.externalIPs) + len(s.svc.Status.LoadBalancer.Ingress)
	s.budget -= 3*frontends + len(t.are.all) + len(t.are.here) + min(maxCopies, frontends*len(t.are.all))
	if s.budget < 0 {
		s.plan.refused = append(s.plan.refused, fmt.Sprintf("%d ports from %d on are too many, with their endpoints and "+
			"addresses: one service makes at most %d rules", len(s.svc.Spec.Ports)-i, port.Port, maxElements))
		return false
	}
	for _, e := range t.are.here {
		s.plan.hairpin[e.Addr()] = true
	}
	for _, e := range t.are.readyHere {
		s.local[e.Addr()] = true
	}
	t.serving = make(map[netip.AddrPort]bool, len(t.are.serving))
	for _, e := range t.are.serving {
		t.serving[e] = true
	}
	t.frontends()
	return true
}

type portPlanner struct {
	*servicePlanner
	port    *corev1.ServicePort
	number  uint8 // IP protocol number
	are     chosen
	serving map[netip.AddrPort]bool
}

func (t *portPlanner) frontends() {
	port, p, node := t.port, t.plan, t.node
	for _, a := range t.clusterIPs {
		t.put(Frontend{a, t.number, uint16(port.Port)}, t.insideLocal, byClusterIP)
	}
	if port.NodePort != 0 && t.svc.Spec.Type != corev1.ServiceTypeClusterIP {
		for _, a := range node.Addresses {
			t.outside(Frontend{a, t.number, uint16(port.NodePort)}, byNodePort, node.Guarded.refusePort)
		}
	}
	for _, a := range t.externalIPs {
		t.outside(Frontend{a, t.number, uint16(port.Port)}, byExternal, node.Guarded.refuse)
	}
	for _, ingress := range t.svc.Status.LoadBalancer.Ingress {
		if ingress.IPMode != nil && *ingress.IPMode == corev1.LoadBalancerIPModeProxy {
			continue
		}
		for _, a := range addresses([]string{ingress.IP}) {
			f := Frontend{a, t.number, uint16(port.Port)}
			t.outside(f, byExternal, node.Guarded.refuse)
			if t.restricted && p.frontends[f].class == byExternal {
				p.restricted[f] = t.ranges
			}
		}
	}
}

func (t *portPlanner) put(f Frontend, onlyLocal bool, class class) {
	t.plan.frontends[f] = t.to(onlyLocal, class)
	if t.number == protocolUDP {
		t.plan.flows[f] = t.serving
	}
}

// inUse reports whether a process has the port of a frontend on this node's own addresses. A frontend that the service
// had before stays, even if a process listens there meanwhile.
func (t *portPlanner) inUse(f Frontend) bool {
	if t.node.InUse == nil || !slices.Contains(t.node.Addresses, f.Addr) {
		return false
	}
	if t.before != nil {
		if _, had := t.before.frontends[f]; had {
			return false
		}
	}
	return t.node.InUse(f)
}

// outside adds a frontend for clients outside the cluster, unless refuse returns a reason.
func (t *portPlanner) outside(f Frontend, class class, refuse func(Frontend) string) {
	p := t.plan
	why := refuse(f)
	if why == "" && class == byExternal && t.inUse(f) {
		why = fmt.Sprintf("port %d of %s is in use by a process of this machine: end it or choose another port", f.Port,
			f.Addr)
		p.inUse = true
	}
	if why != "" {
		p.refused = append(p.refused, why)
		return
	}
	if _, has := p.frontends[f]; has || class == byExternal && t.node.elsewhere(f.Addr) {
		return // the claim that has it has a lower class
	}
	t.put(f, t.outsideLocal, class)
	if !t.outsideLocal {
		p.masquerade[f] = true
		return
	}
	a := t.to(false, class)
	if a.verdict == balance {
		p.backends[a.backend].inside = true
	}
	p.inside[f] = a
}

// to returns the action for the port's endpoints, or only the ones on this node, and adds their backend to the plan.
func (t *portPlanner) to(onlyLocal bool, class class) action {
	p := t.plan
	these, none := t.are.all, reject
	if onlyLocal {
		these = t.are.here
		if len(t.are.all) > 0 {
			none = drop
		}
	}
	if len(these) == 0 {
		return action{verdict: none, class: class}
	}
	text := fmt.Sprintf("%s/%s/%d", t.name, t.port.Protocol, t.port.Port)
	if onlyLocal {
		text += "/local"
	}
	s := slotOf(text + "/" + string(t.svc.UID))
	if p.backends[s] == nil {
		b := &backend{slot: s, name: text, endpoints: these, affinity: t.affinity, clients: t.clients}
		var was *backend
		if t.before != nil {
			was = t.before.backends[s]
		}
		if was != nil {
			b.endpoints = renumber(was.endpoints, these)
		}
		if t.affinity > 0 {
			b.nameMembers(was)
		}
		p.backends[s] = b
	}
	p.backends[s].frontends++
	return action{balance, s, class}
}

package loadbalancer

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
)

// The values of spec.loadBalancerClass that Coracle serves. A service without a class gets an address of the pool
// or, without a pool, the nodes' addresses.
const (
	ClassPool  = "coracle.dev/pool"
	ClassNodes = "coracle.dev/nodes"
)

// Condition is the type of the status condition that reports whether a service has addresses. Only services that
// Coracle serves have it. Its reasons follow.
const (
	Condition = "coracle.dev/LoadBalancer"
	// ReasonPool: the address is from the pool. The nodes' proxies answer ARP for it.
	ReasonPool = "PoolAddress"
	// ReasonNodes: the addresses are node addresses.
	ReasonNodes = "NodeAddresses"
	// ReasonNone: there is no address. The message says why.
	ReasonNone = "NoAddress"
)

// finalizer is upstream's (k8s.io/cloud-provider/service/helpers).
const finalizer = "service.kubernetes.io/load-balancer-cleanup"

// Observed is the observed state.
type Observed struct {
	// Services are all services with type LoadBalancer or the condition.
	Services []*corev1.Service
	Nodes    []*corev1.Node
	// Local returns the nodes with ready endpoints of a service. It is called only for externalTrafficPolicy Local.
	Local func(*corev1.Service) map[string]bool
	Pool  []config.AddressRange
	// Reserved are TCP ports that the nodes themselves use.
	Reserved []uint16
	// IngressPorts are TCP ports on which nodes serve Ingresses. Services that already have one keep it.
	IngressPorts []uint16
	// Disabled: no service gets addresses, and services lose the addresses that Coracle assigned.
	Disabled bool
}

// Change is a service's next state, with the events to record about it.
type Change struct {
	Was, Next *corev1.Service
	Events    []Event
}

// Event is an event, as in events.Recorder.
type Event struct{ Kind, Reason, Message string }

type portKey struct {
	protocol corev1.Protocol
	port     int32
}

type plan struct {
	Observed
	nodes []*corev1.Node // eligible for traffic, sorted by name
	own   map[netip.Addr]bool
	taken map[netip.Addr]types.NamespacedName
	ports map[portKey]types.NamespacedName
	free  []config.AddressRange // the pool above the last allocated address
}

// Plan assigns addresses. Services keep the addresses that they have; the older one wins a conflict. Then waiting
// services get theirs, oldest first. No pool address and no node port is assigned twice.
func Plan(o Observed, now time.Time) []Change {
	p := &plan{
		Observed: o, own: map[netip.Addr]bool{}, taken: map[netip.Addr]types.NamespacedName{},
		ports: map[portKey]types.NamespacedName{},
		free:  slices.Clone(o.Pool),
	}
	for _, n := range o.Nodes {
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil {
				p.own[ip] = true
			}
		}
	}
	p.nodes = serving(o.Nodes)
	services := slices.Clone(o.Services)
	slices.SortFunc(services, func(a, b *corev1.Service) int {
		return cmp.Or(holding(b)-holding(a), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	results := map[*corev1.Service]result{}
	var waiting []*corev1.Service
	for _, s := range services {
		switch {
		case !p.wants(s):
		case p.pooled(s):
			if a, ok := p.keeps(s); ok {
				results[s] = p.give(s, a)
			} else {
				waiting = append(waiting, s)
			}
		default:
			results[s] = p.onNodes(s)
		}
	}
	for _, s := range waiting {
		results[s] = p.allocate(s)
	}
	var changes []Change
	for _, s := range services {
		r, wanted := results[s]
		if c := change(s, r, wanted, now); c != nil {
			changes = append(changes, *c)
		}
	}
	return changes
}

// holding returns 1 for services that have an address from Coracle, otherwise 0.
func holding(s *corev1.Service) int {
	if meta.IsStatusConditionTrue(s.Status.Conditions, Condition) {
		return 1
	}
	return 0
}

func (p *plan) wants(s *corev1.Service) bool {
	if p.Disabled || s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.DeletionTimestamp != nil {
		return false
	}
	c := s.Spec.LoadBalancerClass
	return c == nil || *c == ClassPool || *c == ClassNodes
}

func (p *plan) pooled(s *corev1.Service) bool {
	if c := s.Spec.LoadBalancerClass; c != nil {
		return *c == ClassPool
	}
	return len(p.Pool) > 0
}

type result struct {
	ips    []netip.Addr
	reason string
	err    error
	// warn is the message of upstream's event UnAvailableLoadBalancer, which accompanies the addresses.
	warn string
}

func name(s *corev1.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
}

func (p *plan) inPool(a netip.Addr) bool {
	return slices.ContainsFunc(p.Pool, func(r config.AddressRange) bool { return r.Contains(a) })
}

// keeps returns the pool address that a service has and may keep.
func (p *plan) keeps(s *corev1.Service) (netip.Addr, bool) {
	if holding(s) == 0 || len(s.Status.LoadBalancer.Ingress) != 1 {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s.Status.LoadBalancer.Ingress[0].IP)
	if err != nil || !p.inPool(a) || p.own[a] || s.Spec.LoadBalancerIP != "" && s.Spec.LoadBalancerIP != a.String() {
		return netip.Addr{}, false
	}
	_, taken := p.taken[a]
	return a, !taken
}

func (p *plan) give(s *corev1.Service, a netip.Addr) result {
	p.taken[a] = name(s)
	return result{ips: []netip.Addr{a}, reason: ReasonPool}
}

// allocate gives a service the address that it requests, or the first free one.
func (p *plan) allocate(s *corev1.Service) result {
	if len(p.Pool) == 0 {
		return result{err: errors.New("no pool of addresses is configured: start the server with --load-balancer-pool")}
	}
	if asked := s.Spec.LoadBalancerIP; asked != "" {
		a, err := netip.ParseAddr(asked)
		switch owner, taken := p.taken[a]; {
		case err != nil || !p.inPool(a):
			return result{err: fmt.Errorf("loadBalancerIP %s is not in the pool", asked)}
		case taken:
			return result{err: fmt.Errorf("loadBalancerIP %s belongs to service %s", asked, owner)}
		case p.own[a]:
			return result{err: fmt.Errorf("loadBalancerIP %s is the address of a node", asked)}
		}
		return p.give(s, a)
	}
	for len(p.free) > 0 {
		r := &p.free[0]
		a := r.First
		if a == r.Last {
			p.free = p.free[1:]
		} else {
			r.First = a.Next()
		}
		if _, taken := p.taken[a]; !taken && !p.own[a] {
			return p.give(s, a)
		}
	}
	return result{err: errors.New("the pool has no free address")}
}

// onNodes gives a service its ports on the nodes' addresses, unless one of them is in use.
func (p *plan) onNodes(s *corev1.Service) result {
	for _, port := range s.Spec.Ports {
		if owner, taken := p.ports[portKey{port.Protocol, port.Port}]; taken {
			return result{err: fmt.Errorf("port %d/%s of the nodes belongs to service %s", port.Port, port.Protocol, owner)}
		}
		if port.Protocol == corev1.ProtocolTCP && slices.Contains(p.Reserved, uint16(port.Port)) {
			return result{err: fmt.Errorf("port %d/%s is used by the nodes themselves", port.Port, port.Protocol)}
		}
		if port.Protocol == corev1.ProtocolTCP && holding(s) == 0 && slices.Contains(p.IngressPorts, uint16(port.Port)) {
			return result{err: fmt.Errorf("port %d/%s of the nodes is used for Ingresses: use another port, or an Ingress",
				port.Port, port.Protocol)}
		}
	}
	r := result{reason: ReasonNodes}
	var local map[string]bool
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		local = p.Local(s)
	}
	for _, n := range p.nodes {
		if a, ok := address(n); ok && (s.Spec.LoadBalancerIP == "" || s.Spec.LoadBalancerIP == a.String()) &&
			(s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || local[n.Name]) {
			r.ips = append(r.ips, a)
		}
	}
	if asked := s.Spec.LoadBalancerIP; asked != "" {
		if a, err := netip.ParseAddr(asked); err != nil || !p.own[a] {
			return result{err: fmt.Errorf("loadBalancerIP %s is not the address of a node", asked)}
		}
	}
	if len(p.nodes) == 0 {
		r.warn = "There are no available nodes for LoadBalancer"
	}
	for _, port := range s.Spec.Ports {
		p.ports[portKey{port.Protocol, port.Port}] = name(s)
	}
	return r
}

// serving returns the nodes that take external traffic, sorted by name: the ready ones or, if none is ready, all.
func serving(nodes []*corev1.Node) []*corev1.Node {
	var ready, all []*corev1.Node
	for _, n := range nodes {
		if _, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]; excluded || nodestate.External(n) ||
			n.DeletionTimestamp != nil {
			continue
		}
		all = append(all, n)
		if nodestate.Ready(n) {
			ready = append(ready, n)
		}
	}
	if len(ready) > 0 {
		all = ready
	}
	slices.SortFunc(all, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func address(n *corev1.Node) (netip.Addr, bool) {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); a.Type == corev1.NodeInternalIP && err == nil && ip.Is4() {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

func change(s *corev1.Service, r result, wanted bool, now time.Time) *Change {
	had := meta.FindStatusCondition(s.Status.Conditions, Condition)
	if !wanted && had == nil {
		return nil // not ours
	}
	next := s.DeepCopy()
	c := &Change{Was: s, Next: next}
	if !wanted {
		next.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		meta.RemoveStatusCondition(&next.Status.Conditions, Condition)
		next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == finalizer })
		c.Events = []Event{
			{corev1.EventTypeNormal, "DeletingLoadBalancer", "Deleting load balancer"},
			{corev1.EventTypeNormal, "DeletedLoadBalancer", "Deleted load balancer"},
		}
		return c
	}
	condition := metav1.Condition{
		Type:               Condition,
		Status:             metav1.ConditionTrue,
		Reason:             r.reason,
		ObservedGeneration: s.Generation,
	}
	if r.err != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, ReasonNone, r.err.Error()
	}
	vip := corev1.LoadBalancerIPModeVIP
	next.Status.LoadBalancer.Ingress = nil
	for _, ip := range r.ips {
		next.Status.LoadBalancer.Ingress = append(next.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{
			IP: ip.String(), IPMode: &vip,
		})
	}
	if !slices.Contains(next.Finalizers, finalizer) {
		next.Finalizers = append(next.Finalizers, finalizer)
	}
	if had != nil && had.Status == condition.Status && had.Reason == condition.Reason && had.Message == condition.Message {
		condition.ObservedGeneration = had.ObservedGeneration // do not write for the generation alone
	}
	if had == nil || had.Status != condition.Status {
		condition.LastTransitionTime = metav1.NewTime(now)
	} else {
		condition.LastTransitionTime = had.LastTransitionTime
	}
	meta.SetStatusCondition(&next.Status.Conditions, condition)
	if equality.Semantic.DeepEqual(s.Status, next.Status) && len(s.Finalizers) == len(next.Finalizers) {
		return nil
	}
	if had == nil {
		c.Events = append(c.Events, Event{corev1.EventTypeNormal, "EnsuringLoadBalancer", "Ensuring load balancer"})
	}
	switch {
	case r.err != nil:
		c.Events = append(c.Events, Event{
			corev1.EventTypeWarning, "SyncLoadBalancerFailed",
			"Error syncing load balancer: failed to ensure load balancer: " + r.err.Error(),
		})
	case r.warn != "":
		c.Events = append(c.Events, Event{corev1.EventTypeWarning, "UnAvailableLoadBalancer", r.warn})
	default:
		c.Events = append(c.Events, Event{corev1.EventTypeNormal, "EnsuredLoadBalancer", "Ensured load balancer"})
	}
	return c
}

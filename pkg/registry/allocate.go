package registry

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservice "k8s.io/kubernetes/pkg/api/service"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/coracle-dev/coracle/pkg/cache"
)

// doubtful is how long the claim of a write that may or may not have been made is held.
const doubtful = time.Minute

// allocator gives out cluster IPs and node ports. It stores nothing: what is in use is what the cache's services
// have, and what the writes under way hold. A write is over once the cache shows it, so between the two nothing
// is missed. It costs O(services) a service write.
type allocator struct {
	r  *Registry
	mu sync.Mutex
	// claims of writes under way; their number is bounded by that of the calls being served.
	claims map[*claim]bool
}

// claim is what one write holds. A nil claim holds nothing.
type claim struct {
	a     *allocator
	ips   []netip.Addr
	ports []int32
	until time.Time // set once the outcome of the write is in doubt
}

func newAllocator(r *Registry) *allocator { return &allocator{r: r, claims: map[*claim]bool{}} }

// settle ends a claim with the error of its write.
func (c *claim) settle(err error) {
	if c == nil {
		return
	}
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	if err = status(err, corev1.Resource("services"), ""); err == nil || !apierrors.IsTimeout(err) && !apierrors.IsServiceUnavailable(err) {
		delete(c.a.claims, c)
		return
	}
	c.until = time.Now().Add(doubtful)
}

// inUse is what other services have, by the field that has it.
type inUse struct {
	ips   map[netip.Addr]bool
	ports map[int32]bool
}

// used collects what services other than one have. It is called with the lock.
func (a *allocator) used(namespace, name string) inUse {
	u := inUse{map[netip.Addr]bool{}, map[int32]bool{}}
	if a.r.services != nil {
		entries, _ := a.r.cache.List(a.r.services, cache.Query{})
		for _, e := range entries {
			s, ok := e.Object.(*corev1.Service)
			if !ok || s.Name == name && s.Namespace == namespace {
				continue
			}
			for _, ip := range s.Spec.ClusterIPs {
				if addr, err := netip.ParseAddr(ip); err == nil {
					u.ips[addr] = true
				}
			}
			for _, p := range s.Spec.Ports {
				u.ports[p.NodePort] = true
			}
			u.ports[s.Spec.HealthCheckNodePort] = true
		}
	}
	now := time.Now()
	for c := range a.claims {
		if !c.until.IsZero() && now.After(c.until) {
			delete(a.claims, c)
			continue
		}
		for _, ip := range c.ips {
			u.ips[ip] = true
		}
		for _, p := range c.ports {
			u.ports[p] = true
		}
	}
	return u
}

// claim allocates what now needs and was does not have.
func (a *allocator) claim(now, was *core.Service) (*claim, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var u inUse
	read := false
	get := func() inUse {
		if !read {
			name := now.Name
			if was == nil {
				name = "" // a generated or taken name excuses nothing
			}
			u, read = a.used(now.Namespace, name), true
		}
		return u
	}
	c := &claim{a: a}
	if err := a.clusterIP(c, now, was, get); err != nil {
		return nil, err
	}
	if err := a.nodePorts(c, now, was, get); err != nil {
		return nil, err
	}
	if apiservice.NeedsHealthCheck(now) && (was == nil || !apiservice.NeedsHealthCheck(was)) {
		port := now.Spec.HealthCheckNodePort
		if err := a.port(c, &port, get); err != nil {
			return nil, apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", now.Spec.HealthCheckNodePort, err))
		}
		now.Spec.HealthCheckNodePort = port
	}
	if len(c.ips) == 0 && len(c.ports) == 0 {
		return nil, nil
	}
	a.claims[c] = true
	return c, nil
}

// clusterIP gives a service the address it asks for, or any. A service keeps its address as long as its type has one.
func (a *allocator) clusterIP(c *claim, now, was *core.Service, used func() inUse) error {
	if !hasClusterIP(now) || headless(now) || was != nil && hasClusterIP(was) {
		return nil
	}
	if len(now.Spec.ClusterIPs) == 0 {
		now.Spec.ClusterIPs = []string{""}
	}
	path := field.NewPath("spec", "clusterIPs")
	if asked := now.Spec.ClusterIPs[0]; asked != "" {
		ip, err := netip.ParseAddr(asked)
		if err == nil && !a.usable(ip) {
			err = fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %s", asked, a.r.cfg.ServiceCIDR)
		} else if err == nil && used().ips[ip] {
			err = fmt.Errorf("provided IP is already allocated")
		}
		if err != nil {
			return invalidService(now, field.Invalid(path, now.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", asked, err)))
		}
		c.ips = append(c.ips, ip)
		now.Spec.ClusterIP = asked
		return nil
	}
	ip, ok := a.free(used().ips)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: range is full", now.Name))
	}
	c.ips = append(c.ips, ip)
	now.Spec.ClusterIPs[0] = ip.String()
	now.Spec.ClusterIP = now.Spec.ClusterIPs[0]
	return nil
}

// size is how many addresses the range has, network and broadcast included.
func (a *allocator) size() uint32 {
	return uint32(min(uint64(1)<<(32-a.r.cfg.ServiceCIDR.Bits()), 1<<31))
}

// usable says that an address may be asked for.
func (a *allocator) usable(ip netip.Addr) bool {
	cidr := a.r.cfg.ServiceCIDR
	return cidr.Contains(ip) && ip != cidr.Addr() && ip != a.at(a.size()-1)
}

func (a *allocator) at(offset uint32) netip.Addr {
	base := a.r.cfg.ServiceCIDR.Addr().As4()
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(base[:])+offset)
	return netip.AddrFrom4(b)
}

// free finds an address nobody has. Like upstream (KEP-3070) it leaves the low part of the range, between 16 and
// 256 addresses, to those who ask for an address by name, until the rest is full.
func (a *allocator) free(used map[netip.Addr]bool) (netip.Addr, bool) {
	size := a.size()
	low := min(max(16, size/16), 256)
	search := func(from, to uint32) (netip.Addr, bool) { // to is not included
		if from >= to {
			return netip.Addr{}, false
		}
		n := to - from
		start := rand.Uint32N(n)
		for i := range n {
			if ip := a.at(from + (start+i)%n); !used[ip] {
				return ip, true
			}
		}
		return netip.Addr{}, false
	}
	if ip, ok := search(min(low, size-1), size-1); ok {
		return ip, true
	}
	return search(2, min(low, size-1)) // the first is the API's own
}

// nodePorts gives a service's ports the node ports they ask for, or any. Ports of one service with the same
// number but other protocols share one.
func (a *allocator) nodePorts(c *claim, now, was *core.Service, used func() inUse) error {
	if now.Spec.Type != core.ServiceTypeNodePort && now.Spec.Type != core.ServiceTypeLoadBalancer {
		return nil
	}
	mine := map[int32]bool{}
	if was != nil {
		for _, p := range was.Spec.Ports {
			mine[p.NodePort] = p.NodePort != 0
		}
	}
	byPort := map[int32]int32{} // what is asked for by number of the service's port
	for _, p := range now.Spec.Ports {
		if p.NodePort != 0 && byPort[p.Port] == 0 {
			byPort[p.Port] = p.NodePort
		}
	}
	type use struct {
		protocol core.Protocol
		port     int32
	}
	seen := map[use]bool{}
	for i := range now.Spec.Ports {
		p := &now.Spec.Ports[i]
		if p.NodePort == 0 && !wantsNodePorts(now) {
			continue
		}
		if shared := byPort[p.Port]; p.NodePort == 0 && shared != 0 && !seen[use{p.Protocol, shared}] {
			p.NodePort = shared
		}
		if !mine[p.NodePort] {
			if err := a.port(c, &p.NodePort, used); err != nil {
				if p.NodePort == 0 {
					return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
				}
				return invalidService(now, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), p.NodePort, err.Error()))
			}
			mine[p.NodePort] = true
		}
		if byPort[p.Port] == 0 {
			byPort[p.Port] = p.NodePort
		}
		seen[use{p.Protocol, p.NodePort}] = true
	}
	return nil
}

// port claims a node port, any free one if it is 0.
func (a *allocator) port(c *claim, port *int32, used func() inUse) error {
	first, last := a.r.cfg.NodePortMin, a.r.cfg.NodePortMax
	u := used()
	if *port != 0 {
		switch {
		case *port < first || *port > last:
			return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %d-%d", first, last)
		case u.ports[*port]:
			return fmt.Errorf("provided port is already allocated")
		}
	} else {
		n := last - first + 1
		start := rand.Int32N(n)
		for i := range n {
			if p := first + (start+i)%n; !u.ports[p] {
				*port = p
				break
			}
		}
		if *port == 0 {
			return fmt.Errorf("range is full")
		}
	}
	u.ports[*port] = true
	c.ports = append(c.ports, *port)
	return nil
}

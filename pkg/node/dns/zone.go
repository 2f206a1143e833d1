package dns

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ttl is the TTL of cluster records in seconds: for that long clients may use a removed endpoint.
const ttl = 5

// zone contains the cluster's records as in "Kubernetes DNS-Based Service Discovery" 1.1.0.
type zone struct {
	domain string // "cluster.local"

	mu         sync.RWMutex
	services   map[types.NamespacedName]*corev1.Service
	slices     map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice // by service, then by slice name
	sliceOwner map[types.NamespacedName]types.NamespacedName                  // slice -> service
	namespaces map[string]int                                                 // number of services
	hosts      map[types.NamespacedName][]endpoint                            // endpoints of headless services
	reverse    map[netip.Addr][]pointer
	pointing   map[types.NamespacedName][]netip.Addr // addresses in reverse, each once, by service
}

type pointer struct {
	service types.NamespacedName
	name    string
}

func newZone(domain string) *zone {
	return &zone{domain: domain, services: map[types.NamespacedName]*corev1.Service{},
		slices:     map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice{},
		sliceOwner: map[types.NamespacedName]types.NamespacedName{}, namespaces: map[string]int{},
		hosts:   map[types.NamespacedName][]endpoint{},
		reverse: map[netip.Addr][]pointer{}, pointing: map[types.NamespacedName][]netip.Addr{}}
}

func (z *zone) setService(s *corev1.Service, there bool) {
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.services[name] != nil {
		z.namespaces[s.Namespace]--
	}
	delete(z.services, name)
	if there {
		z.services[name] = s
		z.namespaces[s.Namespace]++
	}
	if z.namespaces[s.Namespace] <= 0 {
		delete(z.namespaces, s.Namespace)
	}
	z.point(name)
}

func (z *zone) setSlice(s *discoveryv1.EndpointSlice, there bool) {
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	owner := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	z.mu.Lock()
	defer z.mu.Unlock()
	if before, ok := z.sliceOwner[name]; ok {
		delete(z.slices[before], s.Name)
		if len(z.slices[before]) == 0 {
			delete(z.slices, before)
		}
		delete(z.sliceOwner, name)
		if before != owner || !there {
			z.point(before)
		}
	}
	if there && owner.Name != "" {
		if z.slices[owner] == nil {
			z.slices[owner] = map[string]*discoveryv1.EndpointSlice{}
		}
		z.slices[owner][s.Name] = s
		z.sliceOwner[name] = owner
		z.point(owner)
	}
}

// point updates the hosts and the PTR records of a service. The caller must hold z.mu.
func (z *zone) point(name types.NamespacedName) {
	for _, a := range z.pointing[name] {
		z.reverse[a] = slices.DeleteFunc(z.reverse[a], func(p pointer) bool { return p.service == name })
		if len(z.reverse[a]) == 0 {
			delete(z.reverse, a)
		}
	}
	delete(z.pointing, name)
	delete(z.hosts, name)
	s := z.services[name]
	switch {
	case s == nil || s.Spec.Type == corev1.ServiceTypeExternalName:
	case !headless(s):
		for _, ip := range append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...) {
			if a, err := netip.ParseAddr(ip); err == nil && !slices.Contains(z.pointing[name], a) {
				z.reverse[a] = append(z.reverse[a], pointer{name, z.fqdn(name)})
				z.pointing[name] = append(z.pointing[name], a)
			}
		}
	default:
		z.hosts[name] = z.endpoints(s)
		domain := "." + z.fqdn(name)
		for i, e := range z.hosts[name] {
			if i == 0 || e.addr != z.hosts[name][i-1].addr { // endpoints are ordered by address
				z.pointing[name] = append(z.pointing[name], e.addr)
			}
			z.reverse[e.addr] = append(z.reverse[e.addr], pointer{name, e.host + domain})
		}
	}
}

func (z *zone) isClusterDNS(a netip.Addr) bool {
	z.mu.RLock()
	defer z.mu.RUnlock()
	s := z.services[ServiceName]
	return s != nil && slices.Contains(append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...), a.String())
}

func headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

func (z *zone) fqdn(service types.NamespacedName) string {
	return service.Name + "." + service.Namespace + ".svc." + z.domain + "."
}

type endpoint struct {
	addr  netip.Addr
	host  string // the label below the service: the pod's hostname, or the address with dashes
	ports []discoveryv1.EndpointPort
}

// maxHosts limits the addresses of a headless service, each of which takes 200 bytes and 1 us at each change of the
// service's slices. The others are not published.
const maxHosts = 50_000

// endpoints returns the published endpoints of a headless service, ordered by address.
func (z *zone) endpoints(s *corev1.Service) []endpoint {
	var all []endpoint
	of := z.slices[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}]
	for _, name := range slices.Sorted(maps.Keys(of)) {
		slice := of[name]
		if slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.Conditions.Ready != nil && !*e.Conditions.Ready && !s.Spec.PublishNotReadyAddresses {
				continue
			}
			for _, text := range e.Addresses {
				a, err := netip.ParseAddr(text)
				if err != nil {
					continue
				}
				found := endpoint{addr: a, host: dashed(a), ports: slice.Ports}
				if e.Hostname != nil && *e.Hostname != "" {
					found.host = strings.ToLower(*e.Hostname)
				}
				if all = append(all, found); len(all) == maxHosts {
					return sortedHosts(all)
				}
			}
		}
	}
	return sortedHosts(all)
}

func sortedHosts(all []endpoint) []endpoint {
	slices.SortStableFunc(all, func(a, b endpoint) int { return a.addr.Compare(b.addr) })
	return all
}

func dashed(a netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
}

var (
	notOurs  = result{}
	noName   = result{ours: true, rcode: dns.RcodeNameError}
	noRecord = result{ours: true}
)

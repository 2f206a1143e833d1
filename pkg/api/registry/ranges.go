package registry

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/networking"

	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// defaultRange is the name of the ServiceCIDR object that represents Config.ServiceCIDR.
const defaultRange = "kubernetes"

// serviceRange is a range of cluster IPs (KEP-1880).
type serviceRange struct {
	netip.Prefix
	ready bool         // addresses may be allocated
	first uint32       // offset of the first address that is allocated without being requested
	from  *cache.Entry // the ServiceCIDR; nil for Config.ServiceCIDR, which is restored if its object is deleted
}

// serviceRanges returns the range of the options, then the ranges of the other ServiceCIDR objects. As upstream, one is
// ready until its condition says otherwise or it is deleted, so that addresses can be allocated before any reconciler
// has seen it.
func (r *Registry) serviceRanges() []serviceRange {
	all := []serviceRange{{r.cfg.ServiceCIDR, true, 2, nil}} // the first address is the API server's own Service's
	if r.ranges == nil {
		return all
	}
	entries, _ := r.cache.List(r.ranges, cache.Query{})
	for _, e := range entries {
		s, ok := e.Object.(*networkingv1.ServiceCIDR)
		if !ok {
			continue
		}
		c := meta.FindStatusCondition(s.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
		ready := s.DeletionTimestamp == nil && (c == nil || c.Status == "True")
		if s.Name == defaultRange {
			all[0].ready = ready
			continue
		}
		for _, text := range s.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is4() {
				all = append(all, serviceRange{p.Masked(), ready, 1, e})
			}
		}
	}
	return all
}

// size returns the number of addresses in the range, including the network and broadcast addresses.
func (s serviceRange) size() uint32 { return uint32(min(uint64(1)<<(32-s.Bits()), 1<<31)) }

func (s serviceRange) at(offset uint32) netip.Addr {
	base := s.Addr().As4()
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(base[:])+offset)
	return netip.AddrFrom4(b)
}

// usable reports whether a Service may have ip: it is in the range, and not its first or last address.
func (s serviceRange) usable(ip netip.Addr) bool {
	return s.Contains(ip) && ip != s.Addr() && ip != s.at(s.size()-1)
}

// stays returns the condition that the range's ServiceCIDR has not changed since an address was chosen from it. It
// may have been deleted while this server's cache is behind.
func (s serviceRange) stays() []store.Op {
	if s.from == nil {
		return nil
	}
	return []store.Op{{Action: store.Check, Key: s.from.Key, Revision: s.from.Revision}}
}

// mayHave returns the range from which a Service may request ip, or an error with upstream's message.
func (r *Registry) mayHave(ip netip.Addr) (serviceRange, error) {
	err := fmt.Errorf("the provided network does not match the current range")
	for _, s := range r.serviceRanges() {
		switch {
		case !s.ready || !s.Contains(ip):
		case s.usable(ip):
			return s, nil
		default:
			err = fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %s", ip, s.Prefix)
		}
	}
	return serviceRange{}, err
}

// freeIP returns an address that is free according to the cache, and its range, which is the first with a free
// address. As upstream (KEP-3070), it leaves the low part of a range, 16 to 256 addresses, to explicit requests
// until the rest is full.
func (r *Registry) freeIP() (netip.Addr, serviceRange, bool) {
	for _, s := range r.serviceRanges() {
		if !s.ready {
			continue
		}
		last := s.size() - 1
		low := min(max(16, s.size()/16), 256, last)
		if ip, ok := r.search(s, low, last); ok {
			return ip, s, true
		}
		if ip, ok := r.search(s, s.first, low); ok {
			return ip, s, true
		}
	}
	return netip.Addr{}, serviceRange{}, false
}

// search returns a free address with an offset in [from, to), beginning at a random offset.
func (r *Registry) search(s serviceRange, from, to uint32) (netip.Addr, bool) {
	if from >= to {
		return netip.Addr{}, false
	}
	n := to - from
	start := rand.Uint32N(n)
	for i := range n {
		ip := s.at(from + (start+i)%n)
		if r.addresses == nil || r.cache.Get(r.addresses, "", ip.String()) == nil {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

// The allowed prefix lengths of a ServiceCIDR. A longer prefix leaves no address to allocate; a shorter one takes
// more addresses than any network has to spare.
const (
	shortestRange = 8
	longestRange  = 30
)

// elsewhere are ranges that services never have: of this network, loopback, link-local, multicast and reserved
// addresses.
var elsewhere = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"),
}

// checkRange rejects a ServiceCIDR with a new range that nodes could not serve: they route all addresses of a range
// to Services. Upstream's validation checks only the syntax, and allows an update to add a second range.
func (r *Registry) checkRange(s, was *networking.ServiceCIDR) error {
	var errs field.ErrorList
	for i, text := range s.Spec.CIDRs {
		if was != nil && slices.Contains(was.Spec.CIDRs, text) {
			continue
		}
		refuse := func(why string, args ...any) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "cidrs").Index(i), text, fmt.Sprintf(why, args...)))
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			continue // the strategy's validation reports it
		}
		p = p.Masked()
		switch {
		case !p.Addr().Is4():
			refuse("must be an IPv4 range: services have no IPv6 addresses in this cluster")
			continue
		case p.Bits() < shortestRange || p.Bits() > longestRange:
			refuse("must be a range of /%d to /%d", shortestRange, longestRange)
			continue
		case r.cfg.ClusterCIDR.IsValid() && r.cfg.ClusterCIDR.Overlaps(p):
			refuse("overlaps the range of pods, %s", r.cfg.ClusterCIDR)
		}
		for _, other := range elsewhere {
			if other.Overlaps(p) {
				refuse("overlaps %s, which may not contain service addresses", other)
			}
		}
		if node, ip := r.nodeIn(p); node != "" {
			refuse("contains %s, the address of node %s", ip, node)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(networking.Kind("ServiceCIDR"), s.Name, errs)
}

func (r *Registry) nodeIn(p netip.Prefix) (name string, ip netip.Addr) {
	if r.nodes == nil {
		return "", ip
	}
	entries, _ := r.cache.List(r.nodes, cache.Query{})
	for _, e := range entries {
		n, ok := e.Object.(*corev1.Node)
		if !ok {
			continue
		}
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && p.Contains(ip) {
				return n.Name, ip
			}
		}
	}
	return "", ip
}

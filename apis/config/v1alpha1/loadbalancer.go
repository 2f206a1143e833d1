package v1alpha1

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"
)

// LoadBalancing configures the addresses of services of type LoadBalancer.
type LoadBalancing struct {
	// LoadBalancerPool are the addresses for such services, as CIDRs or ranges ("192.0.2.10-192.0.2.20"). Empty
	// means the nodes' own addresses. See ParsePool.
	LoadBalancerPool []string
}

// AddressRange is the range of IPv4 addresses from First to Last, both inclusive.
type AddressRange struct{ First, Last netip.Addr }

// Contains reports whether an address is in the range.
func (r AddressRange) Contains(a netip.Addr) bool {
	return a.Is4() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// maxPool is the maximum number of ranges in a pool. Their sizes need no limit: allocation reads the services that
// have addresses, not all addresses.
const maxPool = 64

// ParsePool parses load-balancer-pool. It excludes the first and last address of a CIDR with a prefix of at most 30
// bits, the network and broadcast addresses.
func ParsePool(texts []string) ([]AddressRange, error) {
	if len(texts) > maxPool {
		return nil, fmt.Errorf("load-balancer-pool has %d ranges: at most %d", len(texts), maxPool)
	}
	var all []AddressRange
	var errs []error
	for _, text := range texts {
		r, err := parseRange(strings.TrimSpace(text))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, other := range all {
			if other.Contains(r.First) || r.Contains(other.First) {
				errs = append(errs, fmt.Errorf("load-balancer-pool %q overlaps %s-%s", text, other.First, other.Last))
			}
		}
		all = append(all, r)
	}
	return all, errors.Join(errs...)
}

func parseRange(text string) (AddressRange, error) {
	bad := fmt.Errorf("load-balancer-pool %q is not an IPv4 CIDR or range, such as 192.0.2.16/28 or 192.0.2.10-192.0.2.20",
		text)
	var r AddressRange
	if first, last, ok := strings.Cut(text, "-"); ok {
		var err1, err2 error
		r.First, err1 = netip.ParseAddr(strings.TrimSpace(first))
		r.Last, err2 = netip.ParseAddr(strings.TrimSpace(last))
		if err1 != nil || err2 != nil || !r.First.Is4() || !r.Last.Is4() {
			return r, bad
		}
	} else {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || !p.Addr().Is4():
			return r, bad
		case p.Masked() != p:
			return r, fmt.Errorf("load-balancer-pool %q has bits beyond its length: you may mean %s", text, p.Masked())
		}
		r = AddressRange{p.Addr(), lastOf(p)}
		if p.Bits() <= 30 {
			r.First, r.Last = r.First.Next(), r.Last.Prev()
		}
	}
	if r.Last.Less(r.First) {
		return r, fmt.Errorf("load-balancer-pool %q ends before it begins", text)
	}
	for _, special := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"} {
		p := netip.MustParsePrefix(special)
		if p.Contains(r.First) || p.Contains(r.Last) || r.Contains(p.Addr()) {
			return r, fmt.Errorf("load-balancer-pool %q has addresses of %s, which clients cannot reach", text, p)
		}
	}
	return r, nil
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(b)
}

// validate checks the pool. It must not overlap the cluster's own ranges.
func (c LoadBalancing) validate(own ...netip.Prefix) error {
	pool, err := ParsePool(c.LoadBalancerPool)
	if err != nil {
		return err
	}
	for _, r := range pool {
		for _, p := range own {
			if p.IsValid() && (p.Contains(r.First) || r.Contains(p.Addr())) {
				return fmt.Errorf("load-balancer-pool %s-%s overlaps the cluster's own range %s", r.First, r.Last, p)
			}
		}
	}
	return nil
}

func (c *LoadBalancing) options(f *pflag.FlagSet) {
	f.StringSliceVar(&c.LoadBalancerPool, "load-balancer-pool", nil,
		"addresses for services of type LoadBalancer: CIDRs, or ranges such as 192.0.2.10-192.0.2.20 (default the nodes' "+
			"own addresses)")
}

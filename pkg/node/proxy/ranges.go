package proxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// setRange records or removes a ServiceCIDR (KEP-1880). Config.ServiceCIDR is also present as an object.
func (p *Proxy) setRange(s *networkingv1.ServiceCIDR, there bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.ranges[s.Name]; there && old != nil && slices.Equal(old.Spec.CIDRs, s.Spec.CIDRs) {
		p.ranges[s.Name] = s
		return
	}
	if there {
		p.ranges[s.Name] = s
	} else {
		delete(p.ranges, s.Name)
	}
	p.recheckGuarded()
}

// prefixes returns the IPv4 ranges of Config.ServiceCIDR and of all ServiceCIDRs. The caller must hold p.mu.
func (p *Proxy) prefixes() []netip.Prefix {
	var all []netip.Prefix
	if p.ServiceCIDR.IsValid() {
		all = append(all, p.ServiceCIDR.Masked())
	}
	for _, s := range p.ranges {
		for _, text := range s.Spec.CIDRs {
			if c, err := netip.ParsePrefix(text); err == nil && c.Addr().Is4() {
				all = append(all, c.Masked())
			}
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

func (p *Proxy) serveRanges(g *Guarded) error {
	if g == p.guarded {
		return nil
	}
	served, err := p.serve(g.Services, g.Nodes)
	if err != nil {
		return err
	}
	if !slices.Equal(served, p.kernel.ranges) {
		p.kernel.ranges, p.broken, p.routed = served, true, false
	}
	p.guarded = g
	return nil
}

// serve returns the ranges that this node routes, and in which it rejects addresses that no service has. It always
// includes Config.ServiceCIDR. It excludes other ranges that contain a node's address or overlap one of the node's
// networks, since serving them would cut those machines off. Services with addresses in excluded ranges still work.
func (p *Proxy) serve(all []netip.Prefix, nodes map[netip.Addr]bool) ([]netip.Prefix, error) {
	var networks []netip.Prefix
	if len(all) > 1 {
		var err error
		if networks, err = ownNetworks(); err != nil {
			return nil, err
		}
	}
	refused := map[netip.Prefix]string{}
	served := slices.DeleteFunc(slices.Clone(all), func(c netip.Prefix) bool {
		if c == p.ServiceCIDR.Masked() {
			return false
		}
		for a := range nodes {
			if c.Contains(a) {
				refused[c] = fmt.Sprintf("%s is the address of a node", a)
			}
		}
		for _, n := range networks {
			if n.Overlaps(c) {
				refused[c] = fmt.Sprintf("%s is a network of the node", n)
			}
		}
		return refused[c] != ""
	})
	for c, why := range refused {
		if p.refused[c] != why {
			p.refuseRange(c, why)
		}
	}
	p.refused = refused
	return served, nil
}

func (p *Proxy) refuseRange(c netip.Prefix, why string) {
	p.Logger.Warn("ignoring range of services", "range", c, "reason", why)
	p.mu.Lock()
	ranges := slices.Collect(maps.Values(p.ranges))
	p.mu.Unlock()
	for _, s := range ranges {
		if slices.ContainsFunc(s.Spec.CIDRs, func(text string) bool {
			return strings.HasPrefix(text, c.Addr().String()+"/")
		}) {
			p.events.Event(s, corev1.EventTypeWarning, "RangeRefused", "node %s does not route %s to services: %s", p.NodeName,
				c, why)
		}
	}
}

func ownNetworks() ([]netip.Prefix, error) {
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the node: %w", err)
	}
	var out []netip.Prefix
	for _, a := range addresses {
		ip, ok := netip.AddrFromSlice(a.IP.To4())
		if ones, _ := a.Mask.Size(); ok {
			out = append(out, netip.PrefixFrom(ip, ones).Masked())
		}
	}
	return out, nil
}

package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// route is a node's pod range, and the node address via which it is routed.
type route struct {
	cidr    netip.Prefix
	via     netip.Addr
	created int64 // of the Node, in seconds
}

// limits restrict nodes' pod ranges. They are not trusted, since a Node's spec.podCIDR becomes a route on this machine.
type limits struct {
	cluster, service netip.Prefix // invalid: any, none
}

// largest returns the prefix length of the largest range that a node may have: that which nodeipam allocates.
func (l limits) largest() int { return max(24, l.cluster.Bits()) }

// check returns an error for a range that a node may not have.
func (l limits) check(p netip.Prefix) error {
	switch {
	case !p.IsValid() || !p.Addr().Is4() || p != p.Masked():
		return fmt.Errorf("%s is no IPv4 range", p)
	case !l.cluster.IsValid():
		return nil
	case !l.cluster.Contains(p.Addr()) || p.Bits() < l.largest() || p.Bits() > 30:
		return fmt.Errorf("%s is no range of /%d to /30 within the cluster's %s", p, l.largest(), l.cluster)
	case l.service.IsValid() && l.service.Overlaps(p):
		return fmt.Errorf("%s overlaps the range of services, %s", p, l.service)
	}
	return nil
}

// checkVia returns an error for an address that a node cannot have.
func (l limits) checkVia(a netip.Addr) error {
	if !a.Is4() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() {
		return fmt.Errorf("%s is no IPv4 address of a node", a)
	}
	for _, r := range []netip.Prefix{l.cluster, l.service} {
		if r.IsValid() && r.Contains(a) {
			return fmt.Errorf("%s is not a node's: it is in the cluster's own range %s", a, r)
		}
	}
	return nil
}

// routes returns the ranges to be routed, by node, and why others are refused. Of overlapping ranges, the older node's
// is accepted; among nodes of the same age, the first one's by name. Our own node's address is not checked.
func (l limits) routes(nodes map[string]route, own string) (accepted map[string]route, refused map[string]string) {
	accepted, refused = map[string]route{}, map[string]string{}
	names := slices.SortedFunc(maps.Keys(nodes), func(a, b string) int {
		return cmp.Or(cmp.Compare(nodes[a].created, nodes[b].created), cmp.Compare(a, b))
	})
	taken := map[netip.Prefix][]string{} // by the network of the largest size
	for _, name := range names {
		n := nodes[name]
		err := l.check(n.cidr)
		if err == nil && name != own {
			err = l.checkVia(n.via)
		}
		in := netip.Prefix{}
		if l.cluster.IsValid() && err == nil {
			in = netip.PrefixFrom(n.cidr.Addr(), l.largest()).Masked()
		}
		for _, other := range taken[in] {
			if err == nil && accepted[other].cidr.Overlaps(n.cidr) {
				err = fmt.Errorf("%s overlaps %s of the older node %s", n.cidr, accepted[other].cidr, other)
			}
		}
		if err != nil {
			refused[name] = err.Error()
			continue
		}
		accepted[name] = n
		taken[in] = append(taken[in], name)
	}
	return accepted, refused
}

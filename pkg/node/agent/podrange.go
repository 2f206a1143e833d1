package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// route is a node's pod range, and the address of the node as its next hop.
type route struct {
	cidr    netip.Prefix
	via     netip.Addr
	created int64 // creation time of the Node, Unix seconds
}

// limits restrict nodes' pod ranges. The ranges are not trusted, because a Node's spec.podCIDR becomes a route here.
type limits struct {
	cluster, service netip.Prefix // if invalid: any cluster range, no service range
}

// largest returns the prefix length of the largest range a node may have, which is the one that nodeipam allocates.
func (l limits) largest() int { return max(24, l.cluster.Bits()) }

// check returns an error for a pod range that a node may not have.
func (l limits) check(p netip.Prefix) error {
	switch {
	case !p.IsValid() || !p.Addr().Is4() || p != p.Masked():
		return fmt.Errorf("%s is not an IPv4 range", p)
	case !l.cluster.IsValid():
		return nil
	case !l.cluster.Contains(p.Addr()) || p.Bits() < l.largest() || p.Bits() > 30:
		return fmt.Errorf("%s is not a range of /%d to /30 within the cluster's %s", p, l.largest(), l.cluster)
	case l.service.IsValid() && l.service.Overlaps(p):
		return fmt.Errorf("%s overlaps the range of services, %s", p, l.service)
	}
	return nil
}

// checkVia returns an error for an address that cannot be a node's.
func (l limits) checkVia(a netip.Addr) error {
	if !a.Is4() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() {
		return fmt.Errorf("%s cannot be a node's IPv4 address", a)
	}
	for _, r := range []netip.Prefix{l.cluster, l.service} {
		if r.IsValid() && r.Contains(a) {
			return fmt.Errorf("%s cannot be a node's address: it is in the cluster's own range %s", a, r)
		}
	}
	return nil
}

// routes returns the accepted ranges by node, and why others are refused. If ranges overlap, the older node's is
// accepted, or for equal ages the first by name. The address of the node own is not checked.
func (l limits) routes(nodes map[string]route, own string) (accepted map[string]route, refused map[string]string) {
	accepted, refused = map[string]route{}, map[string]string{}
	names := slices.SortedFunc(maps.Keys(nodes), func(a, b string) int {
		return cmp.Or(cmp.Compare(nodes[a].created, nodes[b].created), cmp.Compare(a, b))
	})
	taken := map[netip.Prefix][]string{} // by the enclosing network of the largest size
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

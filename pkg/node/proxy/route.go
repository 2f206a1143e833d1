package proxy

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routeProtocol marks routes as Coracle's (see rtnetlink(7)). The metric tells apart installations on one machine.
const routeProtocol netlink.RouteProtocol = 0xd2

func (c *Config) metric() int {
	sum := sha256.Sum256([]byte(c.Prefix))
	return int(binary.BigEndian.Uint32(sum[:])>>1) + 1 // not 0, which matches any metric
}

// route adds routes to the ranges of cluster IPs with the node's source address, and removes routes to other ranges.
// Without them processes of the node could not connect to cluster IPs on a machine that has no default route.
func (p *Proxy) route(ranges []netip.Prefix) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback interface: %w", err)
	}
	for _, c := range ranges {
		_, dst, err := netParse(c)
		if err != nil {
			return err
		}
		err = netlink.RouteReplace(&netlink.Route{
			LinkIndex: lo.Attrs().Index,
			Dst:       dst,
			Src:       p.NodeIP.AsSlice(),
			Protocol:  routeProtocol,
			Priority:  p.metric(),
		})
		if err != nil {
			return fmt.Errorf("add the route to services %s from %s: %w", c, p.NodeIP, err)
		}
	}
	return p.removeRoutes(ranges)
}

// removeRoutes removes the routes that route added, except routes to the given ranges.
func (c *Config) removeRoutes(except []netip.Prefix) error {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4,
		&netlink.Route{Protocol: routeProtocol, Table: unix.RT_TABLE_MAIN},
		netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	var errs []error
	for _, r := range routes {
		keep := slices.ContainsFunc(except, func(p netip.Prefix) bool { return r.Dst != nil && r.Dst.String() == p.String() })
		if keep || r.Priority != c.metric() {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route %s: %w", r.Dst, err))
		}
	}
	return errors.Join(errs...)
}

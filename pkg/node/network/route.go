package network

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routeProtocol marks routes as Coracle's; iproute2 does not assign this number (see rtnetlink(7)). The metric
// identifies the installation that a route belongs to.
const routeProtocol netlink.RouteProtocol = 0xd1

// metric returns the metric of all routes of this installation. The kernel allows several routes to one destination
// if their metrics differ, so two installations on one machine never replace or remove each other's routes.
func (c *Config) metric() int {
	sum := sha256.Sum256([]byte(c.Prefix))
	return int(binary.BigEndian.Uint32(sum[:])>>1) + 1 // not 0, which matches any metric
}

func (c *Config) ours(h *netlink.Handle) ([]netlink.Route, error) {
	found, err := allRoutes(h)
	return slices.DeleteFunc(found, func(r netlink.Route) bool { return r.Priority != c.metric() }), err
}

// shared reports whether another installation has routes in this network namespace.
func (c *Config) shared(h *netlink.Handle) (bool, error) {
	found, err := allRoutes(h)
	return slices.ContainsFunc(found, func(r netlink.Route) bool { return r.Priority != c.metric() }), err
}

func allRoutes(h *netlink.Handle) ([]netlink.Route, error) {
	found, err := dump(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: routeProtocol, Table: unix.RT_TABLE_MAIN},
			netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return found, nil
}

// dump retries a netlink dump that concurrent changes interrupted, up to ten times.
func dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

func prefixOf(r netlink.Route) (netip.Prefix, bool) {
	if r.Dst == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(r.Dst.IP.To4())
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(a, bits), ok
}

// routesOf reads the routes to other nodes that an earlier process set.
func (c *Config) routesOf(h *netlink.Handle) (map[netip.Prefix]netip.Addr, error) {
	found, err := c.ours(h)
	if err != nil {
		return nil, err
	}
	routes := map[netip.Prefix]netip.Addr{}
	for _, r := range found {
		if via, ok := netip.AddrFromSlice(r.Gw.To4()); ok {
			if p, ok := prefixOf(r); ok {
				routes[p] = via
			}
		}
	}
	return routes, nil
}

// Routes implements Network. The other nodes must be on a link of this one (host gateway routing).
func (n *Net) Routes(_ context.Context, routes map[netip.Prefix]netip.Addr) error {
	n.ranges.Lock()
	defer n.ranges.Unlock()
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	n.mu.Lock()
	old, podCIDR := n.routes, n.podCIDR
	n.mu.Unlock()
	next := map[netip.Prefix]netip.Addr{}
	var errs error
	for p, via := range routes {
		p = p.Masked()
		if !p.Addr().Is4() || !via.Is4() {
			errs = errors.Join(errs, fmt.Errorf("route to pods %s via %s: only IPv4 is supported", p, via))
			continue
		}
		if old[p] != via {
			if err := n.setRoute(h, p, via); err != nil {
				errs = errors.Join(errs, err)
				continue
			}
		}
		next[p] = via
	}
	for p, via := range old {
		if _, keep := next[p]; keep {
			continue
		}
		err := h.RouteDel(&netlink.Route{Dst: prefixNet(p), Gw: via.AsSlice(), Protocol: routeProtocol, Priority: n.metric()})
		if err != nil && !errors.Is(err, unix.ESRCH) {
			errs = errors.Join(errs, fmt.Errorf("remove the route to pods %s: %w", p, err))
			next[p] = via
		}
	}
	if maps.Equal(old, next) {
		return errs
	}
	n.mu.Lock()
	n.routes = next
	cluster := n.clusterPrefixes()
	n.mu.Unlock()
	return errors.Join(errs, n.nat.prefixes(podCIDR, cluster))
}

func (c *Config) setRoute(h *netlink.Handle, p netip.Prefix, via netip.Addr) error {
	err := h.RouteReplace(&netlink.Route{
		Dst:      prefixNet(p),
		Gw:       via.AsSlice(),
		Protocol: routeProtocol,
		Priority: c.metric(),
	})
	if err != nil {
		return fmt.Errorf("route to pods %s via node %s: %w (nodes must share a network)", p, via, err)
	}
	return nil
}

func (c *Config) endRange(h *netlink.Handle, p netip.Prefix) error {
	err := h.RouteReplace(&netlink.Route{
		Dst:      prefixNet(p),
		Type:     unix.RTN_UNREACHABLE,
		Protocol: routeProtocol,
		Priority: c.metric(),
	})
	if err != nil {
		return fmt.Errorf("add the unreachable route of pod CIDR %s: %w", p, err)
	}
	return nil
}

// SetPodCIDR sets the range of pod addresses. Existing pods keep their addresses.
func (n *Net) SetPodCIDR(_ context.Context, p netip.Prefix) error {
	if err := checkPodCIDR(p); err != nil {
		return err
	}
	n.ranges.Lock()
	defer n.ranges.Unlock()
	n.mu.Lock()
	old, cluster := n.podCIDR, n.clusterPrefixes()
	n.mu.Unlock()
	if old == p {
		return nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	// Reject packets to unassigned pod addresses here instead of sending them to the default route.
	found, err := n.ours(h)
	if err != nil {
		return err
	}
	for _, r := range found {
		if q, ok := prefixOf(r); ok && r.Type == unix.RTN_UNREACHABLE && q != p {
			if err := h.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("remove the unreachable route of pod CIDR %s: %w", q, err)
			}
		}
	}
	if err := n.endRange(h, p); err != nil {
		return err
	}
	if err := n.nat.prefixes(p, cluster); err != nil {
		return err
	}
	n.mu.Lock()
	n.podCIDR = p
	n.mu.Unlock()
	n.pool.setPrefix(p)
	return nil
}

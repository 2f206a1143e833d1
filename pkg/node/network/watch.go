package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Name implements run.Component.
func (n *Net) Name() string { return "network" }

// Run restores removed routes until ctx is done. The kernel drops routes over a link that goes down and routes whose
// source address is removed; network managers remove routes that they do not know.
func (n *Net) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := n.watchRoutes(ctx); err != nil {
			return err
		}
	}
	return nil
}

// subscription receives changes from the kernel. The library closes events when the subscription ends, also after an
// error such as a buffer overrun.
type subscription[T any] struct {
	events chan T
	done   chan struct{}
}

func subscribe[T any](to func(chan<- T, <-chan struct{}) error) (*subscription[T], error) {
	s := &subscription[T]{make(chan T, 64), make(chan struct{})}
	if err := to(s.events, s.done); err != nil {
		return nil, fmt.Errorf("listen to the kernel's network changes: %w", err)
	}
	return s, nil
}

func (s *subscription[T]) end() {
	close(s.done)
	for range s.events { // drain until the subscription has ended
	}
}

// subscribeRoutes subscribes to changes of addresses and routes.
func subscribeRoutes() (*subscription[netlink.AddrUpdate], *subscription[netlink.RouteUpdate], error) {
	addresses, err := subscribe(func(c chan<- netlink.AddrUpdate, done <-chan struct{}) error {
		return netlink.AddrSubscribeWithOptions(c, done, netlink.AddrSubscribeOptions{})
	})
	if err != nil {
		return nil, nil, err
	}
	routes, err := subscribe(func(c chan<- netlink.RouteUpdate, done <-chan struct{}) error {
		return netlink.RouteSubscribeWithOptions(c, done, netlink.RouteSubscribeOptions{})
	})
	if err != nil {
		addresses.end()
		return nil, nil, err
	}
	return addresses, routes, nil
}

// WatchAddresses calls changed at first, and after changes of the machine's IPv4 addresses and default routes, until
// ctx is done.
func WatchAddresses(ctx context.Context, changed func()) error {
	for ctx.Err() == nil {
		if err := watchAddresses(ctx, changed); err != nil {
			return err
		}
	}
	return nil
}

// watchAddresses is WatchAddresses until a subscription ends.
func watchAddresses(ctx context.Context, changed func()) error {
	addresses, routes, err := subscribeRoutes()
	if err != nil {
		return err
	}
	defer addresses.end()
	defer routes.end()
	changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case a, ok := <-addresses.events:
			if !ok {
				return nil
			}
			if a.LinkAddress.IP.To4() != nil {
				changed()
			}
		case r, ok := <-routes.events:
			if !ok {
				return nil
			}
			if p, ok := prefixOf(r.Route); r.Dst == nil || ok && p.Bits() == 0 {
				changed()
			}
		}
	}
}

// watchRoutes restores routes until ctx is done or a subscription ends. Run subscribes again in the latter case.
func (n *Net) watchRoutes(ctx context.Context) error {
	links, err := subscribe(func(c chan<- netlink.LinkUpdate, done <-chan struct{}) error {
		return netlink.LinkSubscribeWithOptions(c, done, netlink.LinkSubscribeOptions{})
	})
	if err != nil {
		return err
	}
	defer links.end()
	addresses, routes, err := subscribeRoutes()
	if err != nil {
		return err
	}
	defer addresses.end()
	defer routes.end()
	n.SetReady()
	for {
		if err := errors.Join(n.repair(), n.repairPods()); err != nil {
			n.Logger.Debug("could not restore routes", "error", err)
		}
		for wanted := false; !wanted; {
			var open bool
			select {
			case <-ctx.Done():
				return nil
			case l, ok := <-links.events:
				// Pods' links change all the time, and no watched route uses them.
				open, wanted = ok, ok && !strings.HasPrefix(l.Attrs().Name, n.linkPrefix())
			case _, ok := <-addresses.events:
				open, wanted = ok, true
			case r, ok := <-routes.events:
				open, wanted = ok, ok && r.Type == unix.RTM_DELROUTE && r.Protocol == routeProtocol
			}
			if !open {
				return nil
			}
		}
	}
}

func (n *Net) repair() error {
	n.ranges.Lock()
	defer n.ranges.Unlock()
	n.mu.Lock()
	want, podCIDR := maps.Clone(n.routes), n.podCIDR
	n.mu.Unlock()
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	found, err := n.ours(h)
	if err != nil {
		return err
	}
	for _, r := range found {
		p, ok := prefixOf(r)
		if via, _ := netip.AddrFromSlice(r.Gw.To4()); ok && via == want[p] {
			delete(want, p)
		}
		if r.Type == unix.RTN_UNREACHABLE && p == podCIDR {
			podCIDR = netip.Prefix{}
		}
	}
	var errs error
	for p, via := range want {
		errs = errors.Join(errs, n.setRoute(h, p, via))
	}
	if podCIDR.IsValid() {
		errs = errors.Join(errs, n.endRange(h, podCIDR))
	}
	if errs == nil && (len(want) > 0 || podCIDR.IsValid()) {
		n.Logger.Info("restored removed routes to other nodes' pods", "nodes", len(want))
	}
	return errs
}

func (n *Net) repairPods() error {
	n.mu.Lock()
	want := map[netip.Addr]string{}
	for uid, r := range n.pods {
		if r.Ready && r.IP.IsValid() {
			want[r.IP] = uid
		}
	}
	n.mu.Unlock()
	if len(want) == 0 {
		return nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	found, err := dump(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN, Scope: netlink.SCOPE_LINK},
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_SCOPE)
	})
	if err != nil {
		return err
	}
	for _, r := range found {
		p, ok := prefixOf(r)
		if src, _ := netip.AddrFromSlice(r.Src.To4()); ok && p.IsSingleIP() && src == n.NodeIP {
			delete(want, p.Addr())
		}
	}
	var errs error
	for ip, uid := range want {
		link, err := h.LinkByName(n.linkName(uid))
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue // the pod is being removed
		}
		if err == nil {
			err = n.routeTo(h, link.Attrs().Index, ip)
		}
		errs = errors.Join(errs, err)
	}
	return errs
}

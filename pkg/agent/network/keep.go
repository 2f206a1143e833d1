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

// Name is "network": a Net is a component, which keeps the routes.
func (n *Net) Name() string { return "network" }

// Ready is closed once Run would notice that a route is gone.
func (n *Net) Ready() <-chan struct{} { return n.ready }

// Run sets routes again that the machine has lost, until ctx ends: the kernel drops those over a link when somebody sets that
// down, and services that manage a machine's network remove what they do not know.
func (n *Net) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := n.keep(ctx); err != nil {
			return err
		}
	}
	return nil
}

// subscription is a listener of the kernel's changes. The library closes events when it ends, which it also does by
// itself after an error, such as too many changes at once.
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
	for range s.events { // until it has ended
	}
}

// keep looks after the routes until ctx or a subscription ends.
func (n *Net) keep(ctx context.Context) error {
	links, err := subscribe(func(c chan<- netlink.LinkUpdate, done <-chan struct{}) error {
		return netlink.LinkSubscribeWithOptions(c, done, netlink.LinkSubscribeOptions{})
	})
	if err != nil {
		return err
	}
	defer links.end()
	addresses, err := subscribe(func(c chan<- netlink.AddrUpdate, done <-chan struct{}) error {
		return netlink.AddrSubscribeWithOptions(c, done, netlink.AddrSubscribeOptions{})
	})
	if err != nil {
		return err
	}
	defer addresses.end()
	routes, err := subscribe(func(c chan<- netlink.RouteUpdate, done <-chan struct{}) error {
		return netlink.RouteSubscribeWithOptions(c, done, netlink.RouteSubscribeOptions{})
	})
	if err != nil {
		return err
	}
	defer routes.end()
	n.once.Do(func() { close(n.ready) })
	for {
		if err := n.repair(); err != nil {
			n.Logger.Debug("routes to other nodes' pods cannot be set now", "error", err)
		}
		for wanted := false; !wanted; {
			var open bool
			select {
			case <-ctx.Done():
				return nil
			case l, ok := <-links.events:
				// Those of pods come and go all the time, and no route that is kept is over them.
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

// repair sets the routes that should be there and are not.
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
		n.Logger.Info("routes to pods were gone and are set again", "nodes", len(want))
	}
	return errs
}

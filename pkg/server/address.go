package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/node/network"
)

// addressGrace is how long the node's address may be missing before the node takes another one: a renewal of its DHCP
// lease, or a restart of a network manager, removes the address and adds it again.
const addressGrace = 10 * time.Second

// errAddressLost ends the components of a process whose node's address is gone, so that they start again with
// another one: certificates, listeners and the Node have the address.
var errAddressLost = errors.New("the node's address is gone from this machine")

// address is a component that fails with errAddressLost. The node's address must be the default one, not --node-ip.
type address struct {
	run.Readiness
	was  netip.Addr
	lost atomic.Bool
	log  *slog.Logger
}

// Name implements run.Component.
func (*address) Name() string { return "address" }

// Run implements run.Component.
func (a *address) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	changes := make(chan struct{}, 1)
	watched := make(chan error, 1)
	go func() {
		watched <- network.WatchAddresses(ctx, func() {
			select {
			case changes <- struct{}{}:
			default: // follow will look anyway
			}
		})
		close(changes)
	}()
	a.SetReady()
	err := a.follow(changes, a.next)
	cancel()
	return errors.Join(err, <-watched)
}

// follow returns errAddressLost when next has returned an address for a while, or nil when changes is closed. It calls
// next after each change.
func (a *address) follow(changes <-chan struct{}, next func() netip.Addr) error {
	var due <-chan time.Time
	for {
		select {
		case _, ok := <-changes:
			if !ok {
				return nil
			}
			if !next().IsValid() {
				due = nil
			} else if due == nil {
				due = time.After(addressGrace)
			}
		case <-due:
			due = nil
			if now := next(); now.IsValid() {
				a.log.Warn("the node's address is gone from this machine, starting again with another one", "was", a.was,
					"now", now)
				a.lost.Store(true)
				return errAddressLost
			}
		}
	}
}

// next returns the address that the node would have now if its own is gone.
func (a *address) next() netip.Addr {
	all, err := net.InterfaceAddrs()
	if err != nil || slices.ContainsFunc(all, func(have net.Addr) bool {
		p, err := netip.ParsePrefix(have.String())
		return err == nil && p.Addr() == a.was
	}) {
		return netip.Addr{}
	}
	now, err := outwardAddress()
	if err != nil {
		return netip.Addr{} // without a default route
	}
	return now
}

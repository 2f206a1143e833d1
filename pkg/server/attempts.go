package server

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// mostRefused attempts to join from one address may be refused in attemptsWindow; then the address must wait for its end.
	mostRefused    = 20
	attemptsWindow = time.Minute
	// mostSenders bounds the addresses that are counted.
	mostSenders = 4096
)

// attempts bounds how often one address may try to join with a wrong credential. Attempts that succeed are not counted, so that
// many machines behind one address can join at once. Its zero value is ready.
type attempts struct {
	mu    sync.Mutex
	since time.Time
	count map[netip.Prefix]int
}

// sender is the address that a request came from; of IPv6, the /64 that one machine has to itself.
func sender(remote string) netip.Prefix {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	a := ap.Addr().Unmap().WithZone("")
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits)
	return p
}

// allowed reports whether an address may try again.
func (a *attempts) allowed(from netip.Prefix, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roll(now)
	count, known := a.count[from]
	// Once the table is full, those that are not in it share the entry of nobody.
	if !known && len(a.count) >= mostSenders {
		count = a.count[netip.Prefix{}]
	}
	return count < mostRefused
}

func (a *attempts) failed(from netip.Prefix, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roll(now)
	if _, known := a.count[from]; !known && len(a.count) >= mostSenders {
		from = netip.Prefix{}
	}
	a.count[from]++
}

// roll begins a new window when the present one is over.
func (a *attempts) roll(now time.Time) {
	if a.count == nil || now.Sub(a.since) >= attemptsWindow {
		a.since, a.count = now, map[netip.Prefix]int{}
	}
}

package server

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// mostRefused is the number of refused join attempts per address within attemptsWindow. Further attempts get
	// 429 until the window ends.
	mostRefused    = 20
	attemptsWindow = time.Minute
	// mostSenders is the number of addresses counted separately; further ones share one count.
	mostSenders = 4096
)

// attempts limits join attempts with wrong credentials by address. Successful attempts are not counted, because
// many machines behind one address may join at once. The zero value is ready to use.
type attempts struct {
	mu    sync.Mutex
	since time.Time
	count map[netip.Prefix]int
}

// sender returns the sender's IPv4 address or IPv6 /64 prefix, which one machine may use as a whole.
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

func (a *attempts) allowed(from netip.Prefix, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roll(now)
	count, known := a.count[from]
	// Once the map is full, all new addresses share one entry.
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

func (a *attempts) roll(now time.Time) {
	if a.count == nil || now.Sub(a.since) >= attemptsWindow {
		a.since, a.count = now, map[netip.Prefix]int{}
	}
}

package network

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"sync"
)

// pool allocates the addresses of one IPv4 prefix, round-robin, so that a released address is reused as late as
// possible. It never allocates the first two addresses and the last: network, conventional gateway, broadcast.
type pool struct {
	mu     sync.Mutex
	prefix netip.Prefix
	next   uint32
	owner  map[netip.Addr]string
	held   map[string]netip.Addr // inverse of owner
	// used are the addresses that a pod had since the last sweep (Net.sweep). Until the first sweep of a prefix, every
	// address without an owner may be one.
	used  map[netip.Addr]bool
	swept bool
}

func newPool() *pool {
	return &pool{owner: map[netip.Addr]string{}, held: map[string]netip.Addr{}, used: map[netip.Addr]bool{}}
}

func (p *pool) setPrefix(prefix netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.prefix != prefix {
		p.prefix, p.next, p.swept = prefix, 0, false
	}
}

func number(a netip.Addr) uint32 { b := a.As4(); return binary.BigEndian.Uint32(b[:]) }

func address(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

// get allocates an address to owner, or returns the one it has.
func (p *pool) get(owner string) (netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, ok := p.held[owner]; ok {
		return a, nil
	}
	if !p.prefix.IsValid() {
		return netip.Addr{}, fmt.Errorf("%w: the node has no pod CIDR yet", ErrNoAddress)
	}
	size := uint32(1) << (32 - p.prefix.Bits())
	if size < 4 {
		return netip.Addr{}, fmt.Errorf("%w: pod CIDR %s is too small", ErrNoAddress, p.prefix)
	}
	first := number(p.prefix.Addr()) + 2
	usable := size - 3
	for i := range usable {
		offset := (p.next + i) % usable
		a := address(first + offset)
		if _, taken := p.owner[a]; !taken {
			p.owner[a], p.held[owner] = owner, a
			p.used[a] = p.used[a] || !p.swept
			p.next = offset + 1
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%w: all %d of pod CIDR %s are in use", ErrNoAddress, usable, p.prefix)
}

// take marks an address that an earlier process allocated. Allocation continues after it.
func (p *pool) take(a netip.Addr, owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owner[a], p.held[owner] = owner, a
	if p.prefix.Contains(a) {
		p.next = number(a) - number(p.prefix.Addr()) - 1
	}
}

func (p *pool) put(a netip.Addr, owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owner[a] == owner {
		delete(p.owner, a)
		delete(p.held, owner)
		p.used[a] = true
	}
}

// stale returns whether a connection may be tracked at an address, from an earlier pod that had it.
func (p *pool) stale() func(netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	used, swept, prefix, owner := maps.Clone(p.used), p.swept, p.prefix, maps.Clone(p.owner)
	return func(a netip.Addr) bool { return used[a] || !swept && prefix.Contains(a) && owner[a] == "" }
}

// clean records that a sweep has ended that began with stale.
func (p *pool) clean(stale func(netip.Addr) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.used, func(a netip.Addr, _ bool) bool { return stale(a) })
	p.swept = true
}

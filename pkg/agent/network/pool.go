package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
)

// pool hands out the addresses of one IPv4 prefix. It goes round the prefix,
// so that an address rests as long as possible before it is used again. The first two addresses
// and the last are never given: the network, the one other tools take for a gateway, the broadcast.
type pool struct {
	mu     sync.Mutex
	prefix netip.Prefix
	next   uint32
	owner  map[netip.Addr]string
	held   map[string]netip.Addr // the inverse of owner
}

func newPool() *pool { return &pool{owner: map[netip.Addr]string{}, held: map[string]netip.Addr{}} }

// setPrefix changes the range. Addresses that are in use stay with their owners.
func (p *pool) setPrefix(prefix netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.prefix != prefix {
		p.prefix, p.next = prefix, 0
	}
}

func number(a netip.Addr) uint32 { b := a.As4(); return binary.BigEndian.Uint32(b[:]) }

func address(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

// get gives owner an address, always the same while it holds one.
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
			p.next = offset + 1
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%w: all %d of pod CIDR %s are in use", ErrNoAddress, usable, p.prefix)
}

// take marks an address that was given before this process started, and goes on behind it.
func (p *pool) take(a netip.Addr, owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owner[a], p.held[owner] = owner, a
	if p.prefix.Contains(a) {
		p.next = number(a) - number(p.prefix.Addr()) - 1
	}
}

// put gives an address back. An address that is owner's no more is left alone.
func (p *pool) put(a netip.Addr, owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owner[a] == owner {
		delete(p.owner, a)
		delete(p.held, owner)
	}
}

package nodeipam

import (
	"errors"
	"net/netip"
	"slices"
)

// ErrFull means that no CIDR is left.
var ErrFull = errors.New("the cluster's pod network has no free node network: start the server with a larger " +
	"--cluster-cidr")

// Size returns the prefix length of a node's CIDR.
func Size(cluster netip.Prefix) int {
	if cluster.Addr().Is4() {
		return max(24, cluster.Bits())
	}
	return max(64, cluster.Bits())
}

// pool tracks the CIDRs in use by node, and finds a free one without scanning all of them.
type pool struct {
	cluster netip.Prefix
	low     netip.Prefix // lower bound of the free CIDRs; invalid: none is free
	nodes   map[string][]netip.Prefix
	taken   map[netip.Prefix]int // number of nodes; more than 1 if another client assigned duplicates
}

func newPool(cluster netip.Prefix) *pool {
	return &pool{cluster: cluster, low: first(cluster), nodes: map[string][]netip.Prefix{}, taken: map[netip.Prefix]int{}}
}

// hold records that a node has exactly these CIDRs. It ignores invalid ones.
func (p *pool) hold(node string, cidrs ...string) {
	var now []netip.Prefix
	for _, s := range cidrs {
		if n, err := netip.ParsePrefix(s); err == nil && !slices.Contains(now, n.Masked()) {
			now = append(now, n.Masked())
			p.taken[p.slot(n.Masked())]++
		}
	}
	p.release(node)
	if len(now) > 0 {
		p.nodes[node] = now
	}
}

// slot returns the allocatable CIDR that contains n, or n if it is not smaller.
func (p *pool) slot(n netip.Prefix) netip.Prefix {
	if n.Bits() > Size(p.cluster) && p.cluster.Contains(n.Addr()) {
		return netip.PrefixFrom(n.Addr(), Size(p.cluster)).Masked()
	}
	return n
}

func (p *pool) release(node string) {
	for _, n := range p.nodes[node] {
		n = p.slot(n)
		if p.taken[n]--; p.taken[n] > 0 {
			continue
		}
		delete(p.taken, n)
		if n.Bits() == Size(p.cluster) && p.cluster.Contains(n.Addr()) && (!p.low.IsValid() || n.Addr().Less(p.low.Addr())) {
			p.low = n
		}
	}
	delete(p.nodes, node)
}

// plan returns the CIDR that a node has or, if it has none, the first free one.
func (p *pool) plan(node string) (netip.Prefix, error) {
	if own := p.nodes[node]; len(own) > 0 {
		return own[0], nil
	}
	for n := p.low; n.IsValid() && p.cluster.Contains(n.Addr()); n = after(n) {
		if p.taken[n] == 0 {
			p.low = n
			return n, nil
		}
	}
	p.low = netip.Prefix{}
	return netip.Prefix{}, ErrFull
}

func first(cluster netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(cluster.Masked().Addr(), Size(cluster))
}

// after returns the CIDR that follows p, invalid after the last one.
func after(p netip.Prefix) netip.Prefix {
	b := p.Addr().AsSlice()
	for bit := p.Bits() - 1; bit >= 0; bit-- {
		mask := byte(1) << (7 - bit%8)
		b[bit/8] ^= mask
		if b[bit/8]&mask != 0 { // no carry
			a, _ := netip.AddrFromSlice(b)
			return netip.PrefixFrom(a, p.Bits())
		}
	}
	return netip.Prefix{}
}

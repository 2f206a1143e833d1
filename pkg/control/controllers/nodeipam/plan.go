package nodeipam

import (
	"errors"
	"net/netip"
	"slices"
)

// ErrFull means that no CIDR is left.
var ErrFull = errors.New("the cluster's pod network has no free node network: start the server with a larger " +
	"--cluster-cidr")

// Size is the prefix length of a node's network within a cluster's.
func Size(cluster netip.Prefix) int {
	if cluster.Addr().Is4() {
		return max(24, cluster.Bits())
	}
	return max(64, cluster.Bits())
}

// pool tracks the CIDRs in use by node, and finds a free one without scanning all of them.
type pool struct {
	cluster netip.Prefix
	low     netip.Prefix // lower bound for the next free CIDR; invalid: none is free
	nodes   map[string][]netip.Prefix
	taken   map[netip.Prefix]int // by how many nodes: one, unless another party assigned duplicates
}

func newPool(cluster netip.Prefix) *pool {
	return &pool{cluster: cluster, low: first(cluster), nodes: map[string][]netip.Prefix{}, taken: map[netip.Prefix]int{}}
}

// hold records that a node has exactly these CIDRs. Invalid ones are ignored.
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

// slot is the allocatable CIDR that contains a smaller one.
func (p *pool) slot(n netip.Prefix) netip.Prefix {
	if n.Bits() > Size(p.cluster) && p.cluster.Contains(n.Addr()) {
		return netip.PrefixFrom(n.Addr(), Size(p.cluster)).Masked()
	}
	return n
}

// release frees a node's CIDRs.
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

// after is the network that follows p; invalid after the last of all.
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

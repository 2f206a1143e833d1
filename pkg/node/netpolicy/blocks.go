package netpolicy

import (
	"encoding/binary"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// rangesOf returns the IPv4 addresses of a block without its exceptions. It ignores IPv6, which pods do not have.
func rangesOf(b *networkingv1.IPBlock) []Range {
	all, ok := prefixRange(b.CIDR)
	if !ok {
		return nil
	}
	var holes []Range
	for _, text := range b.Except {
		if hole, ok := prefixRange(text); ok {
			holes = append(holes, hole)
		}
	}
	var out []Range
	from := uint64(number(all.From))
	for _, hole := range union(holes) {
		if first := uint64(number(hole.From)); from < first {
			out = append(out, Range{address(from), address(first - 1)})
		}
		from = max(from, uint64(number(hole.To))+1)
	}
	if last := uint64(number(all.To)); from <= last {
		out = append(out, Range{address(from), all.To})
	}
	return out
}

func prefixRange(text string) (Range, bool) {
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() {
		return Range{}, false
	}
	p = p.Masked()
	return Range{p.Addr(), address(uint64(number(p.Addr())) + 1<<(32-p.Bits()) - 1)}, true
}

// union sorts ranges and merges those that overlap or touch.
func union(all []Range) []Range {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Range) int { return a.From.Compare(b.From) })
	var out []Range
	for _, r := range all {
		if n := len(out); n > 0 && uint64(number(r.From)) <= uint64(number(out[n-1].To))+1 {
			if r.To.Compare(out[n-1].To) > 0 {
				out[n-1].To = r.To
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func address(n uint64) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(n))))
}

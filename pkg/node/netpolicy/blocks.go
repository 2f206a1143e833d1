package netpolicy

import (
	"encoding/binary"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	netutils "k8s.io/utils/net"
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

// prefixRange parses what upstream accepts in stored policies, such as leading zeros and ::ffff:10.0.0.0/104: an
// exception that is ignored would be allowed.
func prefixRange(text string) (Range, bool) {
	_, n, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return Range{}, false
	}
	first, ok := netip.AddrFromSlice(n.IP.To4())
	bits, size := n.Mask.Size()
	if bits -= size - 32; !ok || bits < 0 {
		return Range{}, false
	}
	return Range{first, address(uint64(number(first)) + 1<<(32-bits) - 1)}, true
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

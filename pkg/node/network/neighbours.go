package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// maxComment is the length of comments of set elements that nft prints, in bytes.
const maxComment = 127

// Neighbour is another installation in this network namespace, running or not.
type Neighbour struct {
	// Owner is the other's Config.Owner, or the name of its nftables table.
	Owner string
	// Ranges are its ranges of pod and service addresses that overlap the given ones.
	Ranges []netip.Prefix
}

// Neighbours returns the installations with ranges of addresses that overlap the given ones. Packets to an address that
// two installations have go to the first whose table the kernel asks.
func Neighbours(prefix string, ranges ...netip.Prefix) (all []Neighbour, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	for _, t := range tables {
		other, ours := strings.CutSuffix(t.Name, tableSuffix)
		if !ours || other == prefix {
			continue
		}
		set, err := conn.GetSetByName(t, clusterSet)
		if err != nil {
			continue // another program's table, or removed since
		}
		elements, err := conn.GetSetElements(set)
		if err != nil {
			return nil, fmt.Errorf("list the ranges of nftables table %s: %w", t.Name, err)
		}
		n := Neighbour{Owner: "table " + t.Name}
		for _, p := range prefixesOf(elements, &n.Owner) {
			if slices.ContainsFunc(ranges, p.Overlaps) {
				n.Ranges = append(n.Ranges, p)
			}
		}
		if len(n.Ranges) > 0 {
			all = append(all, n)
		}
	}
	return all, nil
}

// prefixesOf is the inverse of intervals. It sets owner to the elements' comment, if there is one.
func prefixesOf(elements []nftables.SetElement, owner *string) (all []netip.Prefix) {
	slices.SortFunc(elements, func(a, b nftables.SetElement) int { return slices.Compare(a.Key, b.Key) })
	for i, e := range elements {
		first, ok := netip.AddrFromSlice(e.Key)
		if e.IntervalEnd || !ok || !first.Is4() {
			continue
		}
		if e.Comment != "" {
			*owner = e.Comment
		}
		size := uint64(1)<<32 - uint64(number(first))
		if i+1 < len(elements) {
			if next, ok := netip.AddrFromSlice(elements[i+1].Key); ok && next.Is4() {
				size = uint64(number(next)) - uint64(number(first))
			}
		}
		bits := 32
		for ; size > 1; size /= 2 {
			bits--
		}
		all = append(all, netip.PrefixFrom(first, bits))
	}
	return all
}

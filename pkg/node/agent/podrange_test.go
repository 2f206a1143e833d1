package agent

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestPodRanges(t *testing.T) {
	l := limits{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.43.0.0/16")}
	older := route{netip.MustParsePrefix("10.42.7.0/24"), netip.MustParseAddr("192.168.77.7"), 7}
	for _, c := range []struct{ cidr, via, refused string }{
		{"10.42.1.0/24", "192.168.77.1", ""},
		{"10.42.1.64/26", "192.168.77.1", ""},
		{"0.0.0.0/0", "192.168.77.1", "not a range of /24 to /30"},
		{"10.42.0.0/16", "192.168.77.1", "not a range of /24 to /30"},
		{"10.42.1.4/32", "192.168.77.1", "not a range of /24 to /30"},
		{"192.168.77.0/24", "192.168.77.1", "within the cluster's 10.42.0.0/16"},
		{"10.43.0.0/24", "192.168.77.1", "within the cluster's 10.42.0.0/16"},
		{"10.42.1.7/24", "192.168.77.1", "is not an IPv4 range"},
		{"fd00::/64", "192.168.77.1", "is not an IPv4 range"},
		{"10.42.7.0/24", "192.168.77.1", "overlaps 10.42.7.0/24 of the older node older"},
		{"10.42.7.128/25", "192.168.77.1", "overlaps 10.42.7.0/24 of the older node older"},
		{"10.42.1.0/24", "127.0.0.1", "cannot be a node's IPv4 address"},
		{"10.42.1.0/24", "10.42.7.9", "in the cluster's own range 10.42.0.0/16"},
		{"10.42.1.0/24", "10.43.0.10", "in the cluster's own range 10.43.0.0/16"},
	} {
		accepted, refused := l.routes(map[string]route{
			"older": older, "n": {netip.MustParsePrefix(c.cidr), netip.MustParseAddr(c.via), 9},
		}, "")
		require.Contains(t, accepted, "older", "%+v", c)
		if c.refused == "" {
			require.Contains(t, accepted, "n", "%+v", c)
		} else {
			require.Contains(t, refused["n"], c.refused, "%+v", c)
		}
	}
}

// TestPodRangesNeverOverlap checks that accepted ranges do not overlap, and that each refusal has a reason.
func TestPodRangesNeverOverlap(t *testing.T) {
	l := limits{cluster: netip.MustParsePrefix("10.42.0.0/20")}
	rapid.Check(t, func(t *rapid.T) {
		nodes := map[string]route{}
		for i := range rapid.IntRange(0, 12).Draw(t, "nodes") {
			a := netip.AddrFrom4([4]byte{10, 42, rapid.ByteRange(0, 18).Draw(t, "net"), rapid.Byte().Draw(t, "host")})
			nodes[fmt.Sprint("n", i)] = route{
				netip.PrefixFrom(a, rapid.IntRange(18, 32).Draw(t, "bits")).Masked(), netip.MustParseAddr("192.168.77.1"),
				rapid.Int64Range(0, 3).Draw(t, "created"),
			}
		}
		accepted, refused := l.routes(nodes, "")
		require.Len(t, nodes, len(accepted)+len(refused))
		for a, x := range accepted {
			for b, y := range accepted {
				require.True(t, a == b || !x.cidr.Overlaps(y.cidr))
			}
		}
		for name := range refused {
			n := nodes[name]
			justified := l.check(n.cidr) != nil
			for _, y := range accepted {
				justified = justified || y.cidr.Overlaps(n.cidr) && y.created <= n.created
			}
			require.True(t, justified, name)
		}
	})
}

package nodeipam

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestNetworksNeverOverlapAndAllAreUsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cluster := netip.MustParsePrefix(rapid.SampledFrom([]string{
			"10.42.0.0/20", "10.255.240.0/21", "255.255.252.0/22", "192.168.7.0/25", "fd00::/61", "ffff:ffff:ffff:fffc::/62",
		}).Draw(t, "cluster"))
		most := 1 << (Size(cluster) - cluster.Bits())
		p := newPool(cluster)
		has := map[string]netip.Prefix{}
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				node := fmt.Sprint(rapid.IntRange(0, most+1).Draw(t, "node"))
				n, err := p.plan(node)
				if own, there := has[node]; there {
					require.NoError(t, err)
					require.Equal(t, own, n, "who has one keeps it")
					return
				}
				if len(has) == most {
					require.ErrorIs(t, err, ErrFull)
					return
				}
				require.NoError(t, err)
				require.True(t, cluster.Overlaps(n))
				require.GreaterOrEqual(t, n.Bits(), cluster.Bits())
				for _, other := range has {
					require.False(t, other.Overlaps(n))
				}
				p.hold(node, n.String())
				has[node] = n
			},
			"go": func(t *rapid.T) {
				node := fmt.Sprint(rapid.IntRange(0, most+1).Draw(t, "node"))
				p.release(node)
				delete(has, node)
			},
			"seen again": func(*rapid.T) {
				for node, n := range has {
					p.hold(node, n.String(), n.String(), "what is this")
				}
			},
		})
	})
}

// A CIDR that another client assigned to a node reserves the whole allocatable CIDR that contains it.
func TestPartOfANetwork(t *testing.T) {
	p := newPool(netip.MustParsePrefix("10.42.0.0/16"))
	p.hold("a", "10.42.0.64/26")
	n, err := p.plan("b")
	require.NoError(t, err)
	require.Equal(t, "10.42.1.0/24", n.String())
	p.release("a")
	n, err = p.plan("b")
	require.NoError(t, err)
	require.Equal(t, "10.42.0.0/24", n.String())
}

// A CIDR that another client assigned to two nodes is free once both are gone.
func TestSharedNetwork(t *testing.T) {
	p := newPool(netip.MustParsePrefix("10.42.0.0/16"))
	p.hold("a", "10.42.0.0/24")
	p.hold("b", "10.42.0.0/24", "10.42.9.0/24")
	p.release("a")
	n, err := p.plan("c")
	require.NoError(t, err)
	require.Equal(t, "10.42.1.0/24", n.String())
	p.release("b")
	n, err = p.plan("c")
	require.NoError(t, err)
	require.Equal(t, "10.42.0.0/24", n.String())
}

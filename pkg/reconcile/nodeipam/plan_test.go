package nodeipam

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

func TestNetworksNeverOverlapAndAllAreUsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cluster := netip.MustParsePrefix(rapid.SampledFrom([]string{"10.42.0.0/20", "10.255.240.0/21", "255.255.252.0/22", "192.168.7.0/25", "fd00::/61", "ffff:ffff:ffff:fffc::/62"}).Draw(t, "cluster"))
		most := 1 << (Size(cluster) - cluster.Bits())
		var nodes []corev1.Node
		for range most {
			p, err := Plan(cluster, nodes)
			require.NoError(t, err)
			require.True(t, cluster.Overlaps(p))
			require.GreaterOrEqual(t, p.Bits(), cluster.Bits())
			for _, n := range nodes {
				require.False(t, netip.MustParsePrefix(n.Spec.PodCIDR).Overlaps(p))
			}
			nodes = append(nodes, corev1.Node{Spec: corev1.NodeSpec{PodCIDR: p.String()}})
		}
		_, err := Plan(cluster, nodes)
		require.ErrorIs(t, err, ErrFull)
		gone := rapid.IntRange(0, most-1).Draw(t, "gone")
		free := nodes[gone].Spec.PodCIDR
		p, err := Plan(cluster, append(nodes[:gone:gone], nodes[gone+1:]...))
		require.NoError(t, err)
		require.Equal(t, free, p.String(), "what is given back is given out again")
	})
}

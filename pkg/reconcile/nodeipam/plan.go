package nodeipam

import (
	"errors"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// ErrFull says that no network is left.
var ErrFull = errors.New("the cluster's pod network has no free node network: start the server with a larger --cluster-cidr")

// Size is the prefix length of a node's network within a cluster's.
func Size(cluster netip.Prefix) int {
	if cluster.Addr().Is4() {
		return max(24, cluster.Bits())
	}
	return max(64, cluster.Bits())
}

// Plan is the first network of the cluster's that no node has.
func Plan(cluster netip.Prefix, nodes []corev1.Node) (netip.Prefix, error) {
	taken := map[netip.Prefix]bool{}
	for i := range nodes {
		for _, s := range append([]string{nodes[i].Spec.PodCIDR}, nodes[i].Spec.PodCIDRs...) {
			if p, err := netip.ParsePrefix(s); err == nil {
				taken[p.Masked()] = true
			}
		}
	}
	size := Size(cluster)
	for p := netip.PrefixFrom(cluster.Masked().Addr(), size); cluster.Contains(p.Addr()); p = after(p) {
		if !taken[p] {
			return p, nil
		}
		if !after(p).IsValid() {
			break
		}
	}
	return netip.Prefix{}, ErrFull
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

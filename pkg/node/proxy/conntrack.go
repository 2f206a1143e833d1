package proxy

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const protocolUDP = unix.IPPROTO_UDP

// flows maps UDP frontends to their endpoints. It matches the tracked connections to these frontends that lead to
// any other destination.
type flows map[Frontend]map[netip.AddrPort]bool

func (f flows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	to, ok := netip.AddrFromSlice(flow.Forward.DstIP.To4())
	if !ok || flow.Forward.Protocol != protocolUDP {
		return false
	}
	endpoints, ours := f[Frontend{to, protocolUDP, flow.Forward.DstPort}]
	if !ours {
		return false
	}
	answers, ok := netip.AddrFromSlice(flow.Reverse.SrcIP.To4())
	return !ok || !endpoints[netip.AddrPortFrom(answers, flow.Reverse.SrcPort)]
}

// forget deletes the conntrack entries that stale matches. It walks all tracked connections of the node.
func forget(stale flows) error {
	_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4, stale)
	return err
}

func netParse(p netip.Prefix) (net.IP, *net.IPNet, error) { return net.ParseCIDR(p.Masked().String()) }

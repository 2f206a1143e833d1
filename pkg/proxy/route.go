package proxy

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink"
)

// routeProtocol marks our route as Coracle's (see rtnetlink(7)), metric as that of this installation.
const routeProtocol netlink.RouteProtocol = 0xd2

func (c *Config) metric() int {
	sum := sha256.Sum256([]byte(c.Prefix))
	return int(binary.BigEndian.Uint32(sum[:])>>1) + 1 // 0 would let the kernel match any
}

// route adds a route to cluster IPs with the node's source address, so that processes of the node can connect to them without a default route.
func (p *Proxy) route() error {
	if !p.ServiceCIDR.IsValid() {
		return nil
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	_, dst, err := netParse(p.ServiceCIDR)
	if err != nil {
		return err
	}
	err = netlink.RouteReplace(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Src: p.NodeIP.AsSlice(), Protocol: routeProtocol, Priority: p.metric()})
	if err != nil {
		return fmt.Errorf("add the route to services %s from %s: %w", p.ServiceCIDR, p.NodeIP, err)
	}
	return nil
}

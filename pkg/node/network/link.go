package network

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The pods' gateway, and the MAC addresses of the two ends of every pod's link. All pods can have the same, since each
// link is a network of its own. Neighbor entries are permanent, so there is no ARP.
var (
	gateway = netip.AddrFrom4([4]byte{169, 254, 1, 1})
	hostMAC = net.HardwareAddr{0x02, 0xc0, 0x4a, 0xc1, 0xe0, 0x01}
	podMAC  = net.HardwareAddr{0x02, 0xc0, 0x4a, 0xc1, 0xe0, 0x02}
)

const podLink = "eth0"

// The name of a link has at most 15 characters (IFNAMSIZ). What a prefix leaves has at least 40 bits of a hash of the
// pod's UID.
const (
	maxName   = 15
	maxPrefix = 7
)

// linkName returns the name of the host's end of a pod's link: linkPrefix and a hash of the UID.
func (c *Config) linkName(uid string) string {
	prefix := c.linkPrefix()
	if len(c.Prefix) > maxPrefix {
		return prefix + letters(uid, maxName-len(prefix))
	}
	sum := sha256.Sum256([]byte(uid))
	return prefix + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:maxName-len(prefix)]
}

// linkPrefix begins the names of all links of this installation. In place of a Prefix that is too long it has 36 bits
// of a hash of it.
func (c *Config) linkPrefix() string {
	if len(c.Prefix) > maxPrefix {
		return "cl" + letters(c.Prefix, 6)
	}
	return c.Prefix
}

// letters returns n letters and digits, nearly 6 bits each, of a hash of the text.
func letters(text string, n int) string {
	sum := sha256.Sum256([]byte(text))
	all := new(big.Int).SetBytes(sum[:]).Text(62)
	return all[len(all)-n:]
}

func ipNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func prefixNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// connect creates the pod's link, addresses and routes. The calling thread is in the pod's network namespace podNS,
// also on return; host is a netlink handle in the node's, hostNS.
//
// The node's end is set up first: the end that is set up last can send at once, the other one only after the kernel has
// processed the carrier event, which a query of the link (rtnl_getlink) forces.
func (n *Net) connect(host *netlink.Handle, hostNS, podNS int, uid string, ip netip.Addr) error {
	n.links.Lock()
	defer n.links.Unlock()
	pod, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer pod.Close()
	if err := pod.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1}}); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	name := n.linkName(uid)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = podLink, podMAC, n.mtu
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerMTU = name, hostMAC, uint32(n.mtu)
	veth.PeerNamespace = netlink.NsFd(hostNS)
	// The pod's end is made without IPv6 by the default of its namespace, whose change waits for no lock (see
	// Net.links).
	if err := setDisableIPv6("default", "1"); err != nil {
		return err
	}
	err = pod.LinkAdd(veth)
	if errors.Is(err, fs.ErrExist) {
		// The link of a previous sandbox of this pod, which the kernel has not removed yet.
		if old, err := host.LinkByName(name); err == nil {
			_ = host.LinkDel(old)
		}
		err = pod.LinkAdd(veth)
	}
	if err != nil {
		return fmt.Errorf("create link %s: %w", name, err)
	}
	if err := n.Failpoints.At("network.link"); err != nil {
		return err
	}
	if err := setDisableIPv6("default", "0"); err != nil {
		return err
	}
	eth0, err := pod.LinkByName(podLink)
	if err != nil {
		return err
	}
	index := eth0.Attrs().Index
	if err := pod.AddrAdd(eth0, &netlink.Addr{IPNet: ipNet(ip)}); err != nil {
		return fmt.Errorf("add address %s: %w", ip, err)
	}

	if err := unix.Setns(hostNS, unix.CLONE_NEWNET); err != nil {
		return err
	}
	hostIndex, err := n.connectHost(host, name, ip)
	if err := errors.Join(err, unix.Setns(podNS, unix.CLONE_NEWNET)); err != nil {
		return err
	}

	if err := n.Failpoints.At("network.host-link"); err != nil {
		return err
	}
	if err := pod.LinkSetUp(eth0); err != nil {
		return err
	}
	if err := pod.NeighAdd(neighbour(index, gateway, hostMAC)); err != nil {
		return fmt.Errorf("add the gateway's neighbour entry: %w", err)
	}
	if err := pod.RouteAdd(&netlink.Route{
		LinkIndex: index,
		Gw:        gateway.AsSlice(),
		Flags:     int(netlink.FLAG_ONLINK),
	}); err != nil {
		return fmt.Errorf("add the default route: %w", err)
	}
	_, err = host.LinkByIndex(hostIndex)
	return err
}

// connectHost sets up the node's end of a pod's link. The calling thread is in the node's network namespace.
func (n *Net) connectHost(host *netlink.Handle, name string, ip netip.Addr) (index int, err error) {
	link, err := host.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("link %s: %w", name, err)
	}
	// Pods have IPv4 addresses only, and duplicate address detection costs packets and wake-ups.
	if err := setDisableIPv6(name, "1"); err != nil {
		return 0, err
	}
	// Allows connections from the node's 127.0.0.1 to host ports; rules keep the pod from the node's loopback.
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/route_localnet", []byte("1"), 0); err != nil {
		return 0, err
	}
	// The pod has a permanent entry for its gateway. Without ARP replies no pod can fill the node's neighbor table.
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/arp_ignore", []byte("8"), 0); err != nil {
		return 0, err
	}
	if err := host.LinkSetUp(link); err != nil {
		return 0, err
	}
	index = link.Attrs().Index
	if err := host.NeighSet(neighbour(index, ip, podMAC)); err != nil {
		return 0, fmt.Errorf("add the pod's neighbour entry: %w", err)
	}
	return index, n.routeTo(host, index, ip)
}

// routeTo sets the node's route to a pod. Connections of the node come from its address, if the machine has it: without
// one (between two DHCP leases) the kernel refuses it as source, and chooses one.
func (n *Net) routeTo(host *netlink.Handle, index int, ip netip.Addr) error {
	route := &netlink.Route{LinkIndex: index, Dst: ipNet(ip), Scope: netlink.SCOPE_LINK, Src: n.NodeIP.AsSlice()}
	err := host.RouteReplace(route)
	if errors.Is(err, unix.EINVAL) {
		route.Src = nil
		err = host.RouteReplace(route)
	}
	if err != nil {
		return fmt.Errorf("set the route to the pod at %s: %w", ip, err)
	}
	return nil
}

func neighbour(link int, ip netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: link, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: mac}
}

// setDisableIPv6 writes the setting of a link, or "default", in the network namespace of the calling thread.
func setDisableIPv6(link, value string) error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/disable_ipv6", []byte(value), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a kernel without IPv6
	}
	return err
}

// uplink returns the MTU of the link that has the node's address, which pods use.
func uplink(h *netlink.Handle, node netip.Addr) (mtu int, err error) {
	addrs, err := dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return 0, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); !ok || ip != node {
			continue
		}
		link, err := h.LinkByIndex(a.LinkIndex)
		if err != nil {
			return 0, err
		}
		if link.Attrs().Flags&net.FlagLoopback != 0 {
			return 1500, nil
		}
		return link.Attrs().MTU, nil
	}
	return 0, fmt.Errorf("node address %s is not on any interface of this machine: use one that is (see ip addr)", node)
}

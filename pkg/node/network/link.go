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

// gateway, hostMAC and podMAC are the same for all pods: the gateway's address and the MAC addresses of the link's
// two ends. This works because each link is a separate network. Permanent neighbour entries make ARP unnecessary.
var (
	gateway = netip.AddrFrom4([4]byte{169, 254, 1, 1})
	hostMAC = net.HardwareAddr{0x02, 0xc0, 0x4a, 0xc1, 0xe0, 0x01}
	podMAC  = net.HardwareAddr{0x02, 0xc0, 0x4a, 0xc1, 0xe0, 0x02}
)

const podLink = "eth0"

// A link's name has at most 15 characters (IFNAMSIZ). After the prefix, at least 40 bits remain for a hash of the
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

// linkPrefix begins the names of all links of this installation. For a Prefix that is too long, it contains 36 bits
// of a hash instead.
func (c *Config) linkPrefix() string {
	if len(c.Prefix) > maxPrefix {
		return "cl" + letters(c.Prefix, 6)
	}
	return c.Prefix
}

// letters returns n letters and digits, nearly 6 bits each, from a hash of the text.
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
// also on return. host is a netlink handle in the node's network namespace hostNS.
//
// connect sets up the node's end first. The end that is set up last can send at once, the other only after the
// kernel has processed the carrier event. The final query of the node's end (rtnl_getlink) forces that.
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
	// Create the pod's end without IPv6 through its namespace's default: writing the default waits for no lock (see
	// Net.links).
	if err := setDisableIPv6("default", "1"); err != nil {
		return err
	}
	err = pod.LinkAdd(veth)
	if errors.Is(err, fs.ErrExist) {
		// A previous sandbox of this pod had this link, and the kernel has not removed it yet.
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
	// Pods have only IPv4 addresses, and IPv6 duplicate address detection costs packets and wake-ups.
	if err := setDisableIPv6(name, "1"); err != nil {
		return 0, err
	}
	// Allow connections from the node's 127.0.0.1 to host ports. The guard chain keeps pods from the node's
	// loopback.
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/route_localnet", []byte("1"), 0); err != nil {
		return 0, err
	}
	// The pod has a permanent entry for its gateway. Without ARP replies no pod can fill the node's neighbour table.
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

// routeTo sets the node's route to a pod, with NodeIP as source address. While the machine does not have NodeIP (for
// example between two DHCP leases), the kernel rejects it as a source, and routeTo leaves the choice to the kernel.
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

// setDisableIPv6 writes disable_ipv6 of a link, or "default", in the calling thread's network namespace. It succeeds
// if the kernel has no IPv6.
func setDisableIPv6(link, value string) error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/disable_ipv6", []byte(value), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the kernel has no IPv6
	}
	return err
}

// uplink returns the link that has the node's address.
func uplink(h *netlink.Handle, node netip.Addr) (netlink.Link, error) {
	addrs, err := dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok && ip == node {
			return h.LinkByIndex(a.LinkIndex)
		}
	}
	return nil, fmt.Errorf("node address %s is not on any interface of this machine: use one that is (see ip addr)", node)
}

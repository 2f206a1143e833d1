package network

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/socket"
)

// nat is our nftables table:
//
//	guard        drops packets with spoofed source addresses: from pods, and from other machines with a pod's address;
//	             and packets from pods to the node's 127.0.0.0/8, which route_localnet would allow
//	connections  drops new connections of a pod above Config.MaxConnections
//	forward      rejects packets from pods to link-local addresses except DNS, unless Config.MetadataAccess allows it
//	prerouting   redirects host ports, for packets that arrive
//	output       redirects host ports, for packets from the node itself
//	postrouting  masquerades traffic of pods that leaves the cluster, traffic from the node's loopback, and traffic
//	             of a pod to itself through its host port
//
// The maps "ports" and "portsat" (with host address) map host ports to pod ports. The set "self" contains the pods
// with host ports, "pods" the node's pod range, and "cluster" the prefixes to which pods are not masqueraded. The set
// "tracked" counts the connections of each pod, and "limited" holds the pods that recently had too many.
type nat struct {
	mu      sync.Mutex // held during a transaction; pods without host ports need none
	conn    *nftables.Conn
	table   *nftables.Table
	owner   string // the comment of elements of cluster and pods
	ports   *nftables.Set
	portsAt *nftables.Set
	self    *nftables.Set
	cluster *nftables.Set
	pods    *nftables.Set
	tracked *nftables.Set
	limited *nftables.Set
}

// Concatenated keys are loaded into these 32-bit registers. The first is an alias of register 1.
const (
	reg1 = unix.NFT_REG_1
	reg2 = unix.NFT_REG32_01
	reg3 = unix.NFT_REG32_02
)

// tableSuffix and clusterSet identify the tables of other installations (see Neighbours).
const (
	tableSuffix = "_net"
	clusterSet  = "cluster"
)

func tableName(prefix string) string { return prefix + tableSuffix }

func newNAT(prefix, owner string) (*nat, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName(prefix)}
	target := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	// Set IDs need to be unique only within a transaction, so they are constants.
	return &nat{conn: conn, table: t, owner: owner[:min(len(owner), maxComment)],
		ports: &nftables.Set{
			Table: t, ID: 1, Name: "ports", Comment: "host port", IsMap: true, Concatenation: true, DataType: target,
			KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService),
		},
		portsAt: &nftables.Set{
			Table: t, ID: 2, Name: "portsat", Comment: "host address and port", IsMap: true, Concatenation: true,
			DataType: target,
			KeyType:  nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService),
		},
		self: &nftables.Set{
			Table: t, ID: 3, Name: "self", Comment: "pods with host ports that may be connected to themselves",
			Concatenation: true,
			KeyType:       nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr),
		},
		cluster: &nftables.Set{
			Table:    t,
			ID:       4,
			Name:     clusterSet,
			Comment:  "where pods are not masqueraded",
			Interval: true,
			KeyType:  nftables.TypeIPAddr,
		},
		pods: &nftables.Set{
			Table:    t,
			ID:       5,
			Name:     "pods",
			Comment:  "pods of this node",
			Interval: true,
			KeyType:  nftables.TypeIPAddr,
		},
		tracked: &nftables.Set{
			Table: t, ID: 6, Name: "tracked", Comment: "pods and their connections", Dynamic: true, Size: maxTracked,
			KeyType: nftables.TypeIPAddr,
		},
		limited: &nftables.Set{
			Table: t, ID: 7, Name: "limited", Comment: "pods that had too many connections", Dynamic: true,
			HasTimeout: true, Size: maxTracked, KeyType: nftables.TypeIPAddr,
		},
	}, nil
}

// replace rebuilds the whole table in one transaction, with the host ports of all ready pods. It calls records while
// it holds the lock, as hostPorts does, so that the records agree with the table.
func (n *nat) replace(c *Config, records func() map[string]record, podCIDR netip.Prefix, cluster []netip.Prefix) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	pods := records()
	n.conn.AddTable(n.table)
	n.conn.DelTable(n.table)
	n.conn.AddTable(n.table)
	for _, s := range []*nftables.Set{n.ports, n.portsAt, n.self, n.cluster, n.pods, n.tracked, n.limited} {
		if err := n.conn.AddSet(s, nil); err != nil {
			return err
		}
	}
	dnat := []expr.Any{
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg1, RegProtoMin: reg2},
	}
	masquerade := []expr.Any{&expr.Masq{FullyRandom: true}}
	hide := masquerade
	if c.NodeIP.IsValid() {
		hide = []expr.Any{&expr.Immediate{Register: reg1, Data: c.NodeIP.AsSlice()},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg1, FullyRandom: true}}
	}

	n.filters(c)
	for name, hook := range map[string]*nftables.ChainHook{
		"prerouting": nftables.ChainHookPrerouting, "output": nftables.ChainHookOutput,
	} {
		ch := n.chain(name, nftables.ChainTypeNAT, hook, nftables.ChainPriorityNATDest)
		n.rule(ch, localDestination(), load(addrDst, reg1), load(proto, reg2), load(portDst, reg3), lookup(n.portsAt), dnat)
		n.rule(ch, localDestination(), load(proto, reg1), load(portDst, reg2), lookup(n.ports), dnat)
	}
	post := n.chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	n.rule(post, load(addrSrc, reg1), load(addrDst, reg2), member(n.self, false), hide)
	n.rule(post, inPrefix(addrSrc, netip.MustParsePrefix("127.0.0.0/8")), fromLink(expr.MetaKeyOIFNAME, c.linkPrefix()),
		hide)
	n.rule(post, load(addrSrc, reg1), member(n.pods, false), load(addrDst, reg1), member(n.cluster, true), masquerade)

	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		r := pods[uid]
		if !r.Ready || len(r.HostPorts) == 0 {
			continue
		}
		if err := n.setPorts(r, true); err != nil {
			return err
		}
	}
	if err := n.setPrefixes(podCIDR, cluster, false); err != nil {
		return err
	}
	if err := n.conn.Flush(); err != nil {
		return fmt.Errorf("set up nftables table %s: %w", n.table.Name, err)
	}
	return nil
}

// prefixes masquerades packets from podCIDR to destinations outside podCIDR and the cluster's prefixes.
func (n *nat) prefixes(podCIDR netip.Prefix, cluster []netip.Prefix) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.setPrefixes(podCIDR, cluster, true); err != nil {
		return err
	}
	return n.conn.Flush()
}

func (n *nat) setPrefixes(podCIDR netip.Prefix, cluster []netip.Prefix, flush bool) error {
	if podCIDR.IsValid() {
		cluster = append([]netip.Prefix{podCIDR}, cluster...)
	}
	if flush {
		n.conn.FlushSet(n.cluster)
		n.conn.FlushSet(n.pods)
	}
	if podCIDR.IsValid() {
		if err := n.conn.SetAddElements(n.pods, intervals([]netip.Prefix{podCIDR}, n.owner)); err != nil {
			return err
		}
	}
	if len(cluster) == 0 {
		return nil
	}
	return n.conn.SetAddElements(n.cluster, intervals(cluster, n.owner))
}

// hostPorts adds or removes one pod's host ports. Removing them may be repeated. Before it releases the lock, it calls
// record, so that a concurrent replace neither loses these ports nor restores them.
func (n *nat) hostPorts(r record, add bool, record func()) error {
	if len(r.HostPorts) == 0 {
		record()
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.setPorts(r, add); err != nil {
		return err
	}
	err := n.conn.Flush()
	if add && (errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY)) {
		return fmt.Errorf("a host port of this pod is used by another pod of this node: %w", err)
	}
	if errors.Is(err, unix.ENOENT) && !add {
		err = nil // removed before a crash
	}
	if err == nil {
		record()
	}
	return err
}

func (n *nat) setPorts(r record, add bool) error {
	ip := r.IP.AsSlice()
	elements := map[*nftables.Set][]nftables.SetElement{n.self: {{Key: slices.Concat(ip, ip)}}}
	for _, p := range r.HostPorts {
		number, err := protocol(p.Protocol)
		if err != nil {
			return err
		}
		set, key := n.ports, slices.Concat([]byte{number, 0, 0, 0}, port(p.HostPort))
		if p.HostIP.IsValid() && !p.HostIP.IsUnspecified() {
			set, key = n.portsAt, slices.Concat(p.HostIP.AsSlice(), key)
		}
		elements[set] = append(elements[set], nftables.SetElement{Key: key, Val: slices.Concat(ip, port(p.PodPort))})
	}
	apply := n.conn.SetDeleteElements
	if add {
		apply = n.conn.SetAddElements
	}
	for set, e := range elements {
		if err := apply(set, e); err != nil {
			return err
		}
	}
	return nil
}

// forgetUDP deletes the conntrack entries of a pod's UDP host ports, which would keep sending clients' packets to
// the previous pod.
func forgetUDP(r record) error {
	var filters []netlink.CustomConntrackFilter
	for _, p := range r.HostPorts {
		if !strings.EqualFold(p.Protocol, "UDP") {
			continue
		}
		f := &netlink.ConntrackFilter{}
		if err := errors.Join(f.AddProtocol(unix.IPPROTO_UDP), f.AddPort(netlink.ConntrackOrigDstPort, p.HostPort)); err !=
			nil {
			return err
		}
		filters = append(filters, f)
	}
	if len(filters) == 0 {
		return nil
	}
	_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4, filters...)
	return err
}

// sweep deletes the tracked connections of an earlier pod with the address of a new one, of which network policies
// would let the packets pass. It sweeps all released addresses at once, so that few pods wait for a dump of the table.
func (n *Net) sweep(ip netip.Addr) error {
	n.sweeping.Lock()
	defer n.sweeping.Unlock()
	stale := n.pool.stale()
	if !stale(ip) {
		return nil
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4, leftovers(stale)); err != nil {
		return fmt.Errorf("delete the connections of earlier pods: %w", err)
	}
	n.pool.clean(stale)
	return nil
}

// leftovers matches tracked connections from or to certain addresses, before or after translation.
type leftovers func(netip.Addr) bool

func (l leftovers) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	return slices.ContainsFunc([]net.IP{f.Forward.SrcIP, f.Forward.DstIP, f.Reverse.SrcIP, f.Reverse.DstIP},
		func(ip net.IP) bool {
			a, ok := netip.AddrFromSlice(ip.To4())
			return ok && l(a)
		})
}

// free returns an error if a process of this machine has the port: a redirect would take it from that process.
func (p HostPort) free() error {
	number, err := protocol(p.Protocol)
	if err != nil {
		return err
	}
	at := netip.AddrPortFrom(p.HostIP, p.HostPort)
	if !p.HostIP.IsValid() {
		at = netip.AddrPortFrom(netip.IPv4Unspecified(), p.HostPort)
	}
	if socket.InUse(number, at) {
		return fmt.Errorf("host port %s %s is in use by a process of this machine: end it or choose another port",
			cmp.Or(p.Protocol, "TCP"), at)
	}
	return nil
}

func protocol(name string) (byte, error) {
	switch strings.ToUpper(name) {
	case "TCP", "":
		return unix.IPPROTO_TCP, nil
	case "UDP":
		return unix.IPPROTO_UDP, nil
	case "SCTP":
		return unix.IPPROTO_SCTP, nil
	}
	return 0, fmt.Errorf("host port protocol %q is not supported: use TCP, UDP or SCTP", name)
}

// port encodes a port for keys and values: network byte order, padded to a register.
func port(p uint16) []byte { return append(binary.BigEndian.AppendUint16(nil, p), 0, 0) }

// intervals returns the elements of an interval set for the prefixes, with a comment. It omits prefixes that others
// contain.
func intervals(prefixes []netip.Prefix, comment string) []nftables.SetElement {
	prefixes = slices.Clone(prefixes)
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(a.Masked().Addr().Compare(b.Masked().Addr()), a.Bits()-b.Bits())
	})
	var elements []nftables.SetElement
	var last netip.Prefix
	for _, p := range prefixes {
		p = p.Masked()
		if !p.Addr().Is4() || last.IsValid() && last.Overlaps(p) {
			continue
		}
		last = p
		elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice(), Comment: comment})
		if end := uint64(number(p.Addr())) + 1<<(32-p.Bits()); end < 1<<32 {
			elements = append(elements, nftables.SetElement{Key: address(uint32(end)).AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}

package network

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	// maxTracked is the maximum number of pods whose connections are counted, more than a node has.
	maxTracked = 16384
	// limitedFor is how long a pod stays in the set "limited" after its last refused connection.
	limitedFor = 10 * time.Minute
)

func (n *nat) chain(name string, kind nftables.ChainType, hook *nftables.ChainHook,
	prio *nftables.ChainPriority) *nftables.Chain {
	return n.conn.AddChain(&nftables.Chain{Table: n.table, Name: name, Type: kind, Hooknum: hook, Priority: prio})
}

func (n *nat) rule(ch *nftables.Chain, parts ...[]expr.Any) {
	n.conn.AddRule(&nftables.Rule{Table: n.table, Chain: ch, Exprs: slices.Concat(parts...)})
}

// filters adds the chains that drop and reject packets.
func (n *nat) filters(c *Config) {
	drop := []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}
	fromPod := fromLink(expr.MetaKeyIIFNAME, c.linkPrefix())
	guard := n.chain("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	n.rule(guard, fromPod, inPrefix(addrDst, netip.MustParsePrefix("127.0.0.0/8")), drop)
	n.rule(guard, fromPod, spoofed(), drop)
	// On loopback, responses of services on this node have the service's address.
	n.rule(guard, notLoopback(), load(addrSrc, reg1), member(n.cluster, false), spoofed(), drop)
	if c.MaxConnections > 0 {
		n.limitConnections(fromPod, uint32(c.MaxConnections), drop)
	}
	if !c.MetadataAccess {
		forward := n.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
		pods := slices.Concat(fromPod, inPrefix(addrDst, linkLocal))
		unreachable := []expr.Any{
			&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpAdminProhibited},
		}
		n.rule(forward, pods, protocolIs(expr.CmpOpEq, unix.IPPROTO_TCP), notTo(portDNS),
			[]expr.Any{&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
		n.rule(forward, pods, protocolIs(expr.CmpOpEq, unix.IPPROTO_UDP), notTo(portDNS), unreachable)
		n.rule(forward, pods, protocolIs(expr.CmpOpNeq, unix.IPPROTO_TCP), protocolIs(expr.CmpOpNeq, unix.IPPROTO_UDP),
			unreachable)
	}
}

// limitConnections drops new connections of a pod that has more than most entries in the kernel's connection table.
// The kernel does not count closed TCP connections, and replaces them and unanswered packets when the table is full.
// It walks a pod's connections at most once per tick (4 ms), so the cost grows with most.
func (n *nat) limitConnections(fromPod []expr.Any, most uint32, drop []expr.Any) {
	over := n.conn.AddChain(&nftables.Chain{Table: n.table, Name: "over-limit"})
	n.rule(over, load(addrSrc, reg1), []expr.Any{&expr.Dynset{
		SrcRegKey: reg1, SetName: n.limited.Name, SetID: n.limited.ID, Operation: unix.NFT_DYNSET_OP_UPDATE,
		Timeout: limitedFor,
	}})
	n.rule(over, drop) // a rule of its own, because the one above ends if the set is full
	connections := n.chain("connections", nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
		nftables.ChainPriorityMangle)
	n.rule(connections, fromPod, isNew(), load(addrSrc, reg1), []expr.Any{
		&expr.Dynset{
			SrcRegKey: reg1, SetName: n.tracked.Name, SetID: n.tracked.ID, Operation: unix.NFT_DYNSET_OP_ADD,
			Exprs: []expr.Any{&expr.Connlimit{Count: most, Flags: expr.NFT_CONNLIMIT_F_INV}},
		},
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: over.Name},
	})
}

// Limited returns the addresses of pods of which connections were refused in the last ten minutes, because they have
// more than Config.MaxConnections.
func (n *Net) Limited() ([]netip.Addr, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	elements, err := conn.GetSetElements(n.nat.limited)
	if err != nil {
		return nil, fmt.Errorf("list the pods with too many connections: %w", err)
	}
	var all []netip.Addr
	for _, e := range elements {
		if a, ok := netip.AddrFromSlice(e.Key); ok {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all, nil
}

package proxy

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// These chains do not depend on services. For the others see backend.chain.
const (
	chainReject     = "refused"
	chainDrop       = "ignored"
	chainSources    = "source-ranges"
	chainInside     = "to-services-inside"
	chainServices   = "to-services"
	chainMasquerade = "mark-for-masquerade"
)

// r returns the nth of the sixteen 32-bit registers. Concatenated keys and values occupy consecutive registers.
func r(n uint32) uint32 { return unix.NFT_REG32_00 + n }

// chain adds a chain, or flushes an existing one.
func (k *kernel) chain(c *nftables.Chain) *nftables.Chain {
	c.Table = k.table
	k.conn.AddChain(c)
	k.conn.FlushChain(c)
	return c
}

func (k *kernel) rule(c *nftables.Chain, comment string, parts ...[]expr.Any) {
	r := &nftables.Rule{Table: k.table, Chain: c, Exprs: slices.Concat(parts...)}
	if comment != "" {
		r.UserData = userdata.AppendString(nil, userdata.TypeComment, comment)
	}
	k.conn.AddRule(r)
}

func (k *kernel) baseChains() {
	k.fixed = map[string]bool{}
	fixed := func(c *nftables.Chain) *nftables.Chain {
		k.fixed[c.Name] = true
		return k.chain(c)
	}
	base := func(name string, hook *nftables.ChainHook, prio *nftables.ChainPriority) *nftables.Chain {
		return fixed(&nftables.Chain{Name: name, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: prio})
	}
	plain := func(name string) *nftables.Chain { return fixed(&nftables.Chain{Name: name}) }
	refuse := plain(chainReject)
	k.rule(refuse, "", protocolIs(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	k.rule(refuse, "", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3}}) // port unreachable
	ignore := plain(chainDrop)
	k.rule(ignore, "no endpoint on this node, and the service's policy is Local", []expr.Any{
		&expr.Verdict{Kind: expr.VerdictDrop},
	})

	inside := plain(chainInside)
	k.rule(inside, "", frontendTo(0), k.lookup(setInside, r(0), unix.NFT_REG_VERDICT))
	everyone := plain(chainServices)
	k.rule(everyone, "", frontendTo(0), k.lookup(setServices, r(0), unix.NFT_REG_VERDICT))
	for _, c := range k.ranges {
		k.rule(everyone, "a cluster IP or port that no service has", inPrefix(loadDestination(0), c, false),
			jump(expr.VerdictGoto, chainReject))
	}
	k.rule(everyone, "a port that the load balancer does not have", loadDestination(0), k.member(setVirtual, r(0)),
		jump(expr.VerdictGoto, chainReject))

	clients := plain(chainSources)
	k.rule(clients, "", frontendTo(0), loadSource(3), k.member(setSources, r(0)), jump(expr.VerdictReturn, ""))
	k.rule(clients, "", []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})
	restrict := slices.Concat(frontendTo(0), k.member(setRestricted, r(0)), jump(expr.VerdictJump, chainSources))

	mark := plain(chainMasquerade)
	setBit := setMark(^uint32(masqueraded), masqueraded)
	k.rule(mark, "", frontendTo(0), k.member(setMasquerade, r(0)), setBit)
	if k.config.ClusterCIDR.IsValid() {
		for _, c := range k.ranges {
			k.rule(mark, "from outside of the cluster: replies must return through this node",
				inPrefix(loadDestination(0), c, false), inPrefix(loadSource(0), k.config.ClusterCIDR, true), setBit)
		}
	}

	arrive := base("prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	k.rule(arrive, "", restrict)
	k.rule(arrive, "", jump(expr.VerdictJump, chainMasquerade))
	if c := k.config.ClusterCIDR; c.IsValid() {
		k.rule(arrive, "from a pod", inPrefix(loadSource(0), c, false), jump(expr.VerdictJump, chainInside))
	}
	k.rule(arrive, "", jump(expr.VerdictJump, chainServices))
	leave := base("output", nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	k.rule(leave, "", restrict)
	k.rule(leave, "", jump(expr.VerdictJump, chainMasquerade))
	k.rule(leave, "", jump(expr.VerdictJump, chainInside))
	k.rule(leave, "", jump(expr.VerdictJump, chainServices))

	post := base("postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	hide := []expr.Any{&expr.Immediate{Register: r(0), Data: k.config.NodeIP.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: r(0), FullyRandom: true}}
	k.rule(post, "an endpoint that is its own client", redirected(), loadSource(0), loadDestination(1),
		k.member(setHairpin, r(0)), hide)
	k.rule(post, "", redirected(), marked(), setMark(^uint32(masqueraded), 0), hide)
	k.rule(post, "the node's loopback is not routable", redirected(),
		inPrefix(loadSource(0), netip.MustParsePrefix("127.0.0.0/8"), false), hide)
}

// balanceChain selects the next endpoint and redirects the connection to it.
//
// Rules contain a backend's slot as two number generators with one value each, the only way in nft's language to put
// a constant number into a key. With session affinity, a client with a member of the backend keeps it while the
// member exists. The packet's priority field carries the member between two rules or two maps. The field has no
// meaning until forwarding sets it; a value from a local process is lost only for the first packet of a connection.
func (k *kernel) balanceChain(name string, c chain) error {
	ch := k.chain(&nftables.Chain{Name: name})
	number := func(reg uint32) []expr.Any { return generate(reg, c.count, 0) }
	if c.slot == (slot{}) {
		k.rule(ch, "", frontendTo(0), number(3), k.lookup(setEndpoints, r(0), r(0)), redirect())
		return nil
	}
	backend := func(reg uint32) []expr.Any {
		return slices.Concat(generate(reg, 1, binary.NativeEndian.Uint32(c.slot[:4])),
			generate(reg+1, 1, binary.NativeEndian.Uint32(c.slot[4:])))
	}
	if c.affinity == 0 {
		k.rule(ch, "", backend(0), number(2), k.lookup(setBackends, r(0), r(0)), redirect())
		return nil
	}
	clients := k.clients(name, c)
	if err := k.conn.AddSet(clients, nil); err != nil {
		return err
	}
	client := loadSource(0)
	store := func(operation uint32) []expr.Any {
		return []expr.Any{&expr.Dynset{SrcRegKey: r(0), SrcRegData: r(4), SetName: clients.Name, SetID: clients.ID,
			Operation: operation, Timeout: time.Duration(c.affinity) * time.Second}}
	}
	find := []expr.Any{
		&expr.Lookup{
			SourceRegister: r(0),
			DestRegister:   r(4),
			IsDestRegSet:   true,
			SetName:        clients.Name,
			SetID:          clients.ID,
		},
	}
	send := slices.Concat(backend(0), loadPriority(2), k.lookup(setTargets, r(0), r(0)), redirect())
	k.rule(ch, "a client that has a member", client, find, setPriority(4), loadPriority(4),
		store(unix.NFT_DYNSET_OP_UPDATE), send)
	k.rule(ch, "others get the next one", backend(0), number(2), k.lookup(setMembers, r(0), r(4)), setPriority(4))
	// Delete first, since an update does not change an existing element. If the set is full, the rule has no effect.
	k.rule(ch, "", client, loadPriority(4), store(dynsetDelete), store(unix.NFT_DYNSET_OP_UPDATE))
	k.rule(ch, "", send)
	return nil
}

// redirect redirects a connection to the address in register 0 and the port in register 1.
func redirect() []expr.Any {
	return []expr.Any{&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: r(0), RegProtoMin: r(1)}}
}

// generate loads the numbers from offset to offset+count-1 in turn.
func generate(reg uint32, count int, offset uint32) []expr.Any {
	return []expr.Any{
		&expr.Numgen{Register: r(reg), Modulus: uint32(count), Offset: offset, Type: unix.NFT_NG_INCREMENTAL},
	}
}

func setPriority(reg uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: r(reg), SourceRegister: true}}
}

func loadPriority(reg uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: r(reg)}}
}

const dynsetDelete = 2 // NFT_DYNSET_OP_DELETE of linux/netfilter/nf_tables.h

func (k *kernel) lookup(s set, from, to uint32) []expr.Any {
	return []expr.Any{
		&expr.Lookup{
			SourceRegister: from,
			DestRegister:   to,
			IsDestRegSet:   true,
			SetName:        k.sets[s].Name,
			SetID:          k.sets[s].ID,
		},
	}
}

func (k *kernel) member(s set, from uint32) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: from, SetName: k.sets[s].Name, SetID: k.sets[s].ID}}
}

func loadSource(reg uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: r(reg), Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}}
}

func loadDestination(reg uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: r(reg), Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}}
}

func loadProtocol(reg uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r(reg)}}
}

// frontendTo loads destination address, protocol and port, the key of a frontend, into three registers.
func frontendTo(reg uint32) []expr.Any {
	return slices.Concat(loadDestination(reg), loadProtocol(reg+1),
		[]expr.Any{&expr.Payload{DestRegister: r(reg + 2), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}})
}

func protocolIs(p byte) []expr.Any {
	return append(loadProtocol(0), &expr.Cmp{Op: expr.CmpOpEq, Register: r(0), Data: []byte{p}})
}

// inPrefix matches if the address that load puts into register 0 is in the prefix or, inverted, if it is not.
func inPrefix(load []expr.Any, p netip.Prefix, invert bool) []expr.Any {
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-p.Bits()))
	op := expr.CmpOpEq
	if invert {
		op = expr.CmpOpNeq
	}
	return slices.Concat(load, []expr.Any{
		&expr.Bitwise{SourceRegister: r(0), DestRegister: r(0), Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: r(0), Data: p.Masked().Addr().AsSlice()}})
}

// redirected matches connections whose destination was translated.
func redirected() []expr.Any {
	const destinationNAT = 1 << 5 // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: r(0)},
		masked(destinationNAT, 0),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: r(0), Data: make([]byte, 4)}}
}

// masqueraded is the bit of a packet's mark for connections whose source is to be translated, which is decided
// before their destination is translated. It is kube-proxy's bit, so other software leaves it alone. Conntrack's
// original destination would avoid the mark, but nft and firewalld abort on a table with that as part of a key.
const masqueraded = 0x4000

func loadMark() []expr.Any { return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: r(0)}} }

// setMark keeps the bits in keep of the packet's mark, then inverts the bits in invert.
func setMark(keep, invert uint32) []expr.Any {
	return append(loadMark(), masked(keep, invert), &expr.Meta{
		Key:            expr.MetaKeyMARK,
		Register:       r(0),
		SourceRegister: true,
	})
}

func marked() []expr.Any {
	return append(loadMark(), masked(masqueraded, 0), &expr.Cmp{Op: expr.CmpOpNeq, Register: r(0), Data: make([]byte, 4)})
}

// masked applies a mask and an exclusive or to register 0, in host byte order.
func masked(mask, xor uint32) expr.Any {
	return &expr.Bitwise{
		SourceRegister: r(0),
		DestRegister:   r(0),
		Len:            4,
		Mask:           binary.NativeEndian.AppendUint32(nil, mask),
		Xor:            binary.NativeEndian.AppendUint32(nil, xor),
	}
}

func jump(kind expr.VerdictKind, to string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: to}}
}

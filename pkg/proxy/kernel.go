package proxy

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	protocolUDP = unix.IPPROTO_UDP

	chainReject = "reject"
	chainDrop   = "drop"
	chainClient = "clients"

	// affinityLimit is the maximum number of clients with session affinity. Further clients have none.
	affinityLimit = 65536
	// piece is the number of elements per message, whose length is a 16-bit number.
	piece = 300
	// buffer is the size of the socket's buffers, in bytes, for a full sync of the largest cluster; memory is used only as needed.
	buffer = 64 << 20
)

func tableName(prefix string) string { return prefix + "_proxy" }

// name returns a chain's name in the kernel, such as any-3-17 or inside-2-9-10800s.
func (c chain) name() string {
	side := "any"
	if c.inside {
		side = "inside"
	}
	name := side + "-" + strconv.Itoa(c.count) + "-" + strconv.Itoa(int(c.shard))
	if c.affinity > 0 {
		name += "-" + strconv.FormatUint(uint64(c.affinity), 10) + "s"
	}
	return name
}

// chainNamed is the inverse of name. It returns false for the chains that always exist.
func chainNamed(name string) (chain, bool) {
	parts := strings.Split(name, "-")
	if len(parts) < 3 {
		return chain{}, false
	}
	c := chain{inside: parts[0] == "inside"}
	count, err1 := strconv.Atoi(parts[1])
	shard, err2 := strconv.ParseUint(parts[2], 10, 8)
	c.count, c.shard = count, byte(shard)
	var err3 error
	if len(parts) > 3 {
		var affinity uint64
		affinity, err3 = strconv.ParseUint(strings.TrimSuffix(parts[3], "s"), 10, 32)
		c.affinity = uint32(affinity)
	}
	return c, errors.Join(err1, err2, err3) == nil
}

// kernel writes our nftables table. It is not safe for concurrent use.
type kernel struct {
	conn     *nftables.Conn
	table    *nftables.Table
	sets     [setCount]*nftables.Set
	affinity *nftables.Set // client . slot -> endpoint, written by the packets
	config   *Config
	ranges   []netip.Prefix // of cluster IPs
}

func newKernel(c *Config) (*kernel, error) {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(conn *netlink.Conn) error {
		// Without CAP_NET_ADMIN the machine's limit applies, and large syncs may fail with an error.
		return errors.Join(conn.SetReadBuffer(buffer), conn.SetWriteBuffer(buffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName(c.Prefix)}
	concat := nftables.MustConcatSetType
	ip, port, word := nftables.TypeIPAddr, nftables.TypeInetService, nftables.TypeMark
	front := concat(ip, nftables.TypeInetProto, port)
	to := concat(ip, port)
	k := &kernel{conn: conn, table: t, config: c}
	add := func(s set, name string, key nftables.SetDatatype, data *nftables.SetDatatype) {
		k.sets[s] = &nftables.Set{Table: t, Name: name, ID: uint32(s) + 1, KeyType: key, Concatenation: true}
		if data != nil {
			k.sets[s].IsMap, k.sets[s].DataType = true, *data
		}
	}
	slots := concat(word, word)
	add(setFrontends, "frontends", front, &nftables.TypeVerdict)
	add(setInside, "inside", front, &nftables.TypeVerdict)
	add(setSlots, "slots", front, &slots)
	add(setSlotsInside, "slotsinside", front, &slots)
	add(setEndpoints, "endpoints", concat(word, word, word), &to)
	add(setLive, "live", concat(word, word, ip, port), nil)
	add(setMasquerade, "masquerade", front, nil)
	add(setHairpin, "hairpin", concat(ip, ip), nil)
	add(setRestricted, "restricted", front, nil)
	add(setSources, "sources", concat(ip, nftables.TypeInetProto, port, ip), nil)
	k.sets[setSources].Interval = true
	add(setVirtual, "virtual", ip, nil)
	k.sets[setVirtual].Concatenation = false
	k.affinity = &nftables.Set{Table: t, Name: "affinity", ID: uint32(setCount) + 1, IsMap: true, Dynamic: true, HasTimeout: true,
		Concatenation: true, Size: affinityLimit, KeyType: concat(ip, word, word), DataType: to}
	return k, nil
}

// replace rewrites the table in one transaction: packets see either the old or the new rules. Base chains are kept, because a packet that passes
// the hooks while they are replaced may match neither the old nor the new chain. Only a table of another layout is replaced as a
// whole.
func (k *kernel) replace(d *delta) error {
	there, err := k.conn.ListChainsOfTableFamily(k.table.Family)
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	keep := map[string]bool{}
	for _, c := range d.addChain {
		keep[c.name()] = true
	}
	fill := func() error {
		k.conn.AddTable(k.table)
		for _, s := range append(k.sets[:], k.affinity) {
			if err := k.conn.AddSet(s, nil); err != nil {
				return err
			}
			k.conn.FlushSet(s)
		}
		k.baseChains()
		for _, c := range there {
			if _, ours := chainNamed(c.Name); ours && c.Table.Name == k.table.Name && !keep[c.Name] {
				k.conn.FlushChain(c)
				k.conn.DelChain(c)
			}
		}
		return k.update(d)
	}
	if err := fill(); err == nil {
		return nil
	}
	k.conn.AddTable(k.table)
	k.conn.DelTable(k.table)
	there = nil
	return fill()
}

// chain adds a chain, or flushes an existing one.
func (k *kernel) chain(c *nftables.Chain) *nftables.Chain {
	k.conn.AddChain(c)
	k.conn.FlushChain(c)
	return c
}

// update applies a delta in one transaction.
func (k *kernel) update(d *delta) error {
	if err := k.elements(d.remove, nil); err != nil {
		return err
	}
	// A chain is removed after, and added before, the elements that refer to it.
	for _, c := range d.dropChain {
		k.conn.FlushChain(&nftables.Chain{Table: k.table, Name: c.name()})
		k.conn.DelChain(&nftables.Chain{Table: k.table, Name: c.name()})
	}
	for _, c := range d.addChain {
		k.balanceChain(c)
	}
	if err := k.elements(d.add, d.values); err != nil {
		return err
	}
	if err := k.conn.Flush(); err != nil {
		return fmt.Errorf("write nftables table %s: %w", k.table.Name, err)
	}
	return nil
}

// elements adds or removes elements, in one message per piece.
func (k *kernel) elements(all []element, values map[element]string) error {
	slices.SortFunc(all, func(a, b element) int { return cmp.Compare(a.set, b.set) })
	for len(all) > 0 {
		n := 0
		batch := make([]nftables.SetElement, 0, min(piece, len(all)))
		for n < len(all) && n < piece && all[n].set == all[0].set {
			e := nftables.SetElement{Key: []byte(all[n].key)}
			if all[n].set == setSources {
				e.Key, e.KeyEnd = e.Key[:len(e.Key)/2], e.Key[len(e.Key)/2:]
			}
			if value := values[all[n]]; value != "" {
				if s := all[n].set; s == setFrontends || s == setInside {
					e.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: value}
				} else {
					e.Val = []byte(value)
				}
			}
			batch = append(batch, e)
			n++
		}
		apply := k.conn.SetAddElements
		if values == nil {
			apply = k.conn.SetDeleteElements
		}
		if err := apply(k.sets[all[0].set], batch); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

func (k *kernel) close() error { return k.conn.CloseLasting() }

// reset removes the table.
func (k *kernel) reset() error {
	k.conn.DelTable(k.table)
	if err := k.conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove nftables table %s: %w", k.table.Name, err)
	}
	return nil
}

// r returns the nth of the sixteen 32-bit registers. Concatenated keys and values are in consecutive registers.
func r(n uint32) uint32 { return unix.NFT_REG32_00 + n }

func (k *kernel) rule(c *nftables.Chain, parts ...[]expr.Any) {
	k.conn.AddRule(&nftables.Rule{Table: k.table, Chain: c, Exprs: slices.Concat(parts...)})
}

func (k *kernel) baseChains() {
	base := func(name string, hook *nftables.ChainHook, prio *nftables.ChainPriority) *nftables.Chain {
		return k.chain(&nftables.Chain{Table: k.table, Name: name, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: prio})
	}
	plain := func(name string) *nftables.Chain {
		return k.chain(&nftables.Chain{Table: k.table, Name: name})
	}
	refuse := plain(chainReject)
	k.rule(refuse, protocolIs(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	k.rule(refuse, []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3}}) // port unreachable
	ignore := plain(chainDrop)
	k.rule(ignore, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})

	inside := plain("ours")
	k.rule(inside, frontendTo(0), k.lookup(setInside, r(0), unix.NFT_REG_VERDICT))
	everyone := plain("services")
	k.rule(everyone, frontendTo(0), k.lookup(setFrontends, r(0), unix.NFT_REG_VERDICT))
	for _, c := range k.ranges {
		// A cluster IP or port that no service has.
		k.rule(everyone, inPrefix(loadDestination(0), c, false), jump(expr.VerdictGoto, chainReject))
	}
	// The same for addresses of the pool, which no machine has.
	k.rule(everyone, loadDestination(0), k.member(setVirtual, r(0)), jump(expr.VerdictGoto, chainReject))

	clients := plain(chainClient)
	k.rule(clients, frontendTo(0), loadSource(3), k.member(setSources, r(0)), jump(expr.VerdictReturn, ""))
	k.rule(clients, jump(expr.VerdictGoto, chainDrop))
	restrict := slices.Concat(frontendTo(0), k.member(setRestricted, r(0)), jump(expr.VerdictJump, chainClient))

	mark := plain("masquerading")
	k.rule(mark, frontendTo(0), k.member(setMasquerade, r(0)), setMark(^uint32(masqueraded), masqueraded))
	if k.config.ClusterCIDR.IsValid() {
		for _, c := range k.ranges {
			// From outside of the cluster to a cluster IP: replies must return through this node.
			k.rule(mark, inPrefix(loadDestination(0), c, false), inPrefix(loadSource(0), k.config.ClusterCIDR, true), setMark(^uint32(masqueraded), masqueraded))
		}
	}

	arrive := base("prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	k.rule(arrive, restrict)
	k.rule(arrive, jump(expr.VerdictJump, "masquerading"))
	if c := k.config.ClusterCIDR; c.IsValid() {
		k.rule(arrive, inPrefix(loadSource(0), c, false), jump(expr.VerdictJump, "ours"))
	}
	k.rule(arrive, jump(expr.VerdictJump, "services"))
	leave := base("output", nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	k.rule(leave, restrict)
	k.rule(leave, jump(expr.VerdictJump, "masquerading"))
	k.rule(leave, jump(expr.VerdictJump, "ours"))
	k.rule(leave, jump(expr.VerdictJump, "services"))

	post := base("postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	hide := []expr.Any{&expr.Immediate{Register: r(0), Data: k.config.NodeIP.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: r(0), FullyRandom: true}}
	k.rule(post, redirected(), loadSource(0), loadDestination(1), k.member(setHairpin, r(0)), hide)
	k.rule(post, redirected(), marked(), setMark(^uint32(masqueraded), 0), hide)
	// From the node's loopback, which is not routable.
	k.rule(post, redirected(), inPrefix(loadSource(0), netip.MustParsePrefix("127.0.0.0/8"), false), hide)
}

// balanceChain selects the next endpoint of the frontend's slot and redirects the connection to it.
func (k *kernel) balanceChain(c chain) {
	ch := k.chain(&nftables.Chain{Table: k.table, Name: c.name()})
	slots := setSlots
	if c.inside {
		slots = setSlotsInside
	}
	number := func(reg uint32) []expr.Any {
		if c.count == 1 {
			return []expr.Any{&expr.Immediate{Register: r(reg), Data: binary.NativeEndian.AppendUint32(nil, 0)}}
		}
		return []expr.Any{&expr.Numgen{Register: r(reg), Modulus: uint32(c.count), Type: unix.NFT_NG_INCREMENTAL}}
	}
	send := func(reg uint32) []expr.Any {
		return []expr.Any{&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: r(reg), RegProtoMin: r(reg + 1)}}
	}
	if c.affinity > 0 {
		dynamic := func(op uint32) []expr.Any {
			return []expr.Any{&expr.Dynset{SrcRegKey: r(0), SrcRegData: r(6), SetName: k.affinity.Name, SetID: k.affinity.ID,
				Operation: op, Timeout: time.Duration(c.affinity) * time.Second}}
		}
		// Registers: 0 client, 1-2 slot; 4-5 slot, 6-7 endpoint; 8-10 frontend.
		client := slices.Concat(frontendTo(8), k.lookup(slots, r(8), r(1)), k.lookup(slots, r(8), r(4)), loadSource(0))
		// A client with an endpoint keeps it while it is in the slot.
		k.rule(ch, client, []expr.Any{&expr.Lookup{SourceRegister: r(0), DestRegister: r(6), IsDestRegSet: true,
			SetName: k.affinity.Name, SetID: k.affinity.ID}}, k.member(setLive, r(4)), dynamic(unix.NFT_DYNSET_OP_UPDATE), send(6))
		// Otherwise it gets one, which is stored: delete first, since an update does not change an existing element. The rule ends without
		// effect if the set is full.
		k.rule(ch, client, number(6), k.lookup(setEndpoints, r(4), r(6)), dynamic(dynsetDelete), dynamic(unix.NFT_DYNSET_OP_UPDATE), send(6))
	}
	k.rule(ch, frontendTo(0), k.lookup(slots, r(0), r(0)), number(2), k.lookup(setEndpoints, r(0), r(0)), send(0))
}

const dynsetDelete = 2 // NFT_DYNSET_OP_DELETE of linux/netfilter/nf_tables.h

func (k *kernel) lookup(s set, from, to uint32) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: from, DestRegister: to, IsDestRegSet: true, SetName: k.sets[s].Name, SetID: k.sets[s].ID}}
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

// frontendTo loads destination, protocol and port: the key of frontends.
func frontendTo(reg uint32) []expr.Any {
	return slices.Concat(loadDestination(reg), loadProtocol(reg+1),
		[]expr.Any{&expr.Payload{DestRegister: r(reg + 2), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}})
}

func protocolIs(p byte) []expr.Any {
	return append(loadProtocol(0), &expr.Cmp{Op: expr.CmpOpEq, Register: r(0), Data: []byte{p}})
}

// inPrefix matches if the address in the first register is in the prefix or, inverted, if it is not.
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

// masqueraded is the bit of a packet's mark for connections whose source is to be translated, which is known before their destination is. It is kube-proxy's,
// which other software leaves alone. Conntrack's original destination would do without a mark, but nft and what uses it (firewalld, for example) cannot list a
// table in which that is a part of a key: they abort.
const masqueraded = 0x4000

func loadMark() []expr.Any { return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: r(0)}} }

// setMark keeps some bits of the packet's mark, and inverts others.
func setMark(keep, invert uint32) []expr.Any {
	return append(loadMark(), masked(keep, invert), &expr.Meta{Key: expr.MetaKeyMARK, Register: r(0), SourceRegister: true})
}

// marked matches packets with the bit masqueraded.
func marked() []expr.Any {
	return append(loadMark(), masked(masqueraded, 0), &expr.Cmp{Op: expr.CmpOpNeq, Register: r(0), Data: make([]byte, 4)})
}

// masked applies a mask and an exclusive or to the first register, in the byte order of the machine.
func masked(mask, xor uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: r(0), DestRegister: r(0), Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, mask), Xor: binary.NativeEndian.AppendUint32(nil, xor)}
}

func jump(kind expr.VerdictKind, to string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: to}}
}

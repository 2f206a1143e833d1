package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// kernel is our nftables table:
//
//	forward     accepts replies and packets of a pod to itself, then jumps to the chains of source and destination
//	in-, out-   the chains of Rules: a match returns, everything else is rejected
//
// The maps "ingress" and "egress" lead from the addresses of isolated pods to their chains. The set "self" contains
// each of these addresses paired with itself. kernel is not safe for concurrent use.
type kernel struct {
	conn     *nftables.Conn // nil after a failure; the next write dials again
	socket   *netlink.Conn  // the socket of conn
	patience time.Duration
	table    *nftables.Table
	ids      uint32
	sets     map[string]*nftables.Set // sets and maps in the table, by name
	last     *state                   // the table's content; nil if unknown
}

type state struct {
	chains    map[string][]Rule
	addresses map[string][]netip.Addr
	blocks    map[string][]Range
	endpoints map[string][]Destination
	ingress   map[netip.Addr]string
	egress    map[netip.Addr]string
}

const (
	// piece is the number of elements per netlink message, whose length is a 16-bit number.
	piece = 300
	// buffer is the size of the socket buffers in bytes. The kernel uses memory only as needed.
	buffer = 64 << 20
	// flushTimeout limits a transaction. The kernel completes it while the request is sent, so an answer that has
	// not arrived by then is lost.
	flushTimeout = time.Minute
	// prohibited is the ICMP code "communication administratively prohibited" (RFC 1812, 5.2.7.1).
	prohibited = 13
)

// Registers of four bytes; reg0 is an alias of register 1.
const (
	reg0 = unix.NFT_REG32_00
	reg1 = unix.NFT_REG32_01
	reg2 = unix.NFT_REG32_02
)

func tableName(prefix string) string { return prefix + "_policy" }

func newKernel(prefix string) (*kernel, error) {
	k := &kernel{
		patience: flushTimeout, table: &nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName(prefix)},
	}
	return k, k.dial()
}

func (k *kernel) dial() error {
	if k.conn != nil {
		return nil
	}
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		k.socket = c
		// Without CAP_NET_ADMIN the system's limit applies, and large changes may fail.
		return errors.Join(c.SetReadBuffer(buffer), c.SetWriteBuffer(buffer))
	}))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	k.conn = conn
	return nil
}

func (k *kernel) close() error {
	if k.conn == nil {
		return nil
	}
	return k.conn.CloseLasting()
}

// abandon closes the connection, discarding queued messages and unread answers: a later change would take these
// answers for its own. Afterwards the content of the table is unknown.
func (k *kernel) abandon() {
	_ = k.close()
	k.conn, k.socket, k.last = nil, nil, nil
}

// flush sends the queued messages and reads the answers until ctx is done.
func (k *kernel) flush(ctx context.Context) error {
	if err := k.socket.SetReadDeadline(time.Now().Add(k.patience)); err != nil {
		return err
	}
	socket := k.socket
	defer context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })()
	err := k.conn.Flush()
	if first := (*netlink.OpError)(nil); errors.As(err, &first) {
		return first // the answer has one error per message
	}
	return err
}

// reset deletes the table. It succeeds if the table does not exist.
func (k *kernel) reset(ctx context.Context) error {
	if err := k.dial(); err != nil {
		return err
	}
	k.last = nil
	k.conn.AddTable(k.table)
	k.conn.DelTable(k.table)
	if err := k.flush(ctx); err != nil {
		k.abandon()
		return fmt.Errorf("remove nftables table %s: %w", k.table.Name, err)
	}
	return nil
}

// write changes the table's content to s in one transaction. After an error the next call replaces the table.
func (k *kernel) write(ctx context.Context, s *state) error {
	if err := k.dial(); err != nil {
		return err
	}
	err := k.change(s)
	if err == nil {
		err = k.flush(ctx)
	}
	if err != nil {
		k.abandon()
		return fmt.Errorf("write nftables table %s: %w", k.table.Name, err)
	}
	k.last = s
	return nil
}

// change queues the messages that change the table's content to s.
func (k *kernel) change(s *state) error {
	was := k.last
	if was == nil {
		was = &state{}
		if err := k.begin(); err != nil {
			return err
		}
	}
	if err := errors.Join(k.addSets(was, s), k.addChains(was, s),
		k.verdicts("ingress", was.ingress, s.ingress), k.verdicts("egress", was.egress, s.egress),
		k.self(was, s)); err != nil {
		return err
	}
	k.drop(was, s)
	return nil
}

// begin queues the replacement of the table by an empty one.
func (k *kernel) begin() error {
	k.sets, k.ids = map[string]*nftables.Set{}, 0
	k.conn.AddTable(k.table)
	k.conn.DelTable(k.table)
	k.conn.AddTable(k.table)
	ip, pair := nftables.TypeIPAddr, nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr)
	for _, s := range []*nftables.Set{
		{
			Name:     "ingress",
			Comment:  "isolated pods, and what they accept",
			KeyType:  ip,
			IsMap:    true,
			DataType: nftables.TypeVerdict,
		},
		{
			Name:     "egress",
			Comment:  "isolated pods, and where they may connect to",
			KeyType:  ip,
			IsMap:    true,
			DataType: nftables.TypeVerdict,
		},
		{Name: "self", Comment: "isolated pods, which may connect to themselves", KeyType: pair, Concatenation: true},
	} {
		if err := k.addSet(s); err != nil {
			return err
		}
	}
	forward := k.conn.AddChain(&nftables.Chain{
		Table:    k.table,
		Name:     "forward",
		Type:     nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookForward,
		Priority: nftables.ChainPriorityFilter,
	})
	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	k.rule(forward, established(), accept)
	k.rule(forward, source(reg0), destination(reg1), k.member("self", reg0), accept)
	k.rule(forward, source(reg0), k.jump("egress"))
	k.rule(forward, destination(reg0), k.jump("ingress"))
	return nil
}

func (k *kernel) addSet(s *nftables.Set) error {
	k.ids++
	s.Table, s.ID = k.table, k.ids
	k.sets[s.Name] = s
	return k.conn.AddSet(s, nil)
}

func (k *kernel) addSets(was, is *state) error {
	for name, all := range is.addresses {
		old, there := was.addresses[name]
		if !there {
			if err := k.addSet(&nftables.Set{Name: name, KeyType: nftables.TypeIPAddr}); err != nil {
				return err
			}
		}
		if err := k.elements(name, difference(old, all, addressKey), difference(all, old, addressKey)); err != nil {
			return err
		}
	}
	for name, all := range is.endpoints {
		old, there := was.endpoints[name]
		if !there {
			key := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
			if err := k.addSet(&nftables.Set{Name: name, KeyType: key, Concatenation: true}); err != nil {
				return err
			}
		}
		if err := k.elements(name, difference(old, all, endpointKey), difference(all, old, endpointKey)); err != nil {
			return err
		}
	}
	for name, all := range is.blocks {
		if _, there := was.blocks[name]; there {
			continue // the name is a hash of the content
		}
		if err := k.addSet(&nftables.Set{Name: name, KeyType: nftables.TypeIPAddr, Interval: true}); err != nil {
			return err
		}
		var elements []nftables.SetElement
		for _, r := range all {
			elements = append(elements, nftables.SetElement{Key: r.From.AsSlice()})
			if end := uint64(number(r.To)) + 1; end < 1<<32 {
				elements = append(elements, nftables.SetElement{Key: address(end).AsSlice(), IntervalEnd: true})
			}
		}
		if err := k.elements(name, nil, elements); err != nil {
			return err
		}
	}
	return nil
}

// elements removes and adds elements of a set, in messages of at most piece elements.
func (k *kernel) elements(set string, remove, add []nftables.SetElement) error {
	for part := range slices.Chunk(remove, piece) {
		if err := k.conn.SetDeleteElements(k.sets[set], part); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(add, piece) {
		if err := k.conn.SetAddElements(k.sets[set], part); err != nil {
			return err
		}
	}
	return nil
}

// addChains adds new chains. Existing chains never change, because a chain's name is a hash of its content.
func (k *kernel) addChains(was, is *state) error {
	for _, name := range slices.Sorted(maps.Keys(is.chains)) {
		if _, there := was.chains[name]; there {
			continue
		}
		c := k.conn.AddChain(&nftables.Chain{Table: k.table, Name: name})
		load := source
		if name[:2] != "in" {
			load = destination
		}
		for _, r := range is.chains[name] {
			var match []expr.Any
			switch {
			case r.Addresses != "":
				match = slices.Concat(load(reg0), k.member(r.Addresses, reg0))
			case r.Blocks != "":
				match = slices.Concat(load(reg0), k.member(r.Blocks, reg0))
			case r.Endpoints != "":
				match = slices.Concat(destination(reg0), protocol(reg1), port(reg2), k.member(r.Endpoints, reg0))
			}
			k.rule(c, match, ports(r), []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}})
		}
		k.rule(c, []expr.Any{&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: prohibited}})
	}
	return nil
}

func (k *kernel) verdicts(set string, was, is map[netip.Addr]string) error {
	element := func(a netip.Addr, chain string) nftables.SetElement {
		return nftables.SetElement{Key: a.AsSlice(), VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
	}
	var remove, add []nftables.SetElement
	for a, chain := range was {
		if is[a] != chain {
			remove = append(remove, element(a, chain))
		}
	}
	for a, chain := range is {
		if was[a] != chain {
			add = append(add, element(a, chain))
		}
	}
	return k.elements(set, remove, add)
}

// self updates the set of isolated pods, which may reach themselves.
func (k *kernel) self(was, is *state) error {
	pods := func(s *state) []netip.Addr {
		all := map[netip.Addr]string{}
		maps.Copy(all, s.ingress)
		maps.Copy(all, s.egress)
		return slices.SortedFunc(maps.Keys(all), netip.Addr.Compare)
	}
	twice := func(a netip.Addr) []byte { return slices.Concat(a.AsSlice(), a.AsSlice()) }
	before, now := pods(was), pods(is)
	return k.elements("self", difference(before, now, twice), difference(now, before, twice))
}

// drop removes the chains and sets that are no longer used.
func (k *kernel) drop(was, is *state) {
	for name := range was.chains {
		if _, stays := is.chains[name]; !stays {
			c := &nftables.Chain{Table: k.table, Name: name}
			k.conn.FlushChain(c)
			k.conn.DelChain(c)
		}
	}
	gone := func(name string) {
		k.conn.DelSet(k.sets[name])
		delete(k.sets, name)
	}
	for name := range was.addresses {
		if _, stays := is.addresses[name]; !stays {
			gone(name)
		}
	}
	for name := range was.blocks {
		if _, stays := is.blocks[name]; !stays {
			gone(name)
		}
	}
	for name := range was.endpoints {
		if _, stays := is.endpoints[name]; !stays {
			gone(name)
		}
	}
}

func (k *kernel) rule(c *nftables.Chain, parts ...[]expr.Any) {
	k.conn.AddRule(&nftables.Rule{Table: k.table, Chain: c, Exprs: slices.Concat(parts...)})
}

func (k *kernel) member(set string, from uint32) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: from, SetName: set, SetID: k.sets[set].ID}}
}

// jump jumps to the chain that the set maps the address in reg0 to, if any.
func (k *kernel) jump(set string) []expr.Any {
	return []expr.Any{
		&expr.Lookup{
			SourceRegister: reg0,
			DestRegister:   unix.NFT_REG_VERDICT,
			IsDestRegSet:   true,
			SetName:        set,
			SetID:          k.sets[set].ID,
		},
	}
}

// difference returns elements for the values in those that others lacks.
func difference[T comparable](those, others []T, key func(T) []byte) []nftables.SetElement {
	there := make(map[T]bool, len(others))
	for _, o := range others {
		there[o] = true
	}
	var out []nftables.SetElement
	for _, t := range those {
		if !there[t] {
			out = append(out, nftables.SetElement{Key: key(t)})
		}
	}
	return out
}

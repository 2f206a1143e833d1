package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// affinityLimit is the maximum number of clients with session affinity. Further clients have none.
	affinityLimit = 65536
	// piece is the number of elements per message, whose length is a 16-bit number: one with a chain's name and a comment
	// has up to 350 bytes.
	piece = 150
	// buffer is the size of the socket's buffers, in bytes, for a full sync of the largest cluster; memory is used only as
	// needed.
	buffer = 64 << 20
)

func tableName(prefix string) string { return prefix + "_proxy" }

// kernel writes our nftables table. It is not safe for concurrent use.
//
// nft, and what uses its library (firewalld, for example), reads the rules of all tables whatever it is to do, and
// aborts where it cannot turn a rule back into its language. So the result of a map may be looked up in no other map
// within a rule, nor be stored by dynset, and keys have no immediate values.
type kernel struct {
	conn     *nftables.Conn
	table    *nftables.Table
	sets     [setCount]*nftables.Set
	affinity *nftables.Set   // client . slot -> member, written by the packets
	fixed    map[string]bool // the chains that do not depend on services
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
	// A mark is the one type for numbers that nft prints everywhere.
	ip, proto, port, number := nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeMark
	front, to := concat(ip, proto, port), concat(ip, port)
	k := &kernel{conn: conn, table: t, config: c}
	for s, is := range [setCount]nftables.Set{
		setServices: {
			Name:     "services",
			KeyType:  front,
			DataType: nftables.TypeVerdict,
			Comment:  "frontend (address, protocol and port of a service)",
		},
		setInside: {
			Name:     "services-inside",
			KeyType:  front,
			DataType: nftables.TypeVerdict,
			Comment:  "frontend, where it differs for this node and its pods",
		},
		setEndpoints: {
			Name:     "endpoints",
			KeyType:  concat(ip, proto, port, number),
			DataType: to,
			Comment:  "frontend . number",
		},
		setBackends: {
			Name:     "backends",
			KeyType:  concat(number, number, number),
			DataType: to,
			Comment:  "backend (endpoints that frontends share) . number",
		},
		setMembers: {
			Name:     "members",
			KeyType:  concat(number, number, number),
			DataType: ip,
			Comment:  "backend with session affinity . number",
		},
		setTargets: {
			Name:     "targets",
			KeyType:  concat(number, number, ip),
			DataType: to,
			Comment:  "backend with session affinity . member",
		},
		setMasquerade: {Name: "masqueraded", KeyType: front, Comment: "frontends whose clients are masqueraded"},
		setHairpin: {
			Name:    "hairpin",
			KeyType: concat(ip, ip),
			Comment: "endpoints on this node that may be connected to themselves",
		},
		setRestricted: {Name: "restricted", KeyType: front, Comment: "frontends with source ranges"},
		setSources:    {Name: "sources", KeyType: concat(ip, proto, port, ip), Interval: true, Comment: "frontend . client"},
		setVirtual:    {Name: "virtual", KeyType: ip, Comment: "addresses of load balancers that no machine has"},
	} {
		k.sets[s] = k.set(is, set(s))
	}
	k.affinity = k.set(nftables.Set{
		Name: "affinity", KeyType: concat(ip, number, number), DataType: ip, Dynamic: true, HasTimeout: true,
		Size:    affinityLimit,
		Comment: "client . backend, and the member that it has",
	}, setCount)
	return k, nil
}

// set completes a set. Set IDs are only unique within a transaction, so they can be constants.
func (k *kernel) set(is nftables.Set, number set) *nftables.Set {
	is.Table, is.ID = k.table, uint32(number)+1
	is.IsMap = is.DataType.Name != ""
	is.Concatenation = len(nftables.ConcatSetTypeElements(is.KeyType)) > 1
	return &is
}

// replace rewrites the table in one transaction: packets see either the old or the new rules. Base chains are kept,
// because a packet that passes the hooks while they are replaced may match neither the old nor the new chain; so are
// the clients with session affinity. Only a table of another layout is replaced as a whole.
func (k *kernel) replace(d *delta) error {
	there, err := k.conn.ListChainsOfTableFamily(k.table.Family)
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	there = slices.DeleteFunc(there, func(c *nftables.Chain) bool { return c.Table.Name != k.table.Name })
	fill := func() error {
		k.conn.AddTable(k.table)
		for _, s := range append(k.sets[:], k.affinity) {
			if err := k.conn.AddSet(s, nil); err != nil {
				return err
			}
			if s != k.affinity {
				k.conn.FlushSet(s)
			}
		}
		k.baseChains()
		for _, c := range there {
			if _, keep := d.addChain[c.Name]; !keep && !k.fixed[c.Name] {
				k.conn.FlushChain(c)
				k.conn.DelChain(c)
			}
		}
		return k.update(d)
	}
	if k.sameLayout(there) {
		if err := fill(); err == nil {
			return nil
		}
	}
	k.conn.AddTable(k.table)
	k.conn.DelTable(k.table)
	there = nil
	return fill()
}

// sameLayout reports whether the table, which has these chains, has the sets of this version, or is not there.
func (k *kernel) sameLayout(chains []*nftables.Chain) bool {
	if len(chains) == 0 {
		return true
	}
	sets, err := k.conn.GetSets(k.table)
	if err != nil || len(sets) != len(k.sets)+1 {
		return false
	}
	ours := map[string]bool{}
	for _, s := range append(k.sets[:], k.affinity) {
		ours[s.Name] = true
	}
	return !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return !ours[s.Name] })
}

// update applies a delta in one transaction.
func (k *kernel) update(d *delta) error {
	if err := k.elements(d.remove, nil); err != nil {
		return err
	}
	// A chain is removed after, and added before, the elements that refer to it.
	for _, name := range d.dropChain {
		k.conn.FlushChain(&nftables.Chain{Table: k.table, Name: name})
		k.conn.DelChain(&nftables.Chain{Table: k.table, Name: name})
	}
	for name, c := range d.addChain {
		k.balanceChain(name, c)
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
func (k *kernel) elements(all []element, values map[element]claim) error {
	slices.SortFunc(all, func(a, b element) int { return cmp.Compare(a.set, b.set) })
	for len(all) > 0 {
		n := 0
		batch := make([]nftables.SetElement, 0, min(piece, len(all)))
		for n < len(all) && n < piece && all[n].set == all[0].set {
			e := nftables.SetElement{Key: []byte(all[n].key)}
			if all[n].set == setSources {
				e.Key, e.KeyEnd = e.Key[:len(e.Key)/2], e.Key[len(e.Key)/2:]
			}
			if c := values[all[n]]; c.value != "" {
				if all[n].set.verdicts() {
					e.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: c.value}
				} else {
					e.Val = []byte(c.value)
				}
				if all[n].set.named() {
					e.Comment = c.service.String() // at most 127 bytes, and nft prints 127
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

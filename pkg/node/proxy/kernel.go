package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// affinityLimit is the maximum number of tracked clients of a service with session affinity, shared by its ports,
	// about 0.1 kB of the kernel's memory each. Further clients get no affinity. Services do not share a limit, because
	// spoofed sources can fill one.
	affinityLimit = 16384
	// piece is the number of elements per netlink message. A message's length is a 16-bit number, and an element
	// with a chain name and a comment takes up to 350 bytes.
	piece = 150
	// buffer is the size of the socket buffers in bytes, enough to sync the largest cluster at once. The kernel uses
	// memory only as needed.
	buffer = 64 << 20
)

func tableName(prefix string) string { return prefix + "_proxy" }

// kernel writes our nftables table. It is not safe for concurrent use.
//
// nft and users of its library, such as firewalld, decode the rules of all tables, and abort at a rule that they
// cannot express in nft's language. So within a rule, a map's result is neither the key of another map nor stored by
// dynset, and keys contain no immediate values.
type kernel struct {
	conn   *nftables.Conn
	table  *nftables.Table
	sets   [setCount]*nftables.Set
	fixed  map[string]bool // chains that do not depend on services
	config *Config
	ranges []netip.Prefix // the served ranges of cluster IPs
}

func newKernel(c *Config) (*kernel, error) {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(conn *netlink.Conn) error {
		// Without CAP_NET_ADMIN the system's limit applies, and large syncs may fail.
		return errors.Join(conn.SetReadBuffer(buffer), conn.SetWriteBuffer(buffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName(c.Prefix)}
	concat := nftables.MustConcatSetType
	// Mark is the only number type that nft prints everywhere.
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
	return k, nil
}

// clients returns the set of the clients of a chain with session affinity. It maps a client to its member.
func (k *kernel) clients(name string, c chain) *nftables.Set {
	return k.set(nftables.Set{
		Name: c.clientSet(name), KeyType: nftables.TypeIPAddr, DataType: nftables.TypeIPAddr, Dynamic: true,
		HasTimeout: true, Size: uint32(c.clients), Comment: "client, and the member that it has",
	}, setCount)
}

// set fills in the remaining fields of a set. IDs need to be unique only within a transaction, so they are
// constants.
func (k *kernel) set(is nftables.Set, number set) *nftables.Set {
	is.Table, is.ID = k.table, uint32(number)+1
	is.IsMap = is.DataType.Name != ""
	is.Concatenation = len(nftables.ConcatSetTypeElements(is.KeyType)) > 1
	return &is
}

// replace rewrites the table in one transaction: packets see either the old or the new rules. It keeps the base
// chains, because a packet passing the hooks during their replacement could match neither the old nor the new chain.
// It also keeps the clients of services with session affinity. If the table has another layout, or that fails, the
// table is created anew.
func (k *kernel) replace(d *delta) error {
	there, err := k.conn.ListChainsOfTableFamily(k.table.Family)
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	there = slices.DeleteFunc(there, func(c *nftables.Chain) bool { return c.Table.Name != k.table.Name })
	same, clients := k.sameLayout(there)
	fill := func() error {
		k.conn.AddTable(k.table)
		for _, s := range k.sets {
			if err := k.conn.AddSet(s, nil); err != nil {
				return err
			}
			k.conn.FlushSet(s)
		}
		k.baseChains()
		for _, c := range there {
			if _, keep := d.addChain[c.Name]; !keep && !k.fixed[c.Name] {
				k.conn.FlushChain(c)
				k.conn.DelChain(c)
			}
		}
		wanted := map[string]bool{}
		for name, c := range d.addChain {
			wanted[c.clientSet(name)] = true
		}
		d.dropSet = slices.DeleteFunc(clients, func(name string) bool { return wanted[name] })
		return k.update(d)
	}
	if same {
		if err := fill(); err == nil {
			return nil
		}
	}
	k.conn.AddTable(k.table)
	k.conn.DelTable(k.table)
	there, clients = nil, nil
	return fill()
}

// sameLayout reports whether the table, which has the given chains, has this version's sets or does not exist. It also
// returns the names of the sets of clients.
func (k *kernel) sameLayout(chains []*nftables.Chain) (same bool, clients []string) {
	if len(chains) == 0 {
		return true, nil
	}
	sets, err := k.conn.GetSets(k.table)
	if err != nil {
		return false, nil
	}
	missing := map[string]bool{}
	for _, s := range k.sets {
		missing[s.Name] = true
	}
	for _, s := range sets {
		switch {
		case missing[s.Name]:
			delete(missing, s.Name)
		case strings.HasPrefix(s.Name, clientsPrefix):
			clients = append(clients, s.Name)
		default:
			return false, nil
		}
	}
	return len(missing) == 0, clients
}

func (k *kernel) update(d *delta) error {
	if err := k.elements(d.remove, nil); err != nil {
		return err
	}
	// Remove chains after, and add them before, the elements that refer to them.
	for _, name := range d.dropChain {
		k.conn.FlushChain(&nftables.Chain{Table: k.table, Name: name})
		k.conn.DelChain(&nftables.Chain{Table: k.table, Name: name})
	}
	for name, c := range d.addChain {
		if err := k.balanceChain(name, c); err != nil {
			return err
		}
	}
	for _, name := range d.dropSet {
		k.conn.DelSet(&nftables.Set{Table: k.table, Name: name})
	}
	if err := k.elements(d.add, d.values); err != nil {
		return err
	}
	if err := k.conn.Flush(); err != nil {
		return fmt.Errorf("write nftables table %s: %w", k.table.Name, err)
	}
	return nil
}

// elements adds all elements with their values, or removes them if values is nil, in messages of at most piece
// elements.
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
					e.Comment = c.service.String() // at most 127 bytes, as many as nft prints
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

// reset deletes the table. It succeeds if the table does not exist.
func (k *kernel) reset() error {
	k.conn.DelTable(k.table)
	if err := k.conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove nftables table %s: %w", k.table.Name, err)
	}
	return nil
}

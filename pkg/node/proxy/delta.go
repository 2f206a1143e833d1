package proxy

import (
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// set identifies one of the table's sets and maps in the kernel.
type set int

const (
	setServices   set = iota // frontend -> chain
	setInside                // overrides setServices for packets from this node and its pods
	setEndpoints             // frontend . number -> address . port
	setBackends              // slot . number -> address . port
	setMembers               // slot . number -> member; only with session affinity
	setTargets               // slot . member -> address . port
	setMasquerade            // frontend
	setHairpin               // address . address
	setRestricted            // load balancer frontend with source ranges
	setSources               // frontend . client, as intervals
	setVirtual               // address from the pool
	setCount
)

// verdicts reports whether the set maps to chains.
func (s set) verdicts() bool { return s == setServices || s == setInside }

// named reports whether elements carry the service's name as a comment.
func (s set) named() bool {
	return s.verdicts() || s == setBackends || s == setMembers || s == setTargets
}

// element is an entry of a set. Keys and values are encoded as in the kernel; the value of a verdict is a chain's
// name.
type element struct {
	set set
	key string
}

// chain selects one of count endpoints. It looks up the endpoint by slot or, if slot is zero, by frontend.
type chain struct {
	count    int
	slot     slot
	affinity uint32
	clients  int // with session affinity: the maximum number of clients that keep their endpoint
}

// clientsPrefix begins the names of the sets of clients with session affinity, which packets fill.
const clientsPrefix = "clients-"

// clientSet returns the name of the set of clients of a chain with this name, or "" without session affinity. The size
// is part of the name, because the kernel cannot change it.
func (c chain) clientSet(name string) string {
	if c.affinity == 0 {
		return ""
	}
	return clientsPrefix + strconv.Itoa(c.clients) + "-" + strings.TrimPrefix(name, backendPrefix)
}

// backendPrefix begins the names of chains of a single backend.
const backendPrefix = "backend-"

type use struct {
	chain
	services int
}

const shards = 64

// chain returns the name and content of the chain for the backend's frontends, such as endpoints-3-17 or
// backend-default/web/TCP/80. Services with the same number of endpoints share a chain. There are several such
// chains (shards), so that two services called in alternation do not share one round robin.
func (b *backend) chain() (string, chain) {
	if b.apart() {
		return backendPrefix + b.name, chain{len(b.endpoints), b.slot, b.affinity, b.clients}
	}
	return "endpoints-" + strconv.Itoa(len(b.endpoints)) + "-" + strconv.Itoa(int(b.slot[0]%shards)), chain{
		count: len(b.endpoints),
	}
}

type claim struct {
	service types.NamespacedName
	value   string
}

// state is the actual or desired content of the kernel's table: each service's plan, each frontend's owner and the
// claims to each element. A service claims elements only for frontends it owns. Only hairpin elements may be shared.
type state struct {
	plans  map[types.NamespacedName]*servicePlan
	owners owners
	lost   map[types.NamespacedName]map[Frontend]types.NamespacedName // frontends of a service's plan that others own
	claims map[element][]claim
	chains map[string]use
}

func newState() *state {
	return &state{plans: map[types.NamespacedName]*servicePlan{}, owners: owners{},
		lost: map[types.NamespacedName]map[Frontend]types.NamespacedName{}, claims: map[element][]claim{},
		chains: map[string]use{}}
}

// delta is the content of one transaction, in this order: remove elements, remove chains, add chains with their sets of
// clients, remove sets of clients, add elements.
// A changed element is removed and added; a changed chain is added again.
type delta struct {
	remove, add []element
	values      map[element]claim // the values of the elements in add
	addChain    map[string]chain
	dropChain   []string
	dropSet     []string
	touched     []types.NamespacedName // the services whose plans or frontends changed
	// stale are the UDP frontends whose owner or endpoints changed; conntrack entries may lead to former endpoints.
	stale map[Frontend]bool
}

func (d *delta) empty() bool {
	return len(d.remove) == 0 && len(d.add) == 0 && len(d.addChain) == 0 && len(d.dropChain) == 0
}

// apply updates the state with new plans and returns the difference. An empty plan removes the service.
func (s *state) apply(plans map[types.NamespacedName]*servicePlan) *delta {
	d := &delta{values: map[element]claim{}, addChain: map[string]chain{}, stale: map[Frontend]bool{}}
	before := map[element][]claim{} // previous claims to the affected elements
	touch := func(e element) {
		if _, seen := before[e]; !seen {
			before[e] = s.claims[e]
		}
	}
	chains := map[string]use{} // previous content of the affected chains
	plans = s.settle(plans, d)
	d.touched = slices.SortedFunc(maps.Keys(plans), compareNames)
	for _, name := range d.touched {
		old, now, lost := s.plans[name], plans[name], s.owners.lost(name, plans[name])
		was, is := old.elements(s.lost[name]), now.elements(lost)
		wasLost := s.lost[name]
		if len(lost) > 0 {
			s.lost[name] = lost
		} else {
			delete(s.lost, name)
		}
		for e, v := range was {
			if value, stays := is[e]; stays && value == v {
				continue
			}
			touch(e)
			s.unclaim(e, name)
		}
		for e, v := range is {
			if value, had := was[e]; had && value == v {
				continue
			}
			touch(e)
			s.claim(e, claim{name, v})
		}
		s.useChains(old.chains(), -1, chains)
		s.useChains(now.chains(), +1, chains)
		d.noteStale(old, now, func(f Frontend) bool {
			_, is := lost[f]
			_, was := wasLost[f]
			return is || was && s.owners.of(f) != name
		})
		if now.empty() {
			delete(s.plans, name)
		} else {
			s.plans[name] = now
		}
	}
	for e, old := range before {
		now := s.claims[e]
		if len(old) > 0 && len(now) > 0 && old[0].value == now[0].value &&
			(old[0].service == now[0].service || !e.set.named()) {
			continue
		}
		if len(old) > 0 {
			d.remove = append(d.remove, e)
		}
		if len(now) > 0 {
			d.add = append(d.add, e)
			d.values[e] = now[0]
		}
	}
	for name, old := range chains {
		now := s.chains[name]
		if set := old.clientSet(name); set != "" && old.services > 0 && (now.services == 0 || now.clientSet(name) != set) {
			d.dropSet = append(d.dropSet, set)
		}
		switch {
		case now.services == 0:
			delete(s.chains, name)
			if old.services > 0 {
				d.dropChain = append(d.dropChain, name)
			}
		case old.services == 0 || old.chain != now.chain:
			d.addChain[name] = now.chain
		}
	}
	return d
}

// useChains adds n to the number of services that use each chain. It records in before the previous value of each
// chain that is not yet there.
func (s *state) useChains(all map[string]chain, n int, before map[string]use) {
	for name, c := range all {
		u := s.chains[name]
		if _, seen := before[name]; !seen {
			before[name] = u
		}
		s.chains[name] = use{c, u.services + n}
	}
}

func (s *state) claim(e element, c claim) {
	all := s.claims[e]
	i, _ := slices.BinarySearchFunc(all, c.service, func(c claim, n types.NamespacedName) int {
		return compareNames(c.service, n)
	})
	s.claims[e] = slices.Insert(slices.Clone(all), i, c)
}

func (s *state) unclaim(e element, service types.NamespacedName) {
	all := slices.DeleteFunc(slices.Clone(s.claims[e]), func(c claim) bool { return c.service == service })
	if len(all) == 0 {
		delete(s.claims, e)
	} else {
		s.claims[e] = all
	}
}

func (s *state) everything() *delta {
	d := &delta{
		values:   make(map[element]claim, len(s.claims)),
		add:      make([]element, 0, len(s.claims)),
		addChain: make(map[string]chain, len(s.chains)),
	}
	for e, c := range s.claims {
		d.add = append(d.add, e)
		d.values[e] = c[0]
	}
	for name, u := range s.chains {
		d.addChain[name] = u.chain
	}
	return d
}

func compareNames(a, b types.NamespacedName) int {
	if a.Namespace != b.Namespace {
		if a.Namespace < b.Namespace {
			return -1
		}
		return 1
	}
	if a.Name == b.Name {
		return 0
	}
	if a.Name < b.Name {
		return -1
	}
	return 1
}

func (p *servicePlan) empty() bool {
	return len(p.frontends) == 0 && len(p.backends) == 0 && len(p.hairpin) == 0 && len(p.refused) == 0 &&
		len(p.virtual) == 0 && p.healthPort == 0
}

// elements returns the plan's elements, except for frontends that another service owns.
func (p *servicePlan) elements(lost map[Frontend]types.NamespacedName) map[element]string {
	if p == nil {
		return nil
	}
	all := make(map[element]string, 2*len(p.frontends)+4*len(p.backends))
	put := func(frontends map[Frontend]action, chains set) {
		for f, a := range frontends {
			if _, others := lost[f]; others {
				continue
			}
			key := f.key()
			switch a.verdict {
			case reject:
				all[element{chains, key}] = chainReject
			case drop:
				all[element{chains, key}] = chainDrop
			default:
				b := p.backends[a.backend]
				all[element{chains, key}], _ = b.chain()
				if b.apart() {
					continue
				}
				for i, e := range b.endpoints {
					all[element{setEndpoints, key + word(uint32(i))}] = target(e)
				}
			}
		}
	}
	put(p.frontends, setServices)
	put(p.inside, setInside)
	for s, b := range p.backends {
		if !b.apart() {
			continue
		}
		for i, e := range b.endpoints {
			numbered := string(s[:]) + word(uint32(i))
			if b.affinity == 0 {
				all[element{setBackends, numbered}] = target(e)
				continue
			}
			member := string(b.members[i].AsSlice())
			all[element{setMembers, numbered}] = member
			all[element{setTargets, string(s[:]) + member}] = target(e)
		}
	}
	for f := range p.masquerade {
		if _, others := lost[f]; others {
			continue
		}
		all[element{setMasquerade, f.key()}] = ""
	}
	for f, ranges := range p.restricted {
		if _, others := lost[f]; others {
			continue
		}
		all[element{setRestricted, f.key()}] = ""
		for _, r := range ranges {
			all[element{setSources, sourceKey(f, r)}] = ""
		}
	}
	for _, a := range p.virtual {
		all[element{setVirtual, string(a.AsSlice())}] = ""
	}
	for a := range p.hairpin {
		all[element{setHairpin, string(a.AsSlice()) + string(a.AsSlice())}] = ""
	}
	return all
}

// chains returns the chains that the plan's backends need, regardless of who owns the frontends.
func (p *servicePlan) chains() map[string]chain {
	if p == nil {
		return nil
	}
	all := make(map[string]chain, len(p.backends))
	for _, b := range p.backends {
		name, c := b.chain()
		all[name] = c
	}
	return all
}

// word encodes a number in host byte order, as the kernel's numgen does.
func word(n uint32) string { return string(binary.NativeEndian.AppendUint32(nil, n)) }

// noteStale records UDP frontends that are new or lost an endpoint. Conntrack entries would keep sending a client's
// packets to the previous destination.
func (d *delta) noteStale(old, now *servicePlan, others func(Frontend) bool) {
	if old == nil {
		old = &servicePlan{}
	}
	for _, p := range []*servicePlan{old, now} {
		for f := range p.flows {
			if d.stale[f] || others(f) {
				continue
			}
			was, existed := old.flows[f]
			is := now.flows[f]
			lost := !existed
			for e := range was {
				lost = lost || !is[e]
			}
			// A frontend without endpoints rejected its packets, so it has no conntrack entries.
			if lost {
				d.stale[f] = true
			}
		}
	}
}

// flows returns, for each given UDP frontend, the endpoints to which clients may stay connected.
func (s *state) flows(frontends map[Frontend]bool) flows {
	all := make(flows, len(frontends))
	for f := range frontends {
		all[f] = nil
		if p := s.plans[s.owners.of(f)]; p != nil {
			all[f] = p.flows[f]
		}
	}
	return all
}

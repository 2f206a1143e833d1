package proxy

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// set is one of the sets and maps in the kernel.
type set int

const (
	setFrontends   set = iota // frontend -> chain
	setInside                 // frontend -> chain, for packets of this node and its pods
	setSlots                  // frontend -> slot, for the chains that setFrontends names
	setSlotsInside            // the same for setInside
	setEndpoints              // slot . number -> address . port
	setLive                   // slot . address . port, for services with affinity
	setMasquerade             // frontend
	setHairpin                // address . address
	setRestricted             // frontend of a load balancer with source ranges
	setSources                // frontend . client, as ranges: the first key and the last
	setVirtual                // address of the pool
	setCount
)

// element is an entry of a set. Keys and values have the kernel's encoding; the value of a verdict is a chain's name.
type element struct {
	set set
	key string
}

// chain is a load balancing chain, shared by all services with the same number of endpoints and the same affinity. Services are distributed over
// several shards, so that two services that are called alternately do not share one round robin.
type chain struct {
	inside   bool
	count    int
	affinity uint32
	shard    byte
}

const shards = 64

// claim is a service's claim to an element.
type claim struct {
	service types.NamespacedName
	value   string
}

// state is the actual or desired state of the kernel: the plan of each service, the owner of each frontend, and the claims to each element.
// Services claim the elements of the frontends that they own; hairpin elements may be shared.
type state struct {
	plans  map[types.NamespacedName]*servicePlan
	owners owners
	lost   map[types.NamespacedName]map[Frontend]types.NamespacedName // frontends of a service's plan that others own
	claims map[element][]claim
	chains map[chain]int // number of elements that refer to it
}

func newState() *state {
	return &state{plans: map[types.NamespacedName]*servicePlan{}, owners: owners{},
		lost: map[types.NamespacedName]map[Frontend]types.NamespacedName{}, claims: map[element][]claim{}, chains: map[chain]int{}}
}

// delta is the content of one transaction: remove elements, remove chains, add chains, add elements. An element whose value changes is removed and
// added.
type delta struct {
	remove, add         []element
	values              map[element]string // of those in add
	addChain, dropChain []chain
	touched             []types.NamespacedName // the services whose plans or frontends changed
	// stale are UDP frontends whose endpoints or service changed, with the destinations to which conntrack entries may still point.
	stale map[Frontend]map[netip.AddrPort]bool
}

func (d *delta) empty() bool {
	return len(d.remove) == 0 && len(d.add) == 0 && len(d.addChain) == 0 && len(d.dropChain) == 0
}

// apply updates the state with new plans (an empty plan removes the service), and returns the difference.
func (s *state) apply(plans map[types.NamespacedName]*servicePlan) *delta {
	d := &delta{values: map[element]string{}, stale: map[Frontend]map[netip.AddrPort]bool{}}
	before := map[element]string{} // the values of affected elements; "" with absent for none
	absent := map[element]bool{}
	touch := func(e element) {
		if _, seen := before[e]; seen || absent[e] {
			return
		}
		if c := s.claims[e]; len(c) > 0 {
			before[e] = c[0].value
		} else {
			absent[e] = true
		}
	}
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
	chains := map[chain]int{} // change of use
	for e := range absent {
		if c := s.claims[e]; len(c) > 0 {
			d.add = append(d.add, e)
			d.values[e] = c[0].value
		}
	}
	for e, old := range before {
		c := s.claims[e]
		if len(c) > 0 && c[0].value == old {
			continue
		}
		d.remove = append(d.remove, e)
		countChain(chains, e, old, -1)
		if len(c) > 0 {
			d.add = append(d.add, e)
			d.values[e] = c[0].value
		}
	}
	for e, v := range d.values {
		countChain(chains, e, v, +1)
	}
	for c, n := range chains {
		had := s.chains[c]
		switch now := had + n; {
		case now == 0:
			delete(s.chains, c)
			if had > 0 {
				d.dropChain = append(d.dropChain, c)
			}
		default:
			s.chains[c] = now
			if had == 0 {
				d.addChain = append(d.addChain, c)
			}
		}
	}
	return d
}

func countChain(counts map[chain]int, e element, value string, n int) {
	if e.set != setFrontends && e.set != setInside {
		return
	}
	if c, ok := chainNamed(value); ok {
		counts[c] += n
	}
}

func (s *state) claim(e element, c claim) {
	all := s.claims[e]
	i, _ := slices.BinarySearchFunc(all, c.service, func(c claim, n types.NamespacedName) int { return compareNames(c.service, n) })
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

// everything returns the delta from an empty table to the state.
func (s *state) everything() *delta {
	d := &delta{values: make(map[element]string, len(s.claims)), add: make([]element, 0, len(s.claims))}
	for e, c := range s.claims {
		d.add = append(d.add, e)
		d.values[e] = c[0].value
	}
	d.addChain = slices.Collect(maps.Keys(s.chains))
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

// empty reports whether the plan has no elements.
func (p *servicePlan) empty() bool {
	return len(p.frontends) == 0 && len(p.backends) == 0 && len(p.hairpin) == 0 && len(p.refused) == 0 && len(p.virtual) == 0 && p.healthPort == 0
}

// elements returns the elements of a plan, without those of frontends that another service owns.
func (p *servicePlan) elements(lost map[Frontend]types.NamespacedName) map[element]string {
	if p == nil {
		return nil
	}
	all := make(map[element]string, 2*len(p.frontends)+4*len(p.backends))
	put := func(frontends map[Frontend]action, inside bool, chains, slots set) {
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
				all[element{chains, key}] = chain{inside, len(b.endpoints), b.affinity, b.slot[0] % shards}.name()
				all[element{slots, key}] = string(b.slot[:])
			}
		}
	}
	put(p.frontends, false, setFrontends, setSlots)
	put(p.inside, true, setInside, setSlotsInside)
	for s, b := range p.backends {
		for i, e := range b.endpoints {
			// Compared with numbers that the kernel computes in host byte order.
			all[element{setEndpoints, string(binary.NativeEndian.AppendUint32(s[:], uint32(i)))}] = target(e)
			if b.affinity > 0 {
				all[element{setLive, string(s[:]) + target(e)}] = ""
			}
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

// noteStale records UDP frontends that are new or lost an endpoint: conntrack entries would still direct a client's packets to the previous
// destination.
func (d *delta) noteStale(old, now *servicePlan, others func(Frontend) bool) {
	endpoints := func(p *servicePlan, f Frontend) map[netip.AddrPort]bool {
		if p == nil {
			return nil
		}
		found := map[netip.AddrPort]bool{}
		for _, actions := range []map[Frontend]action{p.frontends, p.inside} {
			if a, ok := actions[f]; ok && a.verdict == balance {
				for _, e := range p.backends[a.backend].endpoints {
					found[e] = true
				}
			}
		}
		return found
	}
	all := map[Frontend]bool{}
	for _, p := range []*servicePlan{old, now} {
		if p != nil {
			for f := range p.frontends {
				all[f] = f.Protocol == protocolUDP
			}
		}
	}
	for f, udp := range all {
		if !udp || others(f) {
			continue
		}
		was, is := endpoints(old, f), endpoints(now, f)
		_, existed := frontend(old, f)
		lost := !existed
		for e := range was {
			lost = lost || !is[e]
		}
		// Without endpoints packets were rejected, so there are no entries.
		if lost {
			d.stale[f] = is
		}
	}
}

func frontend(p *servicePlan, f Frontend) (action, bool) {
	if p == nil {
		return action{}, false
	}
	a, ok := p.frontends[f]
	return a, ok
}

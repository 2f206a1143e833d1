package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// class says what a service has a frontend by. Where two services want the same one, the lower class has it: a cluster IP
// is given out by the server, and an external address is written by whoever may create services.
type class byte

const (
	byClusterIP class = iota
	byNodePort
	byExternal
)

// claimant is a service that wants a frontend.
type claimant struct {
	service types.NamespacedName
	class   class
	created int64 // seconds
}

// compare puts first who has the frontend: of one class the older service, then the one first by name.
func (c claimant) compare(o claimant) int {
	return cmp.Or(cmp.Compare(c.class, o.class), cmp.Compare(c.created, o.created), compareNames(c.service, o.service))
}

// owners says which services want each frontend; the first has it, with all that belongs to it.
type owners map[Frontend][]claimant

func (o owners) of(f Frontend) types.NamespacedName {
	if all := o[f]; len(all) > 0 {
		return all[0].service
	}
	return types.NamespacedName{}
}

// change takes in a service's new plan, and tells of each frontend that it touched whose it was.
func (o owners) change(name types.NamespacedName, old, now *servicePlan, was map[Frontend]types.NamespacedName) {
	touch := func(f Frontend) {
		if _, seen := was[f]; !seen {
			was[f] = o.of(f)
		}
	}
	if old != nil {
		for f, a := range old.frontends {
			if b, stays := now.frontends[f]; stays && a.class == b.class && old.created == now.created {
				continue
			}
			touch(f)
			if left := slices.DeleteFunc(o[f], func(c claimant) bool { return c.service == name }); len(left) > 0 {
				o[f] = left
			} else {
				delete(o, f)
			}
		}
	}
	for f, a := range now.frontends {
		if old != nil {
			if b, had := old.frontends[f]; had && a.class == b.class && old.created == now.created {
				continue
			}
		}
		touch(f)
		c := claimant{name, a.class, now.created}
		i, _ := slices.BinarySearchFunc(o[f], c, claimant.compare)
		o[f] = slices.Insert(o[f], i, c)
	}
}

// lost are the frontends of a plan that another service has; nil if there are none.
func (o owners) lost(name types.NamespacedName, p *servicePlan) (lost map[Frontend]types.NamespacedName) {
	if p == nil {
		return nil
	}
	for f := range p.frontends {
		if owner := o.of(f); owner != name {
			if lost == nil {
				lost = map[Frontend]types.NamespacedName{}
			}
			lost[f] = owner
		}
	}
	return lost
}

// settle changes the owners to the new plans, and adds the plans of services that gain or lose a frontend by that.
func (s *state) settle(plans map[types.NamespacedName]*servicePlan, d *delta) map[types.NamespacedName]*servicePlan {
	was := map[Frontend]types.NamespacedName{}
	for name, now := range plans {
		s.owners.change(name, s.plans[name], now, was)
	}
	all := plans
	for f, before := range was {
		now := s.owners.of(f)
		if now == before {
			continue
		}
		for _, name := range []types.NamespacedName{before, now} {
			if p := s.plans[name]; p != nil && all[name] == nil {
				if len(all) == len(plans) {
					all = maps.Clone(all)
				}
				all[name] = p
			}
		}
		if f.Protocol == protocolUDP && before.Name != "" && now.Name != "" {
			d.stale[f] = map[netip.AddrPort]bool{} // nobody goes on with the endpoints of the other service
		}
	}
	return all
}

// complaints say which frontends of a service are refused or another's.
func (s *state) complaints(name types.NamespacedName) []string {
	p := s.plans[name]
	if p == nil {
		return nil
	}
	all := slices.Clone(p.refused)
	for f, owner := range s.lost[name] {
		all = append(all, fmt.Sprintf("%s:%d belongs to service %s, which has it by its cluster IP or is older", f.Addr, f.Port, owner))
	}
	return all
}

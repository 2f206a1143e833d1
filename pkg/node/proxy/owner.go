package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// class is the kind of address through which a service claims a frontend. The service with the lowest class owns the
// frontend: the API server allocates cluster IPs, but anyone who may create services can set external addresses.
type class byte

const (
	byClusterIP class = iota
	byNodePort
	byExternal
)

type claimant struct {
	service types.NamespacedName
	class   class
	created int64 // creation time in seconds since 1970
}

// compare orders claimants by class, age and name; the first is the owner.
func (c claimant) compare(o claimant) int {
	return cmp.Or(cmp.Compare(c.class, o.class), cmp.Compare(c.created, o.created), compareNames(c.service, o.service))
}

// owners lists the claimants of each frontend, sorted. The first owns it.
type owners map[Frontend][]claimant

func (o owners) of(f Frontend) types.NamespacedName {
	if all := o[f]; len(all) > 0 {
		return all[0].service
	}
	return types.NamespacedName{}
}

// change records a service's new plan. It stores the previous owner of each affected frontend in was.
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

// lost returns the frontends of a plan that other services own, with their owners, or nil.
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

// settle updates the owners with the new plans. It returns the plans together with the unchanged plans of services
// that gained or lost a frontend.
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
			d.stale[f] = true // conntrack must forget the previous owner's endpoints
		}
	}
	return all
}

// complaints returns which of a service's frontends were refused or belong to another service.
func (s *state) complaints(name types.NamespacedName) []string {
	p := s.plans[name]
	if p == nil {
		return nil
	}
	all := slices.Clone(p.refused)
	for f, owner := range s.lost[name] {
		all = append(all,
			fmt.Sprintf("%s:%d belongs to service %s, which has it by its cluster IP or is older", f.Addr, f.Port, owner))
	}
	return all
}

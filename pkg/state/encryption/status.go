package encryption

import (
	"cmp"
	"context"
	"slices"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Status describes how objects are stored.
type Status struct {
	File    string // empty without encryption
	Managed bool
	// Rules are the resources of the configuration, in order, and how new objects are written.
	Rules []Rule
	// Counts are the stored objects of these resources, sorted by resource.
	Counts []Count
}

// Rule is a resource or wildcard of the configuration, and how its new objects are written.
type Rule struct {
	Resource string
	Label    Label
}

// Count is the number of objects of a resource that are stored in the same way.
type Count struct {
	Resource   string
	Label      Label
	Objects    int
	Unreadable int  // of Objects
	Current    bool // new objects are written in this way, with KMS also with this key of the plugin
}

// Status reads and counts all stored values. Counts has at most maxResources entries; further objects are left out.
func (k *Keeper) Status(ctx context.Context) (Status, error) {
	s := Status{File: k.cfg.File, Managed: k.cfg.Managed}
	v := k.cfg.Values
	p := v.current.Load()
	if p != nil {
		for _, gr := range p.order {
			s.Rules = append(s.Rules, Rule{Resource: written(gr), Label: p.rules[gr].providers[0].label})
		}
	}
	type way struct {
		resource string
		label    Label
		current  bool
	}
	counts := map[way]*Count{}
	err := k.each(ctx, func(kvs []kind.KV, _ int64) error {
		for _, kv := range kvs {
			var r *rule
			if p != nil {
				r = p.rule(kv.Key)
			}
			label := labelOf(kv.Value)
			if r == nil && label == (Label{}) {
				continue
			}
			_, current, err := v.open(p, kv.Key, kv.Value)
			if err != nil {
				current = r != nil && r.providers[0].label == label
			}
			w := way{v.resource(kv.Key), label, current}
			c := counts[w]
			if c == nil {
				if len(counts) == maxResources {
					continue
				}
				c = &Count{Resource: w.resource, Label: label, Current: current}
				counts[w] = c
			}
			c.Objects++
			if err != nil {
				c.Unreadable++
			}
		}
		return nil
	})
	for _, c := range counts {
		s.Counts = append(s.Counts, *c)
	}
	slices.SortFunc(s.Counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Label.Provider, b.Label.Provider),
			cmp.Compare(a.Label.Key, b.Label.Key))
	})
	return s, err
}

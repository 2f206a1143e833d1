package fairness

import (
	"cmp"
	"slices"
)

// Level is the state of a priority level.
type Level struct {
	Name   string
	Exempt bool
	// Seats is the number of nominal seats, Guaranteed the number of seats that other levels cannot borrow,
	// FlowLimit the maximum for one flow.
	Seats, Guaranteed, FlowLimit int
	Executing, Waiting           int
	Dispatched, Rejected         uint64
	// FlowCount is the number of known flows. Flows contains the busiest ones.
	FlowCount int
	Flows     []Flow
}

// Flow contains the requests of a user or namespace in a flow schema. BodyBytes is the size of their bodies in
// memory.
type Flow struct {
	Schema, Name                           string
	Executing, Waiting, Streams, BodyBytes int
}

// Report returns all levels, each with at most flows of its busiest flows.
func (s *Set) Report(flows int) []Level {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Level, 0, len(s.levels))
	for _, l := range s.levels {
		v := Level{Name: l.name, Exempt: l.exempt, Seats: l.nominal, Guaranteed: l.guaranteed, FlowLimit: l.most,
			Executing: l.executing, Waiting: l.waiting, FlowCount: len(l.flows)}
		for _, c := range s.schemas.Load().schemas {
			if c.level == l {
				v.Dispatched += c.dispatched
				for _, n := range c.rejected {
					v.Rejected += n
				}
			}
		}
		for k, f := range l.flows {
			if f.outstanding > 0 || f.streams > 0 {
				v.Flows = append(v.Flows, Flow{
					Schema:    k.schema.name,
					Name:      k.name,
					Executing: f.executing,
					Waiting:   len(f.waiters),
					Streams:   f.streams,
					BodyBytes: f.held,
				})
			}
		}
		slices.SortFunc(v.Flows, func(a, b Flow) int {
			return cmp.Or(cmp.Compare(b.Executing+b.Waiting+b.Streams, a.Executing+a.Waiting+a.Streams),
				cmp.Compare(a.Schema, b.Schema), cmp.Compare(a.Name, b.Name))
		})
		v.Flows = v.Flows[:min(len(v.Flows), flows)]
		all = append(all, v)
	}
	return all
}

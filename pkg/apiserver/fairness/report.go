package fairness

import (
	"cmp"
	"slices"
)

// Level describes a priority level.
type Level struct {
	Name   string
	Exempt bool
	// Seats are the nominal ones, Guaranteed those that no other level borrows, FlowLimit those that one flow can have.
	Seats, Guaranteed, FlowLimit int
	Executing, Waiting           int
	Dispatched, Rejected         uint64
	// FlowCount is how many flows are known, Flows the busiest of them.
	FlowCount int
	Flows     []Flow
}

// Flow describes the requests of one user or namespace in one flow schema. BodyBytes is the size of the bodies held.
type Flow struct {
	Schema, Name                           string
	Executing, Waiting, Streams, BodyBytes int
}

// Report describes all levels, each with up to flows of its flows that have requests.
func (s *Set) Report(flows int) []Level {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Level, 0, len(s.levels))
	for _, l := range s.levels {
		v := Level{Name: l.name, Exempt: l.exempt, Seats: l.nominal, Guaranteed: l.guaranteed, FlowLimit: l.most,
			Executing: l.executing, Waiting: l.waiting, FlowCount: len(l.flows)}
		for _, c := range s.schemas {
			if c.level == l {
				v.Dispatched += c.dispatched
				for _, n := range c.rejected {
					v.Rejected += n
				}
			}
		}
		for k, f := range l.flows {
			if f.outstanding > 0 || f.streams > 0 {
				v.Flows = append(v.Flows, Flow{Schema: k.schema.name, Name: k.name, Executing: f.executing, Waiting: len(f.waiters), Streams: f.streams, BodyBytes: f.held})
			}
		}
		slices.SortFunc(v.Flows, func(a, b Flow) int {
			return cmp.Or(cmp.Compare(b.Executing+b.Waiting+b.Streams, a.Executing+a.Waiting+a.Streams), cmp.Compare(a.Schema, b.Schema), cmp.Compare(a.Name, b.Name))
		})
		v.Flows = v.Flows[:min(len(v.Flows), flows)]
		all = append(all, v)
	}
	return all
}

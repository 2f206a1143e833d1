package fairness

import (
	"math"
	"slices"
	"strings"

	flowcontrol "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
)

// Configure replaces the priority levels and flow schemas. Requests in flight stay in their level. A level that is
// no longer configured keeps its seats until its requests end. As upstream, malformed levels and schemas with a
// missing level are ignored, and mandatory objects exist even if they are not given. Configure keeps the objects:
// the caller must not change them.
func (s *Set) Configure(levels []*flowcontrol.PriorityLevelConfiguration, schemas []*flowcontrol.FlowSchema) {
	levels = withMandatory(slices.DeleteFunc(slices.Clone(levels), malformed),
		bootstrap.MandatoryPriorityLevelConfigurations,
		func(c *flowcontrol.PriorityLevelConfiguration) string { return c.Name })
	schemas = withMandatory(schemas, bootstrap.MandatoryFlowSchemas, func(c *flowcontrol.FlowSchema) string {
		return c.Name
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	byName := map[string]*level{}
	for _, l := range s.levels {
		byName[l.name] = l
		l.retired = true
	}
	for _, c := range levels {
		l := byName[c.Name]
		if l == nil {
			l = &level{
				name:    c.Name,
				exempt:  c.Spec.Type == flowcontrol.PriorityLevelEnablementExempt,
				purgeAt: idleFlows,
				flows:   map[flowKey]*flow{},
			}
			s.levels = append(s.levels, l)
			byName[c.Name] = l
		}
		l.spec, l.retired = c, false
	}
	s.levels = slices.DeleteFunc(s.levels, func(l *level) bool { return l.retired && l.requests == 0 })
	s.schemas.Store(s.matchers(byName, schemas))
	s.share()
}

// withMandatory returns objects without duplicate names, plus the missing mandatory ones.
func withMandatory[T any](objects, mandatory []T, name func(T) string) (all []T) {
	seen := map[string]bool{}
	for _, o := range append(slices.Clone(objects), mandatory...) {
		if n := name(o); !seen[n] {
			seen[n] = true
			all = append(all, o)
		}
	}
	return all
}

// malformed reports whether upstream ignores a priority level. Validation accepts no such level.
func malformed(c *flowcontrol.PriorityLevelConfiguration) bool {
	exempt := c.Spec.Type == flowcontrol.PriorityLevelEnablementExempt
	if exempt != (c.Name == flowcontrol.PriorityLevelConfigurationNameExempt) {
		return true
	}
	l := c.Spec.Limited
	return !exempt &&
		(l == nil || (l.LimitResponse.Type == flowcontrol.LimitResponseTypeQueue) != (l.LimitResponse.Queuing != nil))
}

// matching contains the flow schemas in matching order, and catch-all, which gets all other requests.
type matching struct {
	schemas  []*schema
	catchAll *schema
}

// matchers returns the flow schemas in matching order. A schema keeps the counters it had under the same name.
func (s *Set) matchers(byName map[string]*level, all []*flowcontrol.FlowSchema) *matching {
	var made []*schema
	var catchAll *schema
	counts := map[string]*counters{}
	for _, c := range all {
		l := byName[c.Spec.PriorityLevelConfiguration.Name]
		if l == nil || l.retired {
			continue
		}
		n := s.counts[c.Name]
		if n == nil {
			n = &counters{name: c.Name, rejected: map[string]uint64{}}
		}
		counts[c.Name] = n
		m := &schema{counters: n, precedence: c.Spec.MatchingPrecedence, rules: c.Spec.Rules, level: l}
		if c.Spec.DistinguisherMethod != nil {
			m.by = c.Spec.DistinguisherMethod.Type
		}
		if c.UID != "" && l.spec.UID != "" {
			m.uid, m.levelUID = []string{string(c.UID)}, []string{string(l.spec.UID)}
		}
		made = append(made, m)
		if c.Name == flowcontrol.FlowSchemaNameCatchAll {
			catchAll = m
		}
	}
	s.counts = counts
	slices.SortFunc(made, func(a, b *schema) int {
		if a.precedence != b.precedence {
			return int(a.precedence - b.precedence)
		}
		return strings.Compare(a.name, b.name)
	})
	return &matching{made, catchAll}
}

// remove removes a retired level and redistributes its seats.
func (s *Set) remove(l *level) {
	s.levels = slices.DeleteFunc(s.levels, func(o *level) bool { return o == l })
	s.share()
}

// share divides the seats among the levels by their shares, rounded up as upstream, and dispatches seats that became
// free.
func (s *Set) share() {
	total := 0
	for _, l := range s.levels {
		shares, _, _ := l.shares()
		total += shares
	}
	s.pool, s.pooled = 0, 0
	for _, l := range s.levels {
		shares, lendable, borrowable := l.shares()
		l.nominal = (s.cfg.Seats*shares + total - 1) / total
		l.guaranteed, l.limit = l.nominal-percent(l.nominal, lendable), s.cfg.Seats
		if borrowable != nil {
			l.limit = l.nominal + percent(l.nominal, *borrowable)
		}
		s.pool += l.nominal - l.guaranteed
		if l.exempt {
			continue
		}
		s.pooled += max(0, l.executing-l.guaranteed)
		l.queues = false
		if q := l.spec.Spec.Limited.LimitResponse.Queuing; q != nil {
			l.queues, l.queueLength = true, min(int(q.QueueLengthLimit), s.cfg.QueueLength)
			l.queueable = int(min(int64(q.Queues)*int64(q.QueueLengthLimit), int64(s.cfg.Queued)))
		}
	}
	for _, l := range s.levels {
		l.most = max(1, min(l.guaranteed+s.pool, l.limit)*3/4)
	}
	s.dispatch()
}

// shares returns the level's shares, the percentage of its seats that it lends, and the percentage that it may
// borrow (nil: unlimited).
func (l *level) shares() (shares, lendable int, borrowable *int32) {
	number := func(p *int32, otherwise int) int {
		if p == nil {
			return otherwise
		}
		return int(*p)
	}
	if e := l.spec.Spec.Exempt; e != nil {
		return number(e.NominalConcurrencyShares, 0), number(e.LendablePercent, 0), nil
	}
	if c := l.spec.Spec.Limited; c != nil {
		return number(c.NominalConcurrencyShares, 30), number(c.LendablePercent, 0), c.BorrowingLimitPercent
	}
	return 0, 0, nil
}

func percent[P int | int32](seats int, of P) int {
	return int(math.Round(float64(seats) * float64(of) / 100))
}

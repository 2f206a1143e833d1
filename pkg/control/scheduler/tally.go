package scheduler

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// mostTallies limits the tallies that are kept between cycles; the one that was not used for the longest time is
// dropped first.
const mostTallies = 64

// tally counts assigned pods by the domain of their nodes: those that an affinity term or a spread constraint selects.
// It follows the pods as they come and go, so that the pods of one workload need not be counted anew for each of them.
// It is dropped when nodes change.
type tally struct {
	key     string // of the nodes' labels
	domains *domains
	matches func(*corev1.Pod) bool
	// eligible are the nodes that count, and each of their domains has a count, if only of 0. Nil: all nodes count, and
	// domains without pods have none.
	eligible func(*nodeInfo) bool
	pods     map[domain]int
	total    int
	levels   map[int]int // where eligible is set: the number of domains by their count
	least    int         // the lowest of those
	used     uint64      // when it was last used
}

// tally returns the tally of a name, and fills a new one if there is none. It is not kept if the name is empty.
func (s *state) tally(name string, of func() *tally) *tally {
	t := s.tallies[name]
	if t == nil {
		t = of()
		t.fill(s)
		if name == "" {
			return t
		}
		if len(s.tallies) >= mostTallies {
			names := slices.Collect(maps.Keys(s.tallies))
			delete(s.tallies,
				slices.MinFunc(names, func(a, b string) int { return cmp.Compare(s.tallies[a].used, s.tallies[b].used) }))
		}
		s.tallies[name] = t
	}
	s.uses++
	t.used = s.uses
	return t
}

func (t *tally) fill(s *state) {
	t.domains, t.pods = s.domainsOf(t.key), map[domain]int{}
	if t.eligible != nil {
		t.levels = map[int]int{}
		for _, n := range s.order {
			if v, ok := t.domains.of(n); ok && t.eligible(n) {
				t.pods[v] = 0
			}
		}
		t.levels[0] = len(t.pods)
	}
	for _, p := range s.pods {
		t.count(p, 1)
	}
}

// count adds an assigned pod (sign 1) or removes it (-1), if it counts.
func (t *tally) count(p *podInfo, sign int) {
	v, ok := t.domains.of(p.node)
	if !ok || !t.matches(p.pod) || t.eligible != nil && !t.eligible(p.node) {
		return
	}
	t.total += sign
	was := t.pods[v]
	is := was + sign
	t.pods[v] = is
	if t.eligible == nil {
		if is == 0 {
			delete(t.pods, v)
		}
		return
	}
	t.levels[is]++
	if t.levels[was]--; t.levels[was] == 0 {
		delete(t.levels, was)
		if was == t.least {
			t.least = is // the others have more, and this one has one more or one less
		}
	}
	t.least = min(t.least, is)
}

// clone is a copy that no pod changes.
func (t *tally) clone() *tally {
	c := *t
	c.pods, c.levels = maps.Clone(t.pods), maps.Clone(t.levels)
	return &c
}

// termKind says what a term of an assigned pod means for others.
type termKind uint8

const (
	forbids  termKind = iota // required anti-affinity
	attracts                 // preferred or required affinity
	repels                   // preferred anti-affinity
)

type termKey struct {
	kind   termKind
	weight int64
	id     string
}

// termGroup are the equal terms of assigned pods.
type termGroup struct {
	term
	domains *domains
	pods    int
	values  map[domain]int // how many of the pods are there
}

// terms are the affinity terms of assigned pods that concern others, equal ones in one group: most pods share their
// workload's terms.
type terms struct {
	domainsOf      func(key string) *domains
	forbid, prefer map[termKey]*termGroup
}

func newTerms(domainsOf func(key string) *domains) *terms {
	return &terms{domainsOf: domainsOf, forbid: map[termKey]*termGroup{}, prefer: map[termKey]*termGroup{}}
}

// existing returns the terms of the assigned pods. They are counted anew after a node changed.
func (s *state) existing() *terms {
	if s.terms == nil {
		s.terms = newTerms(s.domainsOf)
		for p := range s.concerning {
			s.terms.count(p, 1)
		}
	}
	return s.terms
}

// count adds the terms of an assigned pod (sign 1) or removes them (-1).
func (e *terms) count(p *podInfo, sign int) {
	in := func(groups map[termKey]*termGroup, kind termKind, terms []term) {
		for i := range terms {
			key := termKey{kind, max(terms[i].weight, 1), terms[i].id}
			g := groups[key]
			if g == nil {
				g = &termGroup{term: terms[i], domains: e.domainsOf(terms[i].key), values: map[domain]int{}}
				groups[key] = g
			}
			if v, ok := g.domains.of(p.node); ok {
				if g.values[v] += sign; g.values[v] == 0 {
					delete(g.values, v)
				}
			}
			if g.pods += sign; g.pods == 0 {
				delete(groups, key)
			}
		}
	}
	in(e.forbid, forbids, p.affinity.requiredAnti)
	in(e.prefer, attracts, p.affinity.required) // with weight 1
	in(e.prefer, attracts, p.affinity.preferred)
	in(e.prefer, repels, p.affinity.preferredAnti)
}

// nodesChanged drops what was counted by the labels of nodes.
func (s *state) nodesChanged() {
	clear(s.tallies)
	clear(s.domains)
	clear(s.selections)
	s.terms = nil
}

// tallyPod adds or removes an assigned pod wherever it counts for others.
func (s *state) tallyPod(p *podInfo, sign int) {
	for _, t := range s.tallies {
		t.count(p, sign)
	}
}

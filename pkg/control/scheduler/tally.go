package scheduler

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// mostTallies limits the tallies that are cached between cycles. The least recently used one is dropped first.
const mostTallies = 64

// tally counts, by topology domain, the assigned pods that an affinity term or a spread constraint selects. Pod
// events update it, so that pods of one workload need not be counted again. It is dropped when nodes change.
type tally struct {
	key     string // label key of the nodes
	domains *domains
	matches func(*corev1.Pod) bool
	// eligible selects the nodes that count; each of their domains has a count, at least 0. Nil means that all nodes
	// count; domains without pods then have no entry.
	eligible func(*nodeInfo) bool
	pods     map[domain]int
	total    int
	levels   map[int]int // if eligible is set: the number of domains by their count
	least    int         // the lowest key of levels
	used     uint64      // the last use, in state.uses
}

// tally returns the cached tally of a name, or fills a new one. With an empty name it is not cached.
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

// count adds (sign 1) or removes (-1) an assigned pod, if the tally selects it.
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
			t.least = is // this domain had the lowest count and changes by one; all others are higher
		}
	}
	t.least = min(t.least, is)
}

func (t *tally) clone() *tally {
	c := *t
	c.pods, c.levels = maps.Clone(t.pods), maps.Clone(t.levels)
	return &c
}

// termKind says how a term of an assigned pod affects others.
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

// termGroup contains equal terms of assigned pods.
type termGroup struct {
	term
	domains *domains
	pods    int
	values  map[domain]int // number of the pods by domain
}

// terms contains the affinity terms of assigned pods that affect others. Equal terms, as in a workload, are grouped.
type terms struct {
	domainsOf      func(key string) *domains
	forbid, prefer map[termKey]*termGroup
}

func newTerms(domainsOf func(key string) *domains) *terms {
	return &terms{domainsOf: domainsOf, forbid: map[termKey]*termGroup{}, prefer: map[termKey]*termGroup{}}
}

// existing returns the terms of the assigned pods. They are counted again after nodes change.
func (s *state) existing() *terms {
	if s.terms == nil {
		s.terms = newTerms(s.domainsOf)
		for p := range s.concerning {
			s.terms.count(p, 1)
		}
	}
	return s.terms
}

// count adds (sign 1) or removes (-1) the terms of an assigned pod.
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

// nodesChanged drops everything that depends on the labels of nodes.
func (s *state) nodesChanged() {
	clear(s.tallies)
	clear(s.domains)
	clear(s.selections)
	s.terms = nil
}

func (s *state) tallyPod(p *podInfo, sign int) {
	for _, t := range s.tallies {
		t.count(p, sign)
	}
}

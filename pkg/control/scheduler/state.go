package scheduler

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// state is the scheduler's view of the cluster, updated by events. The scheduler's lock guards it.
type state struct {
	nodes map[string]*nodeInfo
	order []*nodeInfo // the known nodes
	start int         // index in order where the next cycle begins; may exceed a shortened order
	pods  map[types.UID]*podInfo
	// concerning contains assigned pods whose affinity affects others. terms has their terms; nil: count again.
	concerning map[*podInfo]struct{}
	terms      *terms
	// domains caches the topology domains of the nodes, by label.
	domains map[string]*domains
	// selections caches which nodes pods accept, by demand.
	selections map[string][]acceptance
	// tallies caches counts of assigned pods, by name.
	tallies     map[string]*tally
	uses        uint64                    // number of tally uses
	siblings    map[string]map[string]int // number of pods, by siblingsOf and zone
	zones       map[string]int            // nodes by zone
	soft        int                       // nodes with PreferNoSchedule taints
	priorities  map[int32]int             // pods by priority
	nominations map[types.UID]*nodeInfo   // by the pod
	gated       map[types.UID]*podInfo    // pods with scheduling gates that are nominated to a node
	foreign     map[types.UID]*corev1.Pod // pods without a node that name another scheduler
	sample      int                       // percentage of nodes to score

	namespaceLabels func(name string) map[string]string
	// heartbeat returns a node's last heartbeat.
	heartbeat func(*nodeInfo) time.Time
	// silent reports whether a node's heartbeats have stopped for too long for tasks.
	silent func(*nodeInfo) bool
	// budgets lists the disruption budgets.
	budgets func() []*budget

	profiles []*profile
	reserves []reserve
	volumes  *volumes
	devices  *devices
	gangs    *gangs

	totals  []int64
	refused []uint8
	passed  []*nodeInfo
}

func newState(sample int, namespaceLabels func(string) map[string]string) *state {
	return &state{
		nodes: map[string]*nodeInfo{}, pods: map[types.UID]*podInfo{},
		concerning: map[*podInfo]struct{}{}, domains: map[string]*domains{}, tallies: map[string]*tally{},
		selections: map[string][]acceptance{},
		siblings:   map[string]map[string]int{}, zones: map[string]int{}, priorities: map[int32]int{},
		nominations: map[types.UID]*nodeInfo{}, gated: map[types.UID]*podInfo{}, foreign: map[types.UID]*corev1.Pod{},
		sample: sample, namespaceLabels: namespaceLabels, reserves: reserves, profiles: defaultProfiles,
		budgets: func() []*budget { return nil }, heartbeat: conditionHeartbeat,
		silent:  func(*nodeInfo) bool { return false },
		volumes: newVolumes(nil), devices: newDevices(nil), gangs: newGangs(nil),
	}
}

// scratch returns reusable slices for n nodes: zeroed totals, and values of one score.
func (s *state) scratch(n int) (totals, raw []int64) {
	if cap(s.totals) < 2*n {
		s.totals = make([]int64, 2*n)
	}
	totals, raw = s.totals[:n:n], s.totals[n:2*n]
	clear(totals)
	return totals, raw
}

func (s *state) setNode(node *corev1.Node) *nodeInfo {
	n := s.nodes[node.Name]
	if n == nil {
		n = newNodeInfo(node.Name)
		s.nodes[node.Name] = n
	}
	if n.at < 0 {
		n.at = len(s.order)
		s.order = append(s.order, n)
	} else {
		s.uncountNode(n)
	}
	was := n.zone
	if n.node == nil || !maps.Equal(n.node.Labels, node.Labels) ||
		!equality.Semantic.DeepEqual(n.node.Spec.Taints, node.Spec.Taints) {
		s.nodesChanged()
	}
	n.set(node)
	if was != n.zone {
		for siblings, count := range n.siblings {
			s.countSiblings(siblings, was, -count)
			s.countSiblings(siblings, n.zone, count)
		}
	}
	s.zones[n.zone]++
	if n.soft {
		s.soft++
	}
	return n
}

func (s *state) uncountNode(n *nodeInfo) {
	if s.zones[n.zone]--; s.zones[n.zone] == 0 {
		delete(s.zones, n.zone)
	}
	if n.soft {
		s.soft--
	}
}

// removeNode removes a node and the nominations to it. Its pods stay accounted to it until they are deleted.
func (s *state) removeNode(name string) {
	n := s.nodes[name]
	if n == nil || n.at < 0 {
		return
	}
	s.uncountNode(n)
	last := len(s.order) - 1
	s.order[n.at] = s.order[last]
	s.order[n.at].at = n.at
	s.order[last] = nil
	s.order = s.order[:last]
	for siblings, count := range n.siblings { // they no longer count in the node's zone
		s.countSiblings(siblings, n.zone, -count)
		s.countSiblings(siblings, "", count)
	}
	n.at, n.node, n.zone = -1, nil, ""
	s.nodesChanged()
	for uid := range n.nominated {
		delete(s.nominations, uid)
	}
	n.nominated = nil
	if len(n.pods) == 0 {
		delete(s.nodes, name)
	}
}

func (s *state) countSiblings(siblings, zone string, count int) {
	if siblings == "" || count == 0 {
		return
	}
	zones := s.siblings[siblings]
	if zones == nil {
		zones = map[string]int{}
		s.siblings[siblings] = zones
	}
	if zones[zone] += count; zones[zone] <= 0 {
		delete(zones, zone)
	}
	if len(zones) == 0 {
		delete(s.siblings, siblings)
	}
}

func (s *state) assign(p *podInfo, name string) {
	n := s.nodes[name]
	if n == nil {
		n = newNodeInfo(name)
		s.nodes[name] = n
	}
	p.node, p.demand = n, nil
	n.count(p, 1)
	s.volumes.use(p, 1)
	s.countSiblings(p.siblings, n.zone, 1)
	s.pods[p.pod.UID] = p
	s.priorities[p.priority]++
	s.gangs.count(p, 1)
	s.tallyPod(p, 1)
	if p.affinity != nil {
		s.concerning[p] = struct{}{}
		if s.terms != nil {
			s.terms.count(p, 1)
		}
	}
}

func (s *state) remove(p *podInfo) {
	n := p.node
	n.count(p, -1)
	s.volumes.use(p, -1)
	s.countSiblings(p.siblings, n.zone, -1)
	delete(s.pods, p.pod.UID)
	s.gangs.count(p, -1)
	s.tallyPod(p, -1)
	if p.affinity != nil {
		delete(s.concerning, p)
		if s.terms != nil {
			s.terms.count(p, -1)
		}
	}
	if s.priorities[p.priority]--; s.priorities[p.priority] == 0 {
		delete(s.priorities, p.priority)
	}
	p.node = nil
	if n.node == nil && len(n.pods) == 0 {
		delete(s.nodes, n.name)
	}
}

// update replaces an assigned pod by a newer version, and reports whether the change affects scheduling.
func (s *state) update(p *podInfo, pod *corev1.Pod) bool {
	if sameNeeds(p.pod, pod) {
		ends := (p.pod.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil)
		if ends {
			s.tallyPod(p, -1)
		}
		p.pod = pod
		if ends {
			s.tallyPod(p, 1)
		}
		return false
	}
	name := p.node.name
	s.remove(p)
	s.assign(newPodInfo(pod), name)
	return true
}

// sameNeeds reports whether a and b are equal for scheduling. Only labels, resources and deletion can differ.
func sameNeeds(a, b *corev1.Pod) bool {
	resizing := func(p *corev1.Pod) bool {
		for i := range p.Status.Conditions {
			if t := p.Status.Conditions[i].Type; t == corev1.PodResizePending || t == corev1.PodResizeInProgress {
				return true
			}
		}
		return false
	}
	// A short resize may never be seen in progress, but it changes the status's observed generation. The first
	// status has none.
	sameStatus := a.Status.ObservedGeneration == b.Status.ObservedGeneration || a.Status.ObservedGeneration == 0
	return a.Generation == b.Generation && sameStatus && maps.Equal(a.Labels, b.Labels) && !resizing(a) && !resizing(b)
}

// enough returns the number of feasible nodes to find: all in a small cluster, a sample in a large one.
func (s *state) enough(f *profile) int {
	if f.ordered {
		return max(len(s.order), 1)
	}
	const least = 100
	return min(max(least, len(s.order)*s.sample/100), max(len(s.order), 1))
}

type failure struct {
	cycle   *cycle
	active  []*filter
	refused []uint8 // index into active, per node of state.order
}

func (s *state) cycle(p *podInfo) *cycle {
	return &cycle{podInfo: p, state: s, selection: s.selectionOf(p), served: s.devices.served(p.need)}
}

func (c *cycle) prepare() []*filter {
	active := make([]*filter, 0, len(c.profile.filters))
	for i := range c.profile.filters {
		if f := &c.profile.filters[i]; f.prepare == nil || f.prepare(c) {
			active = append(active, f)
		}
	}
	return active
}

func (c *cycle) refusedBy(active []*filter, n *nodeInfo) int {
	for i, f := range active {
		if f.refuse(c, n) != nil {
			return i
		}
	}
	return -1
}

// pick returns the best node for a pod, or why no node fits.
func (s *state) pick(p *podInfo) (*nodeInfo, *failure) {
	c := s.cycle(p)
	active := c.prepare()
	if n := s.nominations[p.pod.UID]; n != nil && n.node != nil && c.refusedBy(active, n) < 0 {
		return n, nil
	}
	passed, refused := s.passed[:0], s.refusals(len(s.order))
	if c.selection != nil && c.selection.names != nil {
		passed = s.named(c, active, passed, refused)
	} else {
		passed = s.sampled(c, active, passed, refused)
	}
	s.passed = passed
	if len(passed) == 0 {
		return nil, &failure{cycle: c, active: active, refused: refused}
	}
	return c.best(passed), nil
}

// refusals returns a reusable slice of n indexes.
func (s *state) refusals(n int) []uint8 {
	if cap(s.refused) < n {
		s.refused = make([]uint8, n)
	}
	return s.refused[:n]
}

// sampled appends feasible nodes to passed until it has enough. It begins where the last cycle ended, and records in
// refused which filter rejected the other nodes.
func (s *state) sampled(c *cycle, active []*filter, passed []*nodeInfo, refused []uint8) []*nodeInfo {
	enough, count := s.enough(c.profile), len(s.order)
	at := s.start // at most count, unless nodes were removed since
	if at > count {
		at = 0
	}
	for looked := 0; looked < count && len(passed) < enough; looked++ {
		if at >= count {
			at -= count
		}
		n := s.order[at]
		if by := c.refusedBy(active, n); by < 0 {
			passed = append(passed, n)
		} else {
			refused[at] = uint8(by)
		}
		at++
	}
	s.start = at
	return passed
}

// named appends the feasible nodes that the pod names to passed. It records the others as rejected by their name.
func (s *state) named(c *cycle, active []*filter, passed []*nodeInfo, refused []uint8) []*nodeInfo {
	others := uint8(slices.IndexFunc(active, func(f *filter) bool { return f.name == nodeAffinity }))
	for i := range refused {
		refused[i] = others
	}
	for _, name := range c.selection.names {
		n := s.nodes[name]
		if n == nil || n.at < 0 {
			continue
		}
		if by := c.refusedBy(active, n); by < 0 {
			passed = append(passed, n)
		} else {
			refused[n.at] = uint8(by)
		}
	}
	return passed
}

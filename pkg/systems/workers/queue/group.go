package queue

// group has the messages with one OrderKey that are not dead. A queue's limit bounds their number.
type group struct {
	// first waits, is delayed or in flight. The others are blocked until it ends.
	first   *entry
	blocked ordered // by seq
}

// block has an entry wait for the first one with its OrderKey. It returns false if it is the first one itself. An
// earlier entry, a dead one that is delivered again, goes before it unless a pod has it.
func (q *list) block(e *entry) bool {
	g := q.groups[e.OrderKey]
	if g == nil {
		if q.groups == nil {
			q.groups = map[string]*group{}
		}
		g = &group{first: e, blocked: ordered{less: bySeq, place: inOrder}}
		q.groups[e.OrderKey] = g
	}
	later, next := e, g.blocked.first()
	switch {
	case g.first == e && (next == nil || e.Seq < next.Seq):
		return false
	case g.first == e:
		g.first = next
		q.leave(next)
		q.wait(next)
	case g.first.State != InFlight && e.Seq < g.first.Seq:
		later, g.first = g.first, e
		q.leave(later)
		q.expires.add(later)
	}
	later.State = Blocked
	q.blocked++
	g.blocked.add(later)
	return later == e
}

// release unblocks the next entry after the first one with an OrderKey, which is gone or dead.
func (q *list) release(e *entry) {
	g := q.groups[e.OrderKey]
	if g == nil || g.first != e {
		return
	}
	g.first = g.blocked.first()
	if g.first == nil {
		delete(q.groups, e.OrderKey)
		return
	}
	q.leave(g.first)
	q.wait(g.first)
}

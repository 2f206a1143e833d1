package queue

// group has the messages with one OrderKey that are not dead. A queue's limit bounds their number.
type group struct {
	// first waits, is delayed or in flight. The others are blocked until it ends.
	first   *entry
	blocked ordered // by seq
}

// block has an entry wait for the first entry with its OrderKey. It returns false if the entry itself is the first. A
// redriven dead message is earlier than the first entry, and replaces it unless a pod handles the first entry.
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

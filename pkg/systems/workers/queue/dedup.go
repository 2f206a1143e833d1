package queue

import "time"

// A queue remembers a DedupID for Window after it accepted the message, and at most maxEnded DedupIDs of ended
// messages. It forgets the oldest first: beyond maxEnded, and when a new message needs their space.
const (
	Window   = 5 * time.Minute
	maxEnded = 20_000
)

// sweepEvery is the least pause between two looks for DedupIDs to forget.
const sweepEvery = time.Second

// repeated returns the message that was accepted before with the DedupID of a message, or nil.
func (q *list) repeated(m *Message) *entry {
	if first := q.ids[m.DedupID]; first != nil && time.Now().Before(first.Arrived.Add(Window)) {
		return first
	}
	return nil
}

// identify makes an entry the one with its DedupID.
func (q *list) identify(e *entry) {
	if e.DedupID == "" {
		return
	}
	if q.ids == nil {
		q.ids = map[string]*entry{}
	}
	q.ids[e.DedupID] = e
}

// remember keeps the DedupID of a message that ends, in place of the message in its store. It returns false if there is
// nothing to remember.
func (l *Local) remember(q *list, e *entry) bool {
	if q.ids[e.DedupID] != e {
		return false
	}
	if e.writing != nil || !time.Now().Before(e.Arrived.Add(Window)) {
		delete(q.ids, e.DedupID)
		return false
	}
	memory, disk := e.cost()
	e.Message = Message{
		ID: e.ID, DedupID: e.DedupID, Durable: e.Durable, Arrived: e.Arrived, State: ended, Seq: e.Seq,
	}
	less, lessDisk := e.cost()
	l.give(e.key.Namespace, memory-less, disk-lessDisk)
	l.keep(q, e)
	return true
}

// keep adds an ended message and plans its end.
func (l *Local) keep(q *list, e *entry) {
	q.ended.add(e)
	for q.ended.Len() > maxEnded {
		l.forget(q, q.ended.first())
	}
	l.sweepAt(e.Arrived.Add(Window))
}

// tidy removes a queue that has nothing.
func (l *Local) tidy(k Key, q *list) {
	if len(q.all)+q.ended.Len() == 0 {
		delete(l.queues, k)
	}
}

// forget removes an ended message.
func (l *Local) forget(q *list, e *entry) {
	q.ended.remove(e)
	if q.ids[e.DedupID] == e {
		delete(q.ids, e.DedupID)
	}
	e.DedupID = ""
	l.drop(e)
}

// forgetAll forgets all DedupIDs of a queue.
func (l *Local) forgetAll(q *list) {
	clear(q.ids)
	for q.ended.Len() > 0 {
		l.forget(q, q.ended.first())
	}
}

func (l *Local) sweepAt(at time.Time) {
	if l.sweeper == nil && !l.closed {
		l.sweeper = time.AfterFunc(max(sweepEvery, time.Until(at)), l.sweep)
	}
}

// sweep forgets the DedupIDs whose window is over.
func (l *Local) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweeper = nil
	if l.closed {
		return
	}
	var next time.Time
	for _, q := range l.queues {
		for e := q.ended.first(); e != nil; e = q.ended.first() {
			if at := e.Arrived.Add(Window); at.After(time.Now()) {
				if next.IsZero() || at.Before(next) {
					next = at
				}
				break
			}
			if e.disk != nil && e.disk.resident {
				e.stored = false // NATS removes it itself
			}
			l.forget(q, e)
		}
	}
	if !next.IsZero() {
		l.sweepAt(next)
	}
}

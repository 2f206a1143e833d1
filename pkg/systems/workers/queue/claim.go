package queue

import (
	"slices"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

func (q *list) claimed(e *entry) Message {
	q.leave(e)
	e.State = InFlight
	q.flight++
	q.flightBytes += int64(e.Size)
	return e.filled()
}

// Claim implements Queues.
func (l *Local) Claim(k Key, pod string) (Message, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[k]
	if q == nil {
		return Message{}, false
	}
	q.ripen(time.Now())
	e := q.waiting[""].first()
	if t := q.waiting[pod].first(); e == nil || t != nil && t.Seq < e.Seq {
		e = t
	}
	if e == nil {
		return Message{}, false
	}
	e.Attempts++
	l.changed(e)
	return q.claimed(e), true
}

// ripen makes delayed entries wait that are due.
func (q *list) ripen(now time.Time) {
	for e := q.delayed.first(); e != nil && !e.Due.After(now); e = q.delayed.first() {
		q.leave(e)
		q.wait(e)
	}
}

// Overdue implements Queues.
func (l *Local) Overdue(k Key) (list []Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q, now := l.queues[k], time.Now()
	if q == nil {
		return nil
	}
	q.ripen(now)
	for {
		e := q.expires.first()
		if e == nil || e.Expires.After(now) {
			break
		}
		list = append(list, q.claimed(e))
	}
	return list
}

func (l *Local) inFlight(k Key, id string) (*list, *entry) {
	if q := l.queues[k]; q != nil {
		if e := q.all[id]; e != nil && e.State == InFlight {
			return q, e
		}
	}
	return nil, nil
}

// Acknowledge implements Queues.
func (l *Local) Acknowledge(k Key, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q, e := l.inFlight(k, id); e != nil {
		q.leave(e)
		l.drop(e)
	}
}

// Return implements Queues.
func (l *Local) Return(k Key, id string, r Result) (removed []Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q, e := l.inFlight(k, id)
	if e == nil {
		return nil
	}
	q.leave(e)
	if r.Untouched {
		e.Attempts--
	} else {
		e.Error = bounded.Text(r.Error, maxText)
	}
	switch {
	case r.Dead:
		e.State = Dead
		q.release(e)
		q.dead.add(e)
		q.deadBytes += int64(e.Size)
		for q.dead.Len() > maxDead || q.deadBytes > maxDeadBytes {
			old := q.dead.first()
			q.leave(old)
			l.drop(old)
			removed = append(removed, old.Message)
		}
	case r.Delay > 0:
		e.Due = time.Now().Add(r.Delay)
		q.wait(e)
	default:
		q.wait(e)
	}
	l.changed(e)
	return removed
}

// Withdraw implements Queues.
func (l *Local) Withdraw(k Key, id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[k]
	if q == nil || q.all[id] == nil {
		return false
	}
	e := q.all[id]
	if e.writing != nil || e.State == InFlight {
		return false
	}
	q.leave(e)
	l.drop(e)
	return true
}

// Retarget implements Queues.
func (l *Local) Retarget(k Key, pod string) (returned []Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[k]
	if q == nil || pod == "" {
		return nil
	}
	var list []*entry
	if o := q.waiting[pod]; o != nil {
		list = slices.Clone(o.list)
	}
	for _, e := range q.delayed.list {
		if e.Target == pod {
			list = append(list, e)
		}
	}
	for _, g := range q.groups {
		for _, e := range g.blocked.list {
			if e.Target == pod {
				list = append(list, e)
			}
		}
	}
	for _, e := range list {
		if !e.Durable {
			returned = append(returned, q.claimed(e))
			continue
		}
		q.leave(e)
		e.Target = ""
		q.wait(e)
		l.changed(e)
	}
	return returned
}

package messages

import (
	"slices"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// taker is a long poll or a connection of a program that waits for messages.
type taker struct {
	holder string
	want   int         // the number of messages that it still accepts
	got    chan *entry // has room for want messages; closed after the last one
	ended  bool        // got is closed
}

// dispatch gives messages to the takers in turn, up to the concurrency of the queue. The caller holds q.mu.
func (q *queue) dispatch() {
	for len(q.takers) > 0 && len(q.list) > 0 && len(q.flight) < int(q.config.Concurrency) {
		t := q.takers[0]
		if t.want--; t.want == 0 || len(q.takers) > 1 {
			q.takers = q.takers[1:]
			if t.want > 0 { // round robin
				q.takers = append(q.takers, t)
			}
		}
		if t.holder == "" {
			t.holder = q.running
		}
		e := q.list[0]
		q.list[0] = nil
		q.list = q.list[1:]
		if len(q.list) == 0 {
			q.list = nil
		}
		q.watchOverdue()
		e.state, e.holder = inFlight, t.holder
		q.flight[e.ID] = e
		e.until = time.Now().Add(q.config.Timeout())
		e.timer = time.AfterFunc(q.config.Timeout(), func() {
			q.resolveEntry(e, Outcome{
				Failure: workers.HandlerTimeout, Text: "the program took longer than " + q.config.Timeout().String(),
			})
		})
		t.got <- e
	}
}

// take waits for the next message. It returns nil once stop or the queue is closed.
func (q *queue) take(stop <-chan struct{}) *entry {
	t := q.newTaker(1)
	q.want(t, 1)
	select {
	case e := <-t.got:
		return e
	case <-stop:
	}
	q.noMore(t)
	for e := range t.got {
		q.giveBack(e)
	}
	return nil
}

// newTaker returns a taker whose channel has room for most messages.
func (q *queue) newTaker(most int) *taker {
	q.mu.Lock()
	defer q.mu.Unlock()
	return &taker{holder: q.running, got: make(chan *entry, most)}
}

// want lets a taker take n more messages, limited by the room in its channel.
func (q *queue) want(t *taker, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.ended {
		return
	}
	if q.closed {
		t.ended = true
		close(t.got)
		return
	}
	if n = min(n, cap(t.got)-len(t.got)-t.want); n <= 0 {
		return
	}
	if t.want == 0 {
		q.takers = append(q.takers, t)
	}
	t.want += n
	q.dispatch()
}

// noMore ends a taker. Messages already in its channel remain for the caller. It may be called again.
func (q *queue) noMore(t *taker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.takers, t); i >= 0 {
		q.takers = slices.Delete(q.takers, i, i+1)
	}
	if !t.ended {
		t.ended = true
		close(t.got)
	}
}

// tryTake returns the next message, or nil if none can be handled now.
func (q *queue) tryTake() *entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.list) == 0 || len(q.flight) >= int(q.config.Concurrency) {
		return nil
	}
	t := &taker{holder: q.running, want: 1, got: make(chan *entry, 1)}
	q.takers = append(q.takers, t)
	q.dispatch()
	return <-t.got
}

// giveBack queues a message again that did not reach the program, unless its delivery has ended.
func (q *queue) giveBack(e *entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e.state != inFlight {
		return
	}
	if q.closed {
		q.end(e, Outcome{Failure: workers.NoReceiver, Text: "the pod terminates", Untouched: true})
		return
	}
	e.timer.Stop()
	delete(q.flight, e.ID)
	q.enqueue(e, true)
}

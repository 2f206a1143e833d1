package messages

import (
	"slices"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// taker waits for messages.
type taker struct {
	holder string
	want   int         // how many more it takes
	got    chan handed // has room for all that it wants; closed when there are no more
	ended  bool        // got is closed
}

// handed is an attempt: a message, and how often it has been given to a program.
type handed struct {
	*entry
	attempt int32
}

// dispatch gives messages to takers.
func (q *queue) dispatch() {
	for len(q.takers) > 0 && len(q.list) > 0 && len(q.flight) < int(q.config.Concurrency) {
		t := q.takers[0]
		if t.want--; t.want == 0 || len(q.takers) > 1 {
			q.takers = q.takers[1:]
			if t.want > 0 { // after the others
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
		e.Attempts++
		q.flight[e.ID] = e
		q.counters.delivered++
		if e.Attempts > 1 {
			q.counters.redelivered++
		}
		q.events.attempt(e)
		attempt := e.Attempts
		e.timer = time.AfterFunc(q.config.Timeout(), func() {
			q.resolve(e.ID, attempt, Outcome{
				Failure: workers.HandlerTimeout, Text: "the program took longer than " + q.config.Timeout().String(),
			})
		})
		t.got <- handed{e, attempt}
	}
}

// take waits for the next message until stop is closed, or the queue is; then its entry is nil.
func (q *queue) take(stop <-chan struct{}) handed {
	t := q.newTaker(1)
	q.more(t, 1)
	select {
	case h := <-t.got:
		return h
	case <-stop:
	}
	q.noMore(t)
	for h := range t.got {
		q.giveBack(h)
	}
	return handed{}
}

// newTaker returns a taker that can hold most messages.
func (q *queue) newTaker(most int) *taker {
	q.mu.Lock()
	defer q.mu.Unlock()
	return &taker{holder: q.running, got: make(chan handed, most)}
}

// more lets a taker take n more messages, within its capacity.
func (q *queue) more(t *taker, n int) {
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

// noMore ends a taker: there are no messages after those in its channel.
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

// tryTake returns the next message if there is one to be handled now.
func (q *queue) tryTake() handed {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.list) == 0 || len(q.flight) >= int(q.config.Concurrency) {
		return handed{}
	}
	t := &taker{holder: q.running, want: 1, got: make(chan handed, 1)}
	q.takers = append(q.takers, t)
	q.dispatch()
	return <-t.got
}

// giveBack returns a message that could not be given to its taker after all.
func (q *queue) giveBack(h handed) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if h.state == inFlight && h.Attempts == h.attempt {
		q.returned(h.entry)
	}
}

// returned undoes an attempt: the program has not got the message.
func (q *queue) returned(e *entry) {
	e.timer.Stop()
	delete(q.flight, e.ID)
	e.Attempts--
	q.counters.delivered--
	if e.Attempts > 0 {
		q.counters.redelivered--
	}
	q.again(e, 0, true)
}

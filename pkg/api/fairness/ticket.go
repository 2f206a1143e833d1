package fairness

import (
	"context"
	"time"
)

// Ticket is an admitted request. The zero value belongs to an exempt request, for which all methods do nothing.
type Ticket struct {
	set    *Set
	flow   *flow
	stream bool
	seated bool
	held   int
}

// Begin admits a request to its flow. stream means long-running. After success, the caller must call End.
func (s *Set) Begin(c Class, stream bool) (Ticket, error) {
	if c.schema == nil || c.schema.level.exempt {
		return Ticket{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := c.schema.level.flow(flowKey{c.schema.counters, c.flow})
	if stream {
		if f.streams >= s.cfg.Streams {
			return Ticket{}, c.schema.reject("streams")
		}
		f.streams++
	} else {
		if f.outstanding >= s.cfg.Outstanding {
			return Ticket{}, c.schema.reject("outstanding")
		}
		f.outstanding++
	}
	f.level.requests++
	return Ticket{set: s, flow: f, stream: stream}, nil
}

// Hold adds n bytes to the request's body until End. It returns a *Rejected above the limit.
func (t *Ticket) Hold(n int) error {
	s := t.set
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ofFlow, ofAll := t.flow.held+n, s.held+n
	if ofFlow > s.cfg.FlowBodyBytes || ofAll > 2*s.cfg.BodyBytes || (ofAll > s.cfg.BodyBytes && ofFlow > smallBodies) {
		return t.flow.key.schema.reject("body-bytes")
	}
	t.flow.held, s.held, t.held = ofFlow, ofAll, t.held+n
	return nil
}

// Drop subtracts n of the held bytes before End.
func (t *Ticket) Drop(n int) {
	s := t.set
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, t.held)
	t.flow.held, s.held, t.held = t.flow.held-n, s.held-n, t.held-n
}

// Acquire waits for a seat until ctx is done or Config.Wait has passed. Release frees the seat.
func (t *Ticket) Acquire(ctx context.Context) error {
	s := t.set
	if s == nil {
		return nil
	}
	s.mu.Lock()
	f := t.flow
	l := f.level
	// All waiters lack a free seat or are at their flow's limit, so this request does not overtake them.
	if len(f.waiters) == 0 && f.executing < l.most && s.free(l) {
		s.seat(f)
		t.seated = true
		s.mu.Unlock()
		return nil
	}
	w, err := s.enqueue(f)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	timer := time.NewTimer(s.cfg.Wait)
	defer timer.Stop()
	reason := ""
	select {
	case <-w.done:
	case <-timer.C:
		reason = "time-out"
	case <-ctx.Done():
		reason = "cancelled"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.done: // may happen at the same time
		if t.seated = w.ok; w.ok {
			return nil
		}
		reason = "queue-full"
	default:
		f.forget(w)
	}
	return f.key.schema.reject(reason)
}

// Release releases the seat. Further calls do nothing.
func (t *Ticket) Release() {
	if !t.seated {
		return
	}
	t.seated = false
	t.set.mu.Lock()
	defer t.set.mu.Unlock()
	t.set.unseat(t.flow)
}

// End releases everything that the request holds. Further calls do nothing.
func (t *Ticket) End() {
	s := t.set
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.seated {
		s.unseat(t.flow)
	}
	if t.stream {
		t.flow.streams--
	} else {
		t.flow.outstanding--
	}
	t.flow.held -= t.held
	s.held -= t.held
	l := t.flow.level
	if l.requests--; l.retired && l.requests == 0 {
		s.remove(l)
	}
	*t = Ticket{}
}

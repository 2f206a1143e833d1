package engine

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A burst ends when no change comes for n*pauseStep, at most pauseMost, where n is the number of changes since the
// last second without one, and at the latest burstMost after its start. So a single change is hardly delayed, and a
// storm on a busy machine becomes one batch.
const (
	pauseStep = 5 * time.Millisecond
	// pauseMost is short compared to the time from the end of a rollout to a client's first connection.
	pauseMost = 25 * time.Millisecond
	burstMost = time.Second
)

// burst is a run of changes with one name. It is kept for burstMost after its end.
type burst struct {
	began, last time.Time
	n           int
	object      client.Object // the last object; nil once the burst has ended
	timer       *time.Timer
}

// left returns how long the burst lasts, or is kept, without further changes.
func (b *burst) left(now time.Time) time.Duration {
	if b.object == nil {
		return b.last.Add(burstMost).Sub(now)
	}
	pause := time.Duration(min(b.n, int(pauseMost/pauseStep))) * pauseStep
	return min(b.last.Add(pause).Sub(now), b.began.Add(burstMost).Sub(now))
}

// batch adds a change to the burst of its name. done is called once, when the burst ends.
func (s *source) batch(name string, o client.Object, done func(client.Object)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bursts == nil {
		return
	}
	now := time.Now()
	b := s.bursts[name]
	if b == nil {
		b = &burst{}
		s.bursts[name] = b
		b.timer = time.AfterFunc(pauseStep, func() { s.look(name, b, done) })
	}
	b.n++
	b.last = now
	if b.object == nil {
		b.began, b.object = now, o
		b.timer.Reset(b.left(now))
	}
	b.object = o
}

// look ends or removes a burst, or re-arms its timer. Changes only record their time, because resetting a timer costs
// more.
func (s *source) look(name string, b *burst, done func(client.Object)) {
	s.mu.Lock()
	if s.bursts == nil {
		s.mu.Unlock()
		return
	}
	if left := b.left(time.Now()); left > 0 {
		b.timer.Reset(left)
		s.mu.Unlock()
		return
	}
	o := b.object
	b.object = nil
	if o == nil {
		delete(s.bursts, name)
	} else {
		b.timer.Reset(burstMost)
	}
	s.mu.Unlock()
	if o != nil {
		done(o)
	}
}

// endBursts drops bursts in progress, since the next source starts from the current state.
func (s *source) endBursts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.bursts {
		b.timer.Stop()
	}
	s.bursts = nil
}

package engine

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A burst ends when no change comes for n times pauseStep, at most pauseMost, where n counts the changes since the last
// second without one; and at the latest burstMost after it began. So a single change is hardly delayed, and a storm on
// a busy machine is batched as one.
const (
	pauseStep = 5 * time.Millisecond
	// pauseMost is short beside what a person or a script needs between the end of a rollout and the first connection to
	// its service.
	pauseMost = 25 * time.Millisecond
	burstMost = time.Second
)

// burst is a run of changes of one name, and for burstMost after its end the record of it.
type burst struct {
	began, last time.Time
	n           int
	object      client.Object // the last; nil once the burst has ended
	timer       *time.Timer
}

// left is how long the burst lasts, or is recorded, without further changes.
func (b *burst) left(now time.Time) time.Duration {
	if b.object == nil {
		return b.last.Add(burstMost).Sub(now)
	}
	pause := time.Duration(min(b.n, int(pauseMost/pauseStep))) * pauseStep
	return min(b.last.Add(pause).Sub(now), b.began.Add(burstMost).Sub(now))
}

// batch adds a change to the burst of its name; done is called once when that ends.
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

// look ends or removes a burst, or re-arms its timer. Changes only record their time, which is cheaper than resetting a
// timer.
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

// endBursts drops bursts in progress: the next source starts from the current state.
func (s *source) endBursts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.bursts {
		b.timer.Stop()
	}
	s.bursts = nil
}

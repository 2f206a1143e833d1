package pod

import (
	"context"
	"sync"
	"time"
)

// syncLoop calls step after each wake, in a goroutine that exists only while there is work. Safe for concurrent use.
type syncLoop struct {
	ctx  context.Context
	run  func(func()) bool // starts a goroutine, or returns false once the Manager has stopped
	step func() outcome
	gone func() // called after the last step

	mu     sync.Mutex
	active bool // a goroutine is stepping
	dirty  bool // something changed since the last step began
	paused bool // after a panic, until the timer fires
	ended  bool // after the last step; another worker may have the pod's UID
	timer  *time.Timer
}

type outcome struct {
	done  bool          // nothing of the pod is left
	pause time.Duration // after a panic: no step runs for this long
}

// wake schedules a step, unless the last step was made. It may be called with other locks held.
func (l *syncLoop) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakeLocked()
}

func (l *syncLoop) wakeLocked() {
	l.dirty = true
	if l.active || l.paused || l.ended {
		return
	}
	l.active = true
	if !l.run(l.work) {
		l.active = false
	}
}

// next reports whether to run another step; if not, the goroutine must end.
func (l *syncLoop) next() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.dirty || l.paused || l.ctx.Err() != nil {
		l.active = false
		return false
	}
	l.dirty = false
	return true
}

func (l *syncLoop) work() {
	for l.next() {
		o := l.step()
		if o.pause > 0 {
			l.pause(o.pause)
		}
		if o.done {
			l.end()
			l.gone()
			return
		}
	}
}

func (l *syncLoop) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active, l.ended = false, true
	l.stopTimer()
}

func (l *syncLoop) quiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.dirty
}

// wakeAt replaces the timer; a zero time removes it.
func (l *syncLoop) wakeAt(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopTimer()
	if !t.IsZero() && !l.ended {
		l.timer = time.AfterFunc(max(time.Until(t), 0), l.wake)
	}
}

func (l *syncLoop) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopTimer()
}

func (l *syncLoop) stopTimer() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

func (l *syncLoop) pause(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dirty, l.paused = true, true
	l.stopTimer()
	l.timer = time.AfterFunc(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.paused = false
		l.wakeLocked()
	})
}

// Package backoff makes pauses between failing attempts. Invariant: a pause is at most Most, or 1.5 times Most with
// Jitter.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is a pause that doubles from First to Most. It is used by one goroutine.
type Backoff struct {
	First, Most time.Duration
	// Jitter scales each pause by a random factor from 0.5 to 1.5, for attempts that many clients make at the same
	// time.
	Jitter bool

	pause time.Duration
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	b.pause = min(max(2*b.pause, b.First), b.Most)
	if b.Jitter {
		return Jittered(b.pause)
	}
	return b.pause
}

// Pause returns the pause after a number of failures, for callers that count them elsewhere: first after one or none,
// doubled with each further failure, at most most.
func Pause(first, most time.Duration, failures int) time.Duration {
	pause := min(first, most)
	for ; failures > 1 && pause < most; failures-- {
		pause = min(2*pause, most)
	}
	return pause
}

// Jittered scales a pause by a random factor from 0.5 to 1.5.
func Jittered(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// Reset starts again with First. Call it after a successful attempt.
func (b *Backoff) Reset() { b.pause = 0 }

// ResetAfter calls Reset if an attempt that began at that time ran for longer than Most.
func (b *Backoff) ResetAfter(began time.Time) {
	if time.Since(began) > b.Most {
		b.Reset()
	}
}

// Wait waits for the next pause. It returns false if ctx ends first.
func (b *Backoff) Wait(ctx context.Context) bool { return Sleep(ctx, b.Next()) }

// Sleep waits for d. It returns false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

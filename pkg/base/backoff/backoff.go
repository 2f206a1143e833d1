// Package backoff makes the pauses between attempts that fail.
//
// Its invariant: a pause is at most Most, or one and a half times that with Jitter.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is a pause that doubles from First to Most. It is used by one goroutine.
type Backoff struct {
	First, Most time.Duration
	// Jitter varies each pause between half and one and a half of itself, for attempts that many make at once.
	Jitter bool

	pause time.Duration
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	b.pause = min(max(2*b.pause, b.First), b.Most)
	if b.Jitter {
		return b.pause/2 + rand.N(b.pause)
	}
	return b.pause
}

// Reset begins anew, after an attempt that succeeded.
func (b *Backoff) Reset() { b.pause = 0 }

// ResetAfter begins anew if what began at that time ran for longer than the longest pause.
func (b *Backoff) ResetAfter(began time.Time) {
	if time.Since(began) > b.Most {
		b.Reset()
	}
}

// Wait waits for the next pause. It returns false if ctx ends before.
func (b *Backoff) Wait(ctx context.Context) bool { return Sleep(ctx, b.Next()) }

// Sleep waits. It returns false if ctx ends before.
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

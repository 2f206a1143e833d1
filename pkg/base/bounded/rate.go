package bounded

import (
	"sync"
	"time"
)

// Rate limits how often something is done that others cause, such as logging. It is safe for concurrent use.
type Rate struct {
	// Most is how often it may be done within Every, from the first time on.
	Most  int
	Every time.Duration

	mu            sync.Mutex
	since         time.Time
	done, skipped int
}

// Allow reports whether it may be done now, and if so how often it was not since it was last allowed.
func (r *Rate) Allow() (skipped int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.since) >= r.Every {
		r.since, r.done = now, 0
	}
	if r.done >= r.Most {
		r.skipped++
		return 0, false
	}
	r.done++
	skipped, r.skipped = r.skipped, 0
	return skipped, true
}

package bounded

import (
	"sync"
	"time"
)

// Rate limits how often an action that others cause, such as logging, is done. It is safe for concurrent use.
type Rate struct {
	// Most is how often the action may be done in each period of Every.
	Most  int
	Every time.Duration

	mu            sync.Mutex
	since         time.Time
	done, skipped int
}

// Allow reports whether the action may be done now, and how many calls were refused since the last allowed one.
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

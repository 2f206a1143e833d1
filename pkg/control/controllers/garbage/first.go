package garbage

import "time"

// patience is how long after its start the garbage collector waits for the aggregated API servers' objects before
// it decides about owners. Upstream's collector waits as long.
const patience = 30 * time.Second

// firstLists tracks whether the kinds of aggregated API servers have been listed once. Until then, an owner that
// is deleted in the foreground or orphans its dependents might seem to have none.
type firstLists struct {
	now   func() time.Time
	until time.Time

	described bool            // all servers have reported their kinds
	over      bool            // no owner waits any more
	waiting   map[object]bool // at most maxWaiting owners; further ones wait for the whole period
}

// early returns how long an owner must wait for its dependents to be known, or 0. It is enqueued as soon as they are.
func (o *others) early(owner object) time.Duration {
	if o == nil {
		return 0
	}
	left, late := o.hold(owner)
	if late {
		o.log.Warn("could not list all kinds of aggregated API servers yet, their objects do not count as dependents",
			"after", patience)
	}
	return left
}

// hold implements early. late is true once, for the first call after the period, if some kinds were not listed in time.
func (o *others) hold(owner object) (left time.Duration, late bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := &o.first
	if f.over {
		return 0, false
	}
	if left = f.until.Sub(f.now()); left <= 0 {
		f.over, f.waiting = true, nil
		return 0, true
	}
	if len(f.waiting) < maxWaiting {
		f.waiting[owner] = true
	}
	return left, false
}

func (o *others) listed() {
	for owner := range o.endFirst() {
		o.enqueue(owner.request())
	}
}

func (o *others) endFirst() (waited map[object]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := &o.first
	if f.over || !f.described {
		return nil
	}
	for _, k := range o.kinds {
		if !k.listed {
			return nil
		}
	}
	waited, f.over, f.waiting = f.waiting, true, nil
	return waited
}

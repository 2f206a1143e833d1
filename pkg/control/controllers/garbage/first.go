package garbage

import "time"

// patience is how long after its start the garbage collector has wait what depends on dependents, until other servers
// have said what they have. It is the period for which upstream's waits.
const patience = 30 * time.Second

// firstLists reports whether the first lists of other servers' kinds have come. Before, owners that are deleted in the
// foreground, or orphan their dependents, would seem to have none.
type firstLists struct {
	now   func() time.Time
	until time.Time

	described bool            // which kinds there are is known
	over      bool            // nothing waits any more
	waiting   map[object]bool // at most maxWaiting; more wait until the period is over
}

// early returns how long an owner has to wait for its dependents to be known, 0 if it has not. It is looked at again as
// soon as they are.
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

// hold returns how long an owner has to wait; late is set once, if not all were listed in time.
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

// listed has the owners looked at that waited, if all kinds have been listed.
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

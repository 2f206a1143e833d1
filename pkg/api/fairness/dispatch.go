package fairness

// free reports whether the level may use another seat.
func (s *Set) free(l *level) bool {
	return l.executing < l.guaranteed || l.executing < l.limit && s.pooled < s.pool
}

func (s *Set) seat(f *flow) {
	if f.level.executing >= f.level.guaranteed {
		s.pooled++
	}
	f.level.executing++
	f.executing++
	s.served++
	f.served = s.served
	f.key.schema.dispatched++
	f.key.schema.executing++
}

func (s *Set) unseat(f *flow) {
	f.executing--
	f.level.executing--
	f.key.schema.executing--
	if f.level.executing >= f.level.guaranteed {
		s.pooled--
	}
	s.dispatch()
}

// next returns the waiting flow with the fewest seats, or nil if all are at their limit.
func (l *level) next() (f *flow) {
	for _, g := range l.queued {
		if g.executing < l.most &&
			(f == nil || g.executing < f.executing || (g.executing == f.executing && g.served < f.served)) {
			f = g
		}
	}
	return f
}

// dispatch gives free seats to waiting requests.
func (s *Set) dispatch() {
	for {
		var f *flow
		for _, l := range s.levels {
			if l.waiting == 0 || !s.free(l) || (f != nil && l.executing*f.level.nominal >= f.level.executing*l.nominal) {
				continue
			}
			if g := l.next(); g != nil {
				f = g
			}
		}
		if f == nil {
			return
		}
		w := f.waiters[0]
		f.forget(w)
		s.seat(f)
		w.ok = true
		close(w.done)
	}
}

func (s *Set) enqueue(f *flow) (*waiter, error) {
	l := f.level
	switch {
	case !l.queues:
		return nil, f.key.schema.reject("concurrency-limit")
	case len(f.waiters) >= l.queueLength:
		return nil, f.key.schema.reject("queue-full")
	case l.waiting >= l.queueable:
		longest := l.queued[0]
		for _, g := range l.queued[1:] {
			if len(g.waiters) > len(longest.waiters) {
				longest = g
			}
		}
		if len(longest.waiters) <= len(f.waiters)+1 {
			return nil, f.key.schema.reject("queue-full")
		}
		last := longest.waiters[len(longest.waiters)-1]
		longest.forget(last)
		close(last.done)
	}
	w := &waiter{done: make(chan struct{})}
	if len(f.waiters) == 0 {
		l.queued = append(l.queued, f)
	}
	f.waiters = append(f.waiters, w)
	l.waiting++
	f.key.schema.waiting++
	return w, nil
}

// forget removes a waiter from its queue.
func (f *flow) forget(w *waiter) {
	for i := range f.waiters {
		if f.waiters[i] == w {
			f.waiters = append(f.waiters[:i], f.waiters[i+1:]...)
			f.level.waiting--
			f.key.schema.waiting--
			break
		}
	}
	if len(f.waiters) > 0 {
		return
	}
	queued := f.level.queued
	for i := range queued {
		if queued[i] == f {
			last := len(queued) - 1
			queued[i], queued[last] = queued[last], nil
			f.level.queued = queued[:last]
			return
		}
	}
}

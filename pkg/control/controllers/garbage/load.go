package garbage

import "sync"

// load counts the memory for watching one server. The share of a kind that is no longer watched is released at once,
// for the kinds that remain.
type load struct {
	lists chan struct{} // has an element for each list that is read

	mu    sync.Mutex
	total share
}

// share is the part of one kind, in bytes.
type share struct {
	held    int64 // by what is followed
	reading int64 // by lists that are read, beyond what they take the place of
}

// hold counts a change of what is followed of a kind, and reports whether it may be followed on. Only a kind that grows
// may be too large.
func (l *load) hold(of *share, change, most int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.held += change
	l.total.held += change
	if change <= 0 || l.total.held <= most {
		return true
	}
	l.total.held -= of.held
	of.held = 0
	return false
}

// read counts what has been read of a kind's list, in all, and reports whether more of it may be. Zero: it is not read
// any more.
func (l *load) read(of *share, size, most int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	reading := max(size-of.held, 0)
	l.total.reading += reading - of.reading
	of.reading = reading
	return l.total.held+l.total.reading <= most
}

// release releases the share of a kind.
func (l *load) release(of *share) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total.held -= of.held
	of.held = 0
}

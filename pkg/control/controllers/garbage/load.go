package garbage

import "sync"

// load counts the memory for watching one server. When a kind is no longer watched, its share is freed for the
// other kinds.
type load struct {
	lists chan struct{} // semaphore of the lists being read

	mu    sync.Mutex
	total share
}

// share is the memory of one kind, in bytes.
type share struct {
	held    int64 // by watched objects
	reading int64 // by lists being read, in excess of held
}

// hold adds a change of a kind's watched objects. It returns false and frees the kind's share if the kind grew
// beyond the server's limit. A kind that does not grow is always kept.
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

// read sets the size of a kind's list that has been read so far, 0 at the end. It reports whether reading may continue.
func (l *load) read(of *share, size, most int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	reading := max(size-of.held, 0)
	l.total.reading += reading - of.reading
	of.reading = reading
	return l.total.held+l.total.reading <= most
}

func (l *load) release(of *share) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total.held -= of.held
	of.held = 0
}

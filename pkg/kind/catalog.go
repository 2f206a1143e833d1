package kind

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Catalog holds the kinds that are currently served. Its methods are safe for concurrent use.
type Catalog struct {
	now atomic.Pointer[state]

	mu          sync.Mutex // held for the duration of a change
	subscribers []Subscriber
}

type state struct {
	*Table
	changed chan struct{}
}

// Subscriber takes part in changes of a Catalog. Its methods must not call Change.
type Subscriber interface {
	// Prepare is called before next is served, and returns when the subscriber can serve it. An error aborts the
	// change.
	Prepare(ctx context.Context, next *Table) error
	// Settle is called when t is served, also after a change was aborted. The subscriber may release state for kinds
	// not in t.
	Settle(t *Table)
}

// NewCatalog returns a Catalog that serves t.
func NewCatalog(t *Table) *Catalog {
	c := &Catalog{}
	c.now.Store(&state{t, make(chan struct{})})
	return c
}

// Table returns the Table served now. Lookups that must be consistent must use the same Table.
func (c *Catalog) Table() *Table { return c.now.Load().Table }

// Watch returns the Table and a channel that is closed when another one is served.
func (c *Catalog) Watch() (*Table, <-chan struct{}) {
	s := c.now.Load()
	return s.Table, s.changed
}

// Subscribe adds a subscriber to further changes, and returns the current Table and a function that ends the
// subscription. Prepare is called in the order of subscription.
func (c *Catalog) Subscribe(s Subscriber) (*Table, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, s)
	return c.Table(), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.subscribers = slices.DeleteFunc(c.subscribers, func(o Subscriber) bool { return o == s })
	}
}

// ErrNoRow means that a row to be removed is not in the catalog.
var ErrNoRow = errors.New("the catalog does not have this row")

// Change removes and adds rows in one step, and returns when all subscribers serve the result. An added row with the
// Storage of a removed row replaces it: the objects remain, and watches continue. After an error nothing has changed.
//
// Holders of a removed row may still use it: they find no objects.
func (c *Catalog) Change(ctx context.Context, remove, add []*Resource) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.now.Load()
	was := before.Table
	next, err := was.change(remove, add)
	if err != nil {
		return err
	}
	for i, s := range c.subscribers {
		if err := s.Prepare(ctx, next); err != nil {
			for _, s := range c.subscribers[:i+1] {
				s.Settle(was)
			}
			return fmt.Errorf("change of kinds: %w", err)
		}
	}
	c.now.Store(&state{next, make(chan struct{})})
	for _, s := range c.subscribers {
		s.Settle(next)
	}
	close(before.changed)
	return nil
}

// Derive returns a function that returns make of the catalog's current Table. It calls make at most once per Table.
func Derive[T any](c *Catalog, make func(*Table) T) func() T {
	type made struct {
		from  *Table
		value T
	}
	var mu sync.Mutex
	var last atomic.Pointer[made]
	return func() T {
		t := c.Table()
		if m := last.Load(); m != nil && m.from == t {
			return m.value
		}
		mu.Lock()
		defer mu.Unlock()
		t = c.Table()
		if m := last.Load(); m != nil && m.from == t {
			return m.value
		}
		m := &made{t, make(t)}
		last.Store(m)
		return m.value
	}
}

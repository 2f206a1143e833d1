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

	mu          sync.Mutex // held by a change from its begin to its end
	subscribers []Subscriber
}

// state is what is served, and what tells of the next change.
type state struct {
	*Table
	changed chan struct{}
}

// Subscriber takes part in changes of a Catalog. Its methods must not change the catalog.
type Subscriber interface {
	// Prepare is called before next is served, and returns once the subscriber is able to serve it. An error drops the change.
	Prepare(ctx context.Context, next *Table) error
	// Settle is called once t is served, and when a change to another table was dropped. What is not in t can be let go of.
	Settle(t *Table)
}

// NewCatalog creates a catalog that initially serves t.
func NewCatalog(t *Table) *Catalog {
	c := &Catalog{}
	c.now.Store(&state{t, make(chan struct{})})
	return c
}

// Table is what is served now. Use one Table for several lookups that must be consistent.
func (c *Catalog) Table() *Table { return c.now.Load().Table }

// Watch is Table with a channel that is closed when it is no longer what is served.
func (c *Catalog) Watch() (*Table, <-chan struct{}) {
	s := c.now.Load()
	return s.Table, s.changed
}

// Subscribe adds a subscriber to the changes that follow, and returns the table from which they start. The subscribers that were
// added first prepare first. The function ends the subscription.
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

// Change removes rows and adds others in one step, and returns once all subscribers serve the result. Where an added row has the
// Storage of a removed one, it replaces it: the objects stay, and watches go on. On an error, nothing has changed.
//
// Readers that got a row before it was removed may go on with it: they find no objects.
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

// Derive gives a function that returns what make makes of the catalog's present table. It is made once per table, when first asked for
// after a change.
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

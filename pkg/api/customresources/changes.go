package customresources

import (
	"context"
	"sync"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// changes changes a catalog. Each change takes time for all existing kinds, so changes that are requested during
// another one are combined. It is safe for concurrent use.
type changes struct {
	kinds *kind.Catalog
	turn  chan struct{} // capacity 1: held while the catalog changes

	mu     sync.Mutex
	wanted []*change
}

func newChanges(kinds *kind.Catalog) *changes {
	return &changes{kinds: kinds, turn: make(chan struct{}, 1)}
}

// change is one caller's request. made and err are guarded by changes.turn.
type change struct {
	remove, add []*kind.Resource
	made        bool
	err         error
}

// make removes and adds rows like kind.Catalog.Change. If a combined change fails, each request is tried alone, so
// that one caller's failure does not affect others.
func (c *changes) make(ctx context.Context, remove, add []*kind.Resource) error {
	own := &change{remove: remove, add: add}
	c.mu.Lock()
	c.wanted = append(c.wanted, own)
	c.mu.Unlock()
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if own.made {
		return own.err
	}
	c.mu.Lock()
	all := c.wanted
	c.wanted = nil
	c.mu.Unlock()
	var together change
	for _, one := range all {
		together.remove, together.add = append(together.remove, one.remove...), append(together.add, one.add...)
	}
	err := c.kinds.Change(ctx, together.remove, together.add)
	for _, one := range all {
		one.made, one.err = true, err
		if err != nil && len(all) > 1 {
			one.err = c.kinds.Change(ctx, one.remove, one.add)
		}
	}
	return own.err
}

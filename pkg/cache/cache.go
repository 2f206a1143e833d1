// Package cache is the one shared copy of the cluster's state: every etcd
// event is decoded once, and API lists and watches, reconcilers, the
// scheduler, DNS, the service proxy and the local agent read it by pointer.
//
// Immutable data! Whatever comes out of this package must not be changed:
// make a DeepCopy first. Test builds check by hash.
//
// It may import kind and the Kubernetes libraries; it takes its events from an
// interface that store.Store meets. The kinds that it holds come and go with a
// kind.Catalog. Its invariant: a table only moves forward in revision, and a
// reader that waited for a revision sees all of it.
package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/run"
)

// What reads fail with, for errors.Is.
var (
	// ErrExpired says that the changes asked for are no longer held: list again.
	ErrExpired = errors.New("the changes since that revision are no longer held: list again")
	// ErrStopped says that the cache has stopped.
	ErrStopped = errors.New("the cache has stopped")
	// ErrUnknownKind says that the cache has no table of that kind.
	ErrUnknownKind = errors.New("the cache does not hold this kind")
	// ErrRemoved says that the kind was removed while it was watched.
	ErrRemoved = errors.New("the kind is no longer served")
)

// Source is where the cache's data comes from; *store.Store is one.
type Source interface {
	// Range reads up to limit values (0: all) under prefix and >= from, in key order, as of revision rev
	// (0: now). It returns the revision read at and how many more there are.
	Range(ctx context.Context, prefix, from string, limit, rev int64) (kvs []kind.KV, at, remaining int64, err error)
	// Changes reports the changes after revision rev, in batches of whole revisions. When the channel
	// closes, the function says why: kind.ErrCompacted if the history is gone.
	Changes(ctx context.Context, prefix string, rev int64) (<-chan kind.Batch, func() error)
	// History reads the changes after revision after, up to and with revision to, with previous values, as far as they are
	// held and as the latest of them fit into limit bytes; begin is the revision behind which they begin.
	History(ctx context.Context, prefix string, after, to, limit int64) (changes []kind.Change, begin int64, err error)
}

// Config says what to hold and how much of the past.
type Config struct {
	// Kinds says what to hold. The cache subscribes to it: a kind is held before it is served.
	Kinds  *kind.Catalog
	Source Source
	// Logger tells of objects that cannot be decoded, and of reloads. Default slog.Default().
	Logger *slog.Logger
	// Metrics takes the cache's metrics; nil for none.
	Metrics prometheus.Registerer
	// RingSize bounds the latest changes held for watchers of one kind; it is rounded up to a power of two.
	// A watcher that falls further behind gets ErrExpired. Changes from before the start are fetched from the source when a
	// watch first asks for them. Memory is taken with use. Default 8192.
	RingSize int
	// RingFor is how long a change is held at the most, so that a burst's memory is given back. Default 5 minutes.
	RingFor time.Duration
	// CheckImmutable hashes every object when it comes, and panics if a reader changed it by the time it
	// goes. Always on in builds with the race detector.
	CheckImmutable bool
}

// Validate fills in the defaults and reports what is wrong.
func (c *Config) Validate() error {
	if c.Kinds == nil || c.Source == nil {
		return errors.New("cache: a catalog of kinds and a source are needed")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.RingSize == 0 {
		c.RingSize = 8192
	}
	if c.RingFor == 0 {
		c.RingFor = 5 * time.Minute
	}
	if c.RingSize < ringStart || c.RingFor < 0 {
		return fmt.Errorf("cache: RingSize must be at least %d, RingFor positive", ringStart)
	}
	c.RingSize = 1 << bits.Len(uint(c.RingSize-1))
	c.CheckImmutable = c.CheckImmutable || raceBuild
	return nil
}

// Cache holds a table per kind. Its methods are safe for concurrent use; until it is ready they see nothing.
type Cache struct {
	cfg     Config
	metrics metrics
	ready   chan struct{}
	stopped chan struct{}

	held  atomic.Pointer[held]
	kinds kinds

	unreadable unreadable

	rev     atomic.Int64
	waiters waiters
	offers  offers

	loaded     atomic.Int64 // the revision of the first state; 0 until it is read
	recallOnce sync.Once
	recalled   chan struct{} // holds one: there are changes from before the start in the rings

	touched []*table // by the batch being applied; used by the applying goroutine alone
}

var _ run.Component = (*Cache)(nil)

// New makes a cache; Run fills it and keeps it up to date.
func New(cfg Config) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Cache{
		cfg: cfg, ready: make(chan struct{}), stopped: make(chan struct{}), recalled: make(chan struct{}, 1),
		kinds: kinds{joins: make(chan *join), loads: make(chan *join)},
	}
	c.held.Store(&held{})
	now, unsubscribe := cfg.Kinds.Subscribe(c)
	c.kinds.unsubscribe = unsubscribe
	for _, r := range stored(now) {
		c.held.Store(c.held.Load().with(newTable(r, cfg.RingSize)))
	}
	c.metrics = newMetrics(cfg.Metrics, c)
	return c, nil
}

// Name is "cache".
func (c *Cache) Name() string { return "cache" }

// Ready is closed once the state of the source has been read.
func (c *Cache) Ready() <-chan struct{} { return c.ready }

// Revision is the revision that readers see now.
func (c *Cache) Revision() int64 { return c.rev.Load() }

// table is the one that holds a row's objects, or nil.
func (c *Cache) table(r *kind.Resource) *table { return c.held.Load().byStorage[r.Storage] }

// Run reads the source's state and follows its changes until ctx ends.
func (c *Cache) Run(ctx context.Context) error {
	defer c.stop()
	defer c.verify()
	if err := c.begin(ctx); err != nil {
		return ended(ctx, err)
	}
	close(c.ready)
	for {
		from := c.rev.Load()
		err := c.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, kind.ErrCompacted) && c.rev.Load() == from {
			return fmt.Errorf("cannot follow the store: %w", err)
		}
		c.cfg.Logger.Warn("cache: lost its place in the store's history, reading all of it again", "revision", c.rev.Load(), "reason", err)
		c.restartJoins()
		if err := c.load(ctx); err != nil {
			return ended(ctx, err)
		}
	}
}

// stop ends all watchers and waits.
func (c *Cache) stop() {
	close(c.stopped)
	c.kinds.loading.Wait()
	c.kinds.unsubscribe()
	for _, t := range c.held.Load().all {
		t.bells.ring()
	}
}

func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("cannot read the store: %w", err)
}

// follow applies the source's changes until it ends.
func (c *Cache) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches, end := c.cfg.Source.Changes(ctx, kind.Root, c.rev.Load())
	// The timer runs only while there are old changes to let go of.
	trim := time.NewTimer(c.cfg.RingFor)
	trim.Stop()
	defer trim.Stop()
	armed := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b, ok := <-batches:
			if !ok {
				if err := end(); err != nil {
					return err
				}
				return errors.New("the stream of changes ended")
			}
			c.applyBatch(b)
			if !armed {
				trim.Reset(c.cfg.RingFor)
				armed = true
			}
		case j := <-c.kinds.joins:
			c.join(ctx, j)
		case j := <-c.kinds.loads:
			c.joined(ctx, j)
		case <-c.recalled:
			if !armed {
				trim.Reset(c.cfg.RingFor)
				armed = true
			}
		case now := <-trim.C:
			if next := c.trim(now.Add(-c.cfg.RingFor)); !next.IsZero() {
				trim.Reset(max(next.Add(c.cfg.RingFor).Sub(now), c.cfg.RingFor/8))
			} else {
				armed = false
			}
		}
	}
}

// trim lets go of changes older than cutoff, and returns the time of the oldest left.
func (c *Cache) trim(cutoff time.Time) (oldest time.Time) {
	for _, t := range c.held.Load().all {
		t.mu.Lock()
		at := t.ring.trim(cutoff)
		t.mu.Unlock()
		if !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	return oldest
}

// verify checks all objects at the end, if the cache checks at all.
func (c *Cache) verify() {
	if !c.cfg.CheckImmutable {
		return
	}
	for _, t := range c.held.Load().all {
		t.snapshot().each("", func(e *Entry) bool {
			e.verify()
			return true
		})
	}
}

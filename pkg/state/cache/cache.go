// Package cache is the process's shared copy of the cluster's state. It decodes each etcd event once; API lists and
// watches, reconcilers, the scheduler, DNS, the service proxy and the local agent read the objects by pointer.
//
// Returned objects are shared and must not be modified: make a DeepCopy first. Builds with the race detector verify
// this by hash.
//
// The cached kinds follow a kind.Catalog. Invariant: the revision of a kind never decreases, and a reader that waited
// for a revision sees all changes up to it.
//
// Entries keep encodings up to 16 MiB (keeper): without, own memory is the same, but a list of 3,000 pods takes 45
// instead of 16 ms. Unread ones go after garbage collections: else 5,000 pods take 13 MiB more, and dead encodings
// leave no room for lists. Equal managed fields are not shared, because that saved 3 % of memory.
package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coracle-dev/coracle/pkg/base/memory"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// Errors returned by reads, for errors.Is.
var (
	// ErrExpired means that the requested changes are no longer retained: list again.
	ErrExpired = errors.New("the changes since that revision are no longer held: list again")
	// ErrStopped means that the cache has stopped.
	ErrStopped = errors.New("the cache has stopped")
	// ErrUnknownKind means that the kind is not cached.
	ErrUnknownKind = errors.New("the cache does not hold this kind")
	// ErrRemoved means that the kind was removed while it was watched.
	ErrRemoved = errors.New("the kind is no longer served")
)

// Source provides the cache's data; *store.Store implements it.
type Source interface {
	// Page reads up to limit values under prefix with keys >= from, in key order, at revision rev (0: the latest). It
	// returns the revision of the read and whether there are further values.
	Page(ctx context.Context, prefix, from string, limit, rev int64) (kvs []kind.KV, at int64, more bool, err error)
	// Changes streams the changes after revision rev, in batches of whole revisions. When the channel closes, the
	// function returns the reason: kind.ErrCompacted if the history was compacted.
	Changes(ctx context.Context, prefix string, rev int64) (<-chan kind.Batch, func() error)
	// History reads the changes in (after, to] with their previous values, as far as they are not compacted. It
	// returns only the latest changes that fit into limit bytes; they are complete after revision begin.
	History(ctx context.Context, prefix string, after, to, limit int64) (changes []kind.Change, begin int64, err error)
}

// Config configures what is cached and how much history is retained.
type Config struct {
	// Kinds lists the kinds to cache. The cache subscribes to it: a kind is cached before it is served.
	Kinds  *kind.Catalog
	Source Source
	// Logger reports objects that cannot be decoded, and reloads. Default slog.Default().
	Logger *slog.Logger
	// Metrics registers the cache's metrics; nil for none.
	Metrics prometheus.Registerer
	// RingSize bounds the number of recent changes retained for watchers of one kind, rounded up to a power of two. A
	// watcher that falls further behind gets ErrExpired. Changes from before the start are fetched from the source
	// when the first watch requests them. Default 8192.
	RingSize int
	// RingFor is the maximum time a change is retained, so that memory is released after a burst. Default 5 minutes.
	RingFor time.Duration
	// Encodings limits the bytes of kept JSON and protobuf encodings. The least recently read are dropped first, and
	// are made again on demand. Default 16 MiB.
	Encodings int64
	// CheckImmutable hashes every object when it is added, and panics if a reader has modified it by the time it is
	// replaced. Always on in builds with the race detector.
	CheckImmutable bool
}

// Validate sets defaults and reports invalid fields.
func (c *Config) Validate() error {
	if c.Kinds == nil || c.Source == nil {
		return errors.New("cache: Kinds and Source are required")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Encodings = cmp.Or(c.Encodings, keptEncodings)
	c.RingSize = cmp.Or(c.RingSize, 8192)
	c.RingFor = cmp.Or(c.RingFor, 5*time.Minute)
	if c.RingSize < ringStart || c.RingFor < 0 {
		return fmt.Errorf("cache: RingSize must be at least %d, RingFor positive", ringStart)
	}
	c.RingSize = 1 << bits.Len(uint(c.RingSize-1))
	c.CheckImmutable = c.CheckImmutable || raceBuild
	return nil
}

// Cache holds the objects of all kinds. Its methods are safe for concurrent use; until it is ready it is empty.
type Cache struct {
	cfg     Config
	metrics metrics
	// Ready is closed once the source's state has been loaded.
	run.Readiness
	stopped chan struct{}

	caches atomic.Pointer[kindCaches]
	kinds  kinds

	unreadable unreadable

	rev       atomic.Int64
	waiters   waiters
	offers    offers
	encodings keeper
	// collections is memory.AfterCollections. Tests in a synctest bubble replace it, because finalizers run outside
	// the bubble.
	collections func(func()) (stop func())

	loaded     atomic.Int64 // the revision of the initial state; 0 until it is loaded
	recallOnce sync.Once
	recalled   chan struct{} // capacity 1: changes from before the start were added to the rings

	touched []*kindCache // by the batch being applied; owned by the applying goroutine
}

var _ run.Component = (*Cache)(nil)

// New creates a cache; Run fills it and keeps it up to date.
func New(cfg Config) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Cache{
		cfg: cfg, stopped: make(chan struct{}), recalled: make(chan struct{}, 1),
		encodings:   keeper{limit: cfg.Encodings},
		collections: memory.AfterCollections,
		kinds:       kinds{joins: make(chan *join), loads: make(chan *join)},
	}
	c.caches.Store(&kindCaches{})
	now, unsubscribe := cfg.Kinds.Subscribe(c)
	c.kinds.unsubscribe = unsubscribe
	for _, r := range stored(now) {
		c.caches.Store(c.caches.Load().with(newKindCache(r, cfg.RingSize)))
	}
	c.metrics = newMetrics(cfg.Metrics, c)
	return c, nil
}

// Name is "cache".
func (c *Cache) Name() string { return "cache" }

// Done is closed when Run has ended and the cache no longer follows the store.
func (c *Cache) Done() <-chan struct{} { return c.stopped }

// Revision is the revision that readers currently see.
func (c *Cache) Revision() int64 { return c.rev.Load() }

func (c *Cache) kindCache(r *kind.Resource) *kindCache { return c.caches.Load().byStorage[r.Storage] }

// Run reads the source's state and follows its changes until ctx ends.
func (c *Cache) Run(ctx context.Context) error {
	defer c.stop()
	defer c.verify()
	defer c.forgetting(ctx)()
	if err := c.loadFirst(ctx); err != nil {
		return ended(ctx, err)
	}
	c.SetReady()
	for {
		from := c.rev.Load()
		err := c.applyChanges(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, kind.ErrCompacted) && c.rev.Load() == from {
			return fmt.Errorf("cannot follow the store: %w", err)
		}
		c.cfg.Logger.Warn("cache: watch of the store failed, relisting", "revision", c.rev.Load(), "reason", err)
		c.restartJoins()
		if err := c.load(ctx); err != nil {
			return ended(ctx, err)
		}
	}
}

// forgetting starts to drop unread encodings after each garbage collection, until stop is called.
func (c *Cache) forgetting(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	collected := make(chan struct{}, 1)
	end := c.collections(func() {
		select {
		case collected <- struct{}{}:
		default:
		}
	})
	var running sync.WaitGroup
	running.Go(func() { c.encodings.forget(ctx, collected) })
	return func() {
		end()
		cancel()
		running.Wait()
	}
}

func (c *Cache) stop() {
	close(c.stopped)
	c.kinds.loading.Wait()
	c.kinds.unsubscribe()
	for _, t := range c.caches.Load().all {
		t.notifier.notify()
	}
}

func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("cannot read the store: %w", err)
}

// applyChanges applies the source's changes until the stream ends.
func (c *Cache) applyChanges(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches, end := c.cfg.Source.Changes(ctx, kind.Root, c.rev.Load())
	// The timer runs only while the rings hold changes to expire.
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
				return errors.New("the store's watch ended")
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

// trim drops changes older than cutoff, and returns the time of the oldest change that remains.
func (c *Cache) trim(cutoff time.Time) (oldest time.Time) {
	for _, t := range c.caches.Load().all {
		t.mu.Lock()
		at := t.ring.trim(cutoff)
		t.unpin()
		t.mu.Unlock()
		if !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	return oldest
}

// verify checks on shutdown that no object was modified, if CheckImmutable is set.
func (c *Cache) verify() {
	if !c.cfg.CheckImmutable {
		return
	}
	for _, t := range c.caches.Load().all {
		t.snapshot().each("", func(e *Entry) bool {
			e.verify()
			return true
		})
	}
}

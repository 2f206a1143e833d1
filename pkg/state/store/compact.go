package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
)

// defragBytes is the free space in the database file above which it is rewritten, if it also exceeds the used space.
const defragBytes = 128 << 20

type space struct {
	looked atomic.Int64 // time of the last check of the disk, Unix nanoseconds
	free   atomic.Int64 // free space on the disk, bytes
	// Creates are refused below least bytes of free space, updates below leastUpdate.
	least, leastUpdate atomic.Int64
	disk               sync.Mutex  // held while the disk is read and the reserve taken or released
	noReserve          bool        // the file system cannot preallocate files
	wanted             atomic.Bool // a write was refused or the quota is nearly used up: compact all history
	nearly             atomic.Bool // usage is above nearlyFull
}

const (
	lookEvery = 200 * time.Millisecond
	// Above nearlyFull percent of the quota, history is compacted early and a warning is logged; below calmAgain, the
	// warning ends.
	nearlyFull = 80
	calmAgain  = 70
	// Updates may exceed the quota by one part in updateReserve. Nodes can then still report, and objects can be
	// deleted where that takes an update first (graceful deletion, finalizers).
	updateReserve = 8
	// minFree is the default of Config.MinFreeBytes. On small disks it is one part in minFreePart of the disk instead,
	// half of the free space at which nodes evict pods by default: eviction frees space before the store refuses
	// writes. It is never less than leastMinFree, two files of the log.
	minFree      = 128 << 20
	minFreePart  = 40
	leastMinFree = 32 << 20
	// Updates need one part in diskReserve of MinFreeBytes, for the reasons of updateReserve.
	diskReserve = 2
	// maxReserve is the size of the reserve, or one part in minFreePart of a small disk.
	maxReserve = 32 << 20
)

// checkSpace refuses a write of size bytes for which the quota or the disk has no space. It checks the disk at most
// every lookEvery, and only on writes.
func (s *Store) checkSpace(e endpoint, size int, update bool) error {
	if s.elsewhere() {
		return nil // an external etcd checks its own space
	}
	_, used := e.sizes()
	quota := s.cfg.QuotaBytes
	s.watchQuota(used)
	if update {
		quota += quota / updateReserve
	}
	if used+int64(size) > quota {
		s.space.wanted.Store(true)
		s.compactSoon()
		return fmt.Errorf("%w: its %d MB of data are over the quota of %d MB: %s", ErrFull, used>>20, s.cfg.QuotaBytes>>20,
			s.advice())
	}
	now := time.Now().UnixNano()
	if last := s.space.looked.Load(); now-last > int64(lookEvery) && s.space.looked.CompareAndSwap(last, now) {
		if err := s.lookAtDisk(); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	least := s.space.least.Load()
	if update {
		least = s.space.leastUpdate.Load()
	}
	if free := s.space.free.Load(); free < least {
		return fmt.Errorf("%w: the disk of %s is full (%d MB free, %d MB needed): free some space, objects can still be "+
			"deleted", ErrFull, s.cfg.Dir, free>>20, least>>20)
	}
	return nil
}

// minFreeOf returns the default of Config.MinFreeBytes on a disk of that many bytes.
func minFreeOf(disk int64) int64 { return min(minFree, max(leastMinFree, disk/minFreePart)) }

func (s *Store) wrote(rev int64, size int) {
	if s.history.add(rev, int64(size), s.cfg.RetainBytes) || rev-s.compacted.Load() > 2*s.cfg.RetainRevisions {
		s.compactSoon()
	}
}

// history records how many bytes have been written since which revision, with a resolution of an eighth of the retained
// size.
type history struct {
	mu      sync.Mutex
	written int64 // bytes since the store started
	marks   []mark
}

type mark struct{ rev, written int64 }

// add records a write and reports whether the history exceeds twice the retained size.
func (h *history) add(rev, size, retain int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.marks); n == 0 || h.written-h.marks[n-1].written >= retain/8 && rev > h.marks[n-1].rev {
		h.marks = append(h.marks, mark{rev, h.written})
	}
	h.written += size
	return h.written-h.marks[0].written > 2*retain
}

// cut returns the revision after which retain bytes have been written, or 0 if it is fewer.
func (h *history) cut(retain int64) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var rev int64
	for _, m := range h.marks {
		if h.written-m.written < retain {
			break
		}
		rev = m.rev
	}
	return rev
}

func (h *history) drop(rev int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for n < len(h.marks) && h.marks[n].rev < rev {
		n++
	}
	h.marks = slices.Delete(h.marks, 0, n)
}

func (s *Store) compactSoon() {
	select {
	case s.compact <- struct{}{}:
	default:
	}
}

// compactLoop compacts history. At each tick, the leader compacts what is older than the previous tick. In between,
// every member that sees writes compacts what exceeds RetainRevisions or RetainBytes. Without writes it does nothing.
func (s *Store) compactLoop(ctx context.Context) {
	ticks := time.NewTicker(s.cfg.CompactEvery)
	defer ticks.Stop()
	c := clock{s: s}
	for {
		at := s.etcd.Load()
		if at == nil {
			return
		}
		e := *at
		var to int64
		full := false
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			to = c.tick(e, e.leads())
		case <-s.compact:
			to = max(e.seen()-s.cfg.RetainRevisions, s.history.cut(s.cfg.RetainBytes))
			if full = s.space.wanted.Swap(false); full {
				to = e.seen()
			}
		case <-s.measure:
			s.measured(ctx, e)
			continue
		}
		if to <= s.compacted.Load() {
			continue
		}
		if err := s.compactTo(ctx, e, to); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Warn("could not compact history", "revision", to, "error", err)
		}
		if full {
			s.release(ctx, e)
		}
	}
}

// release makes space freed by a compaction available. The database frees it only with the next write, which a store
// that refuses writes never makes. So release makes one: it grants a lease that expires on its own.
func (s *Store) release(ctx context.Context, e endpoint) {
	if _, err := e.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 1}); err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("could not release freed space", "error", err)
	}
}

func (s *Store) compactTo(ctx context.Context, e endpoint, rev int64) error {
	if _, err := e.Compact(ctx, &pb.CompactionRequest{Revision: rev, Physical: true}); err != nil {
		if !errors.Is(err, mvcc.ErrCompacted) {
			return err
		}
		rev = max(rev, e.first()) // another member has compacted meanwhile
	}
	s.compacted.Store(rev)
	s.history.drop(rev)
	s.releaseMapping(e)
	return s.defragment(e)
}

type clock struct {
	s      *Store
	atTick int64 // the revision at the previous tick
}

// tick returns the revision to compact to, or 0 for none. The leader compacts for all members; the others record its
// compactions and defragment their own databases.
func (c *clock) tick(e endpoint, leads bool) (to int64) {
	to, c.atTick = c.atTick, e.seen()
	if leads {
		return to
	}
	if first := e.first(); first > c.s.compacted.Load() {
		c.s.compacted.Store(first)
		c.s.history.drop(first)
	}
	if err := c.s.defragment(e); err != nil {
		c.s.cfg.Logger.Warn("could not defragment the database", "error", err)
	}
	return 0
}

// defragment rewrites the database file if that frees much space. Each member has its own file.
func (s *Store) defragment(e endpoint) error {
	size, used := e.sizes()
	if free := size - used; free < defragBytes || free < used {
		return nil
	}
	s.mapping.Lock()
	defer s.mapping.Unlock()
	began := time.Now()
	if err := e.defragment(); err != nil {
		return fmt.Errorf("defragment: %w", err)
	}
	now, _ := e.sizes()
	s.cfg.Logger.Info("defragmented database", "fromMB", size>>20, "toMB", now>>20, "took", time.Since(began))
	return nil
}

// Compacted returns the revision before which history was discarded. Another member's compaction is noticed later.
func (s *Store) Compacted() int64 { return s.compacted.Load() }

// Compact discards all history before revision rev. Reads and watches of older revisions then fail with ErrCompacted.
func (s *Store) Compact(ctx context.Context, rev int64) error {
	e, err := s.running()
	if err != nil {
		return err
	}
	if rev <= s.compacted.Load() {
		return nil
	}
	return s.classify(ctx, s.compactTo(ctx, e, rev))
}

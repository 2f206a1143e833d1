// Package store stores the cluster's state in an embedded etcd. Its invariant: a write that returned without error is
// on disk, and the watch reports every revision once, in order.
package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// KV, Event and Batch are in package kind, so that the cache can take them from any source.
type (
	KV    = kind.KV
	Event = kind.Change
	Batch = kind.Batch
)

// Errors of the methods, for errors.Is. A cancelled call returns its context's error.
var (
	ErrNotFound  = errors.New("not found")
	ErrConflict  = errors.New("the stored value has another revision")
	ErrExists    = errors.New("already exists")
	ErrCompacted = kind.ErrCompacted
	// ErrFuture means that the requested revision has not been written yet.
	ErrFuture = kind.ErrFuture
	// ErrTooLarge means that a value is larger than MaxValueBytes.
	ErrTooLarge = errors.New("the value is too large to store")
	// ErrUnavailable means that the store cannot serve requests: it is starting, stopping, full or has failed. A write
	// that failed with it may still have been made.
	ErrUnavailable = errors.New("the store is not available")
	// ErrFull means that the quota is exceeded. It wraps ErrUnavailable.
	ErrFull = fmt.Errorf("%w: it is full", ErrUnavailable)
)

// MaxValueBytes is the maximum size of a value: the API's maximum request body (3 MiB) and room for defaults and
// managed fields.
const MaxValueBytes = 6 << 20

// Store is the cluster's key-value store. It is safe for concurrent use. Before it is ready and after Run has returned,
// its methods fail with ErrUnavailable.
type Store struct {
	cfg     Config
	metrics *metrics
	// Ready is closed once reads and writes are served.
	run.Readiness
	// etcd is nil unless the store is serving. server is also nil if etcd is external.
	etcd   atomic.Pointer[endpoint]
	server atomic.Pointer[etcdserver.EtcdServer]

	failOnce sync.Once
	failed   chan struct{} // closed when etcd has hit an unrecoverable error
	failure  string

	leases    leases
	space     space
	history   history
	compacted atomic.Int64
	compact   chan struct{} // requests a compaction now
	measure   chan struct{} // requests the sizes of kinds
	replayed  func(member uint64) bool
	election  uint // milliseconds without a leader until a member becomes a candidate
	biggest   atomic.Pointer[string]
	mapping   sync.Mutex   // held while the database is closed or defragmented, or its mapping released
	mapped    atomic.Int64 // bytes of the database read since the mapping was released
	watches   sync.WaitGroup
	stopping  chan struct{}
	stopMu    sync.Mutex
}

var _ run.Component = (*Store)(nil)

// New creates a store; Run starts it.
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		cfg: cfg, failed: make(chan struct{}),
		compact: make(chan struct{}, 1), measure: make(chan struct{}, 1), stopping: make(chan struct{}),
		replayed: replayed, election: electionMs,
	}
	s.metrics = newMetrics(s)
	return s, nil
}

// Name is "store".
func (s *Store) Name() string { return "store" }

// fail is called by etcd's logger instead of exiting the process.
func (s *Store) fail(why string) {
	s.failOnce.Do(func() {
		s.failure = why
		close(s.failed)
	})
}

func (s *Store) failureError() error {
	return fmt.Errorf("the store in %s failed: %s: check the disk for free space and errors, then start again", s.cfg.Dir,
		s.failure)
}

// elsewhere reports whether etcd is external.
func (s *Store) elsewhere() bool { return len(s.cfg.Servers.URLs) > 0 }

// publish makes the store serve requests. withdraw ends that and all watches.
func (s *Store) publish(e endpoint) { s.etcd.Store(&e) }

func (s *Store) withdraw() {
	s.etcd.Store(nil)
	s.stopMu.Lock()
	close(s.stopping)
	s.stopMu.Unlock()
}

// Run opens the data directory, or connects to an external etcd, and serves it until ctx is done.
func (s *Store) Run(ctx context.Context) error {
	if s.elsewhere() {
		return s.runRemote(ctx)
	}
	unlock, err := Lock(s.cfg.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.lookAtDisk(); err != nil {
		return err
	}
	etcd, err := s.start(ctx)
	if err != nil {
		return err
	}
	s.compacted.Store(firstRevision(etcd.Server))
	s.server.Store(etcd.Server)
	s.mapped.Store(etcd.Server.Backend().Size()) // etcd has read all of it
	s.publish(member{etcd.Server})
	s.SetReady()

	background, cancel := context.WithCancel(context.Background())
	compactor := make(chan struct{})
	go func() {
		defer close(compactor)
		s.compactLoop(background)
	}()

	select {
	case <-ctx.Done():
	case <-s.failed:
		err = s.failureError()
	case <-etcd.Server.StopNotify():
		err = errors.New("etcd stopped unexpectedly: see its last warning in the log")
	}
	s.server.Store(nil)
	s.withdraw()
	cancel()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.watches.Wait()
		<-compactor
		s.mapping.Lock()
		defer s.mapping.Unlock()
		etcd.Close()
	}()
	if err == nil {
		select {
		case <-closed:
		case <-s.failed:
			err = s.failureError()
		}
	}
	if err != nil {
		// A goroutine that exited on the failure may hold a lock. The process is about to end, so do not wait long.
		select {
		case <-closed:
		case <-time.After(2 * time.Second):
		}
	}
	return err
}

// start starts etcd and waits until it is leader. etcd starts in its own goroutine, which ends where etcd would exit
// the process.
func (s *Store) start(ctx context.Context) (*embed.Etcd, error) {
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	setSegmentBytes()
	if err := tidyLog(filepath.Join(s.cfg.Dir, Directory)); err != nil {
		return nil, err
	}
	_, err := os.Stat(filepath.Join(s.cfg.Dir, Directory, "member"))
	fresh := errors.Is(err, fs.ErrNotExist)
	if !fresh {
		if err := s.checkFiles(); err != nil {
			return nil, err
		}
	}
	started := make(chan result, 1)
	go func() {
		etcd, err := embed.StartEtcd(s.etcdConfig())
		started <- result{etcd, err}
	}()
	var r result
	select {
	case r = <-started:
	case <-s.failed:
		return nil, s.failureError()
	}
	if r.err != nil {
		if !fresh && strings.Contains(r.err.Error(), walpb.ErrCRCMismatch.Error()) {
			return nil, s.damaged("its write-ahead log cannot be read: %v", r.err)
		}
		return nil, fmt.Errorf("could not open the store in %s: %w", s.cfg.Dir, r.err)
	}
	s.lead(ctx, r.etcd.Server, fresh)
	select {
	case <-r.etcd.Server.ReadyNotify():
		return r.etcd, nil
	case <-s.failed:
		return nil, s.failureError()
	case <-r.etcd.Server.StopNotify():
		return nil, fmt.Errorf("could not open the store in %s: etcd stopped during its start", s.cfg.Dir)
	case <-ctx.Done():
		r.etcd.Close()
		return nil, ctx.Err()
	}
}

func (s *Store) running() (endpoint, error) {
	if e := s.etcd.Load(); e != nil {
		return *e, nil
	}
	select {
	case <-s.failed:
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, s.failureError())
	default:
		return nil, fmt.Errorf("%w: it is starting or stopping", ErrUnavailable)
	}
}

func (s *Store) classify(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, mvcc.ErrCompacted):
		return ErrCompacted
	case errors.Is(err, mvcc.ErrFutureRev):
		return ErrFuture
	case errors.Is(err, etcderrors.ErrRequestTooLarge):
		return fmt.Errorf("%w: at most %d bytes", ErrTooLarge, MaxValueBytes)
	case errors.Is(err, lease.ErrLeaseNotFound):
		return err
	}
	select {
	case <-s.failed:
		err = s.failureError()
	default:
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// Get reads a key. It fails with ErrNotFound, or if the value cannot be decrypted.
func (s *Store) Get(ctx context.Context, key string) (_ KV, err error) {
	defer func(began time.Time) { s.metrics.observe(opGet, key, began, err) }(time.Now())
	e, err := s.barrier(ctx)
	if err != nil {
		return KV{}, err
	}
	r, err := e.read(ctx, []byte(key), nil, mvcc.RangeOptions{Limit: 1})
	if err != nil {
		return KV{}, s.classify(ctx, err)
	}
	if len(r.KVs) == 0 {
		return KV{}, ErrNotFound
	}
	kv := KV{Key: key, Value: r.KVs[0].Value, Revision: r.KVs[0].ModRevision}
	s.open(&kv)
	return kv, kv.Err
}

// Range reads up to limit values (0: all) whose keys have the prefix and are >= from, in key order, at revision rev (0:
// now). It returns the revision and the number of further values. A value that cannot be decrypted has its Err set and
// does not fail the call.
func (s *Store) Range(ctx context.Context, prefix, from string,
	limit, rev int64) (kvs []KV, at, remaining int64, err error) {
	defer func(began time.Time) { s.metrics.observe(opList, prefix, began, err) }(time.Now())
	kvs, at, remaining, err = s.Stored(ctx, prefix, from, limit, rev)
	for i := range kvs {
		s.open(&kvs[i])
	}
	return kvs, at, remaining, err
}

// Page is Range for reading all values in pages; limit must be positive. It reports only whether there are further
// values, because counting visits each of them.
func (s *Store) Page(ctx context.Context, prefix, from string,
	limit, rev int64) (kvs []KV, at int64, more bool, err error) {
	defer func(began time.Time) { s.metrics.observe(opList, prefix, began, err) }(time.Now())
	kvs, at, _, err = s.stored(ctx, prefix, from, mvcc.RangeOptions{Limit: limit + 1, Rev: rev})
	if more = int64(len(kvs)) > limit; more {
		kvs = kvs[:limit]
	}
	for i := range kvs {
		s.open(&kvs[i])
	}
	return kvs, at, more, err
}

// Stored is Range without decryption: the values are the bytes stored in etcd.
func (s *Store) Stored(ctx context.Context, prefix, from string,
	limit, rev int64) (kvs []KV, at, remaining int64, err error) {
	kvs, at, count, err := s.stored(ctx, prefix, from, mvcc.RangeOptions{
		Limit: limit, Rev: rev, WithTotalCount: limit > 0,
	})
	if limit > 0 && len(kvs) > 0 {
		remaining = count - int64(len(kvs))
	}
	return kvs, at, remaining, err
}

func (s *Store) stored(ctx context.Context, prefix, from string,
	opts mvcc.RangeOptions) (kvs []KV, at, count int64, err error) {
	e, err := s.barrier(ctx)
	if err != nil {
		return nil, 0, 0, err
	}
	start := max(prefix, from)
	end := prefixEnd(prefix)
	if len(end) > 0 && start >= string(end) { // from is after the prefix
		start = string(end)
		end = append([]byte(start), 0)
		opts = mvcc.RangeOptions{Rev: opts.Rev, CountOnly: true}
	}
	r, err := e.read(ctx, []byte(start), end, opts)
	if err != nil {
		return nil, 0, 0, s.classify(ctx, err)
	}
	if at = opts.Rev; at == 0 {
		at = r.Rev
	}
	kvs = make([]KV, len(r.KVs))
	var size int64
	for i, kv := range r.KVs {
		kvs[i] = KV{Key: string(kv.Key), Value: kv.Value, Revision: kv.ModRevision}
		size += int64(len(kv.Value))
	}
	s.hasRead(e, size)
	return kvs, at, int64(r.Count), nil
}

// prefixEnd returns the first key after all keys with the prefix; empty means no end, as in etcd's index.
func prefixEnd(prefix string) []byte {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return []byte{}
}

// Revision returns the revision that a consistent read must include. It is free with one member and a read barrier with
// several.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	e, err := s.running()
	if err != nil {
		return 0, err
	}
	rev, err := e.revision(ctx)
	return rev, s.classify(ctx, err)
}

// barrier returns etcd once a read from it includes every write acknowledged before the call.
func (s *Store) barrier(ctx context.Context) (endpoint, error) {
	e, err := s.running()
	if err != nil {
		return nil, err
	}
	return e, s.classify(ctx, e.barrier(ctx))
}

// ours returns the member in this process, for operations that need its database.
func (s *Store) ours() (*etcdserver.EtcdServer, error) {
	if s.elsewhere() {
		return nil, errors.New("this server uses an external etcd: use etcd's tools, such as etcdctl snapshot save")
	}
	if _, err := s.running(); err != nil {
		return nil, err
	}
	if e := s.server.Load(); e != nil {
		return e, nil
	}
	return nil, ErrUnavailable
}

func header(r *pb.TxnResponse) int64 { return r.GetHeader().GetRevision() }

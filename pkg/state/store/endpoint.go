package store

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
)

// endpoint is the etcd that a Store uses: the member in this process, or servers elsewhere (remote). It returns the
// errors of a member.
type endpoint interface {
	// barrier returns once reads include every write acknowledged before the call.
	barrier(ctx context.Context) error
	read(ctx context.Context, key, end []byte, o mvcc.RangeOptions) (*mvcc.RangeResult, error)
	Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error)
	LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error)
	Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error)
	// revision returns the revision of the last write, as a read after a barrier sees it.
	revision(ctx context.Context) (int64, error)
	// seen returns the revision of the last write as far as known, without waiting, and first the oldest one that can be
	// read.
	seen() int64
	first() int64
	// watch streams the changes of all keys from a revision on, with previous values if prev is set and they are at hand.
	// The channel is closed when the stream ended; cancel ends it and says why it did.
	watch(ctx context.Context, from int64, prev bool) (changes <-chan mvcc.WatchResponse, cancel func() error, err error)
	// leads reports whether this process compacts by age.
	leads() bool
	// members and id are as Store's Alone and Member need them; 0 for servers elsewhere.
	members() int
	id() uint64
	// sizes returns the bytes of the database file and of its part in use; 0 for servers elsewhere, which have limits of
	// their own.
	sizes() (file, used int64)
	// defragment rewrites the database file, if it is this process's.
	defragment() error
}

// member is the member of etcd in this process.
type member struct{ *etcdserver.EtcdServer }

var _ endpoint = member{}

// barrier: a single member applies a write before it acknowledges it, so no wait is needed.
func (m member) barrier(ctx context.Context) error {
	if m.members() > 1 {
		return m.LinearizableReadNotify(ctx)
	}
	return nil
}

func (m member) read(ctx context.Context, key, end []byte, o mvcc.RangeOptions) (*mvcc.RangeResult, error) {
	return m.KV().Range(ctx, key, end, o)
}

func (m member) revision(ctx context.Context) (int64, error) {
	if err := m.barrier(ctx); err != nil {
		return 0, err
	}
	return m.KV().Rev(), nil
}

func (m member) seen() int64               { return m.KV().Rev() }
func (m member) first() int64              { return firstRevision(m.EtcdServer) }
func (m member) members() int              { return members(m.EtcdServer) }
func (m member) leads() bool               { return leads(m.EtcdServer) }
func (m member) id() uint64                { return uint64(m.MemberID()) }
func (m member) sizes() (file, used int64) { return m.Backend().Size(), m.Backend().SizeInUse() }
func (m member) defragment() error         { return m.Backend().Defrag() }

func (m member) watch(ctx context.Context, from int64, _ bool) (<-chan mvcc.WatchResponse, func() error, error) {
	stream := m.Watchable().NewWatchStream()
	if _, err := stream.Watch(ctx, 0, []byte{0}, []byte{}, from); err != nil {
		stream.Close()
		return nil, nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return stream.Chan(), func() error { stream.Close(); return nil }, nil
}

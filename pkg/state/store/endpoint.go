package store

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
)

// endpoint is the etcd that a Store uses: a member in this process, or external servers (remote). Both return the
// errors of etcd's server packages.
type endpoint interface {
	// barrier returns once reads include every write acknowledged before the call.
	barrier(ctx context.Context) error
	read(ctx context.Context, key, end []byte, o mvcc.RangeOptions) (*mvcc.RangeResult, error)
	Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error)
	LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error)
	Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error)
	// revision returns the revision of the last write, as a read after a barrier sees it.
	revision(ctx context.Context) (int64, error)
	// seen returns the revision of the last known write, without waiting, and first the oldest readable revision.
	seen() int64
	first() int64
	// watch streams the changes of all keys from a revision on. prev asks for previous values, which only remote adds.
	// The channel is closed when the stream has ended; cancel ends it and returns the reason.
	watch(ctx context.Context, from int64, prev bool) (changes <-chan mvcc.WatchResponse, cancel func() error, err error)
	// leads reports whether this process compacts by age.
	leads() bool
	// members counts the members, including learners, and id is this member's ID; both are 0 for external servers.
	members() int
	id() uint64
	// sizes returns the bytes of the database file and of its used part; 0 for external servers, which limit their own
	// size.
	sizes() (file, used int64)
	// defragment rewrites the database file of a member in this process.
	defragment() error
}

type member struct{ *etcdserver.EtcdServer }

var _ endpoint = member{}

// barrier does not wait with a single member, which applies a write before it acknowledges it.
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

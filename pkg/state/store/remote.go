package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Servers are the client URLs of an external etcd, used in place of a member in this process. Its operator manages its
// quota, disk and defragmentation. History is compacted as upstream's API server does.
type Servers struct {
	// URLs are http or https. TLS is required with https.
	URLs []string
	TLS  *tls.Config
}

// Limits of connections to an external etcd. A message may contain a whole revision, that is, a transaction.
const (
	dialPatience  = 20 * time.Second
	redialMost    = 3 * time.Second
	keepAlive     = 30 * time.Second // as upstream
	keepAliveWait = 10 * time.Second
	maxMessage    = 512 << 20
)

type remote struct {
	client  *clientv3.Client
	kv      pb.KVClient
	leasing pb.LeaseClient
	// last and compacted are the greatest revisions of a write and of a compaction in etcd's responses.
	last, compacted atomic.Int64
}

var _ endpoint = (*remote)(nil)

func (s *Store) runRemote(ctx context.Context) error {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: s.cfg.Servers.URLs, TLS: s.cfg.Servers.TLS, Logger: newZap(s.cfg.Logger, nil),
		DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAliveWait, MaxCallSendMsgSize: maxMessage,
		MaxCallRecvMsgSize: maxMessage,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  10 * time.Millisecond,
				Multiplier: 1.6,
				Jitter:     0.2,
				MaxDelay:   redialMost,
			},
			MinConnectTimeout: redialMost})},
	})
	if err != nil {
		return fmt.Errorf("could not connect to etcd: %w", err)
	}
	defer c.Close()
	r := &remote{client: c, kv: clientv3.RetryKVClient(c), leasing: clientv3.RetryLeaseClient(c)}
	first, cancel := context.WithTimeout(ctx, dialPatience)
	_, err = r.revision(first)
	cancel()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("no answer from etcd at %v within %s: %w", s.cfg.Servers.URLs, dialPatience, err)
	}
	s.publish(r)
	s.SetReady()
	var compactor sync.WaitGroup
	compactor.Go(func() { s.compactLoop(ctx) })
	<-ctx.Done()
	s.withdraw()
	s.watches.Wait()
	compactor.Wait()
	return nil
}

func (r *remote) saw(h *pb.ResponseHeader) { raise(&r.last, h.GetRevision()) }

func raise(v *atomic.Int64, to int64) {
	for {
		old := v.Load()
		if to <= old || v.CompareAndSwap(old, to) {
			return
		}
	}
}

// local maps a client's error to the error that a member in this process would return.
func local(err error) error {
	if err == nil {
		return nil
	}
	known := rpctypes.Error(err)
	for there, here := range map[error]error{
		rpctypes.ErrCompacted: mvcc.ErrCompacted, rpctypes.ErrFutureRev: mvcc.ErrFutureRev,
		rpctypes.ErrRequestTooLarge: etcderrors.ErrRequestTooLarge, rpctypes.ErrLeaseNotFound: lease.ErrLeaseNotFound,
	} {
		if errors.Is(known, there) {
			return here
		}
	}
	return err
}

// barrier does nothing: each read is linearizable by itself.
func (r *remote) barrier(context.Context) error { return nil }

func (r *remote) read(ctx context.Context, key, end []byte, o mvcc.RangeOptions) (*mvcc.RangeResult, error) {
	a, err := r.kv.Range(ctx, &pb.RangeRequest{
		Key:       key,
		RangeEnd:  end,
		Limit:     o.Limit,
		Revision:  o.Rev,
		CountOnly: o.CountOnly,
	})
	if err != nil {
		return nil, local(err)
	}
	r.saw(a.GetHeader())
	return &mvcc.RangeResult{KVs: a.GetKvs(), Rev: a.GetHeader().GetRevision(), Count: int(a.GetCount())}, nil
}

func (r *remote) Txn(ctx context.Context, q *pb.TxnRequest) (*pb.TxnResponse, error) {
	a, err := r.kv.Txn(ctx, q)
	if err != nil {
		return nil, local(err)
	}
	r.saw(a.GetHeader())
	return a, nil
}

func (r *remote) LeaseGrant(ctx context.Context, q *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	a, err := r.leasing.LeaseGrant(ctx, q)
	return a, local(err)
}

func (r *remote) Compact(ctx context.Context, q *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	a, err := r.kv.Compact(ctx, &pb.CompactionRequest{Revision: q.GetRevision()})
	if err == nil {
		raise(&r.compacted, q.GetRevision())
	}
	return a, local(err)
}

func (r *remote) revision(ctx context.Context) (int64, error) {
	a, err := r.kv.Range(ctx, &pb.RangeRequest{Key: []byte{0}, Limit: 1, KeysOnly: true})
	if err != nil {
		return 0, local(err)
	}
	r.saw(a.GetHeader())
	return a.GetHeader().GetRevision(), nil
}

func (r *remote) seen() int64           { return r.last.Load() }
func (r *remote) first() int64          { return r.compacted.Load() }
func (r *remote) leads() bool           { return true }
func (r *remote) members() int          { return 0 }
func (r *remote) id() uint64            { return 0 }
func (r *remote) sizes() (int64, int64) { return 0, 0 }
func (r *remote) defragment() error     { return nil }

func (r *remote) watch(ctx context.Context, from int64, prev bool) (<-chan mvcc.WatchResponse, func() error, error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	options := []clientv3.OpOption{clientv3.WithFromKey(), clientv3.WithRev(from)}
	if prev {
		options = append(options, clientv3.WithPrevKV())
	}
	out := make(chan mvcc.WatchResponse)
	done := make(chan error, 1)
	answers := r.client.Watch(ctx, "\x00", options...)
	go func() {
		defer close(out)
		done <- r.pass(ctx, answers, out)
	}()
	return out, func() error { cancel(); return <-done }, nil
}

// pass forwards watch responses until the watch ends, and returns the reason.
func (r *remote) pass(ctx context.Context, answers clientv3.WatchChan, out chan<- mvcc.WatchResponse) error {
	for a := range answers {
		raise(&r.compacted, a.CompactRevision)
		raise(&r.last, a.Header.GetRevision())
		if err := a.Err(); err != nil && a.CompactRevision == 0 {
			return local(err)
		}
		changes := mvcc.WatchResponse{Revision: a.Header.GetRevision(), CompactRevision: a.CompactRevision}
		changes.Events = append(changes.Events, a.Events...)
		select {
		case out <- changes:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New("etcd ended the watch")
}

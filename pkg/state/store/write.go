package store

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/lease"
)

// Create writes a new key. A ttl of 0 means no expiry. It returns the revision of the write, or ErrExists.
func (s *Store) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (rev int64, err error) {
	defer func(began time.Time) { s.metrics.observe(opCreate, key, began, err) }(time.Now())
	rev, ok, _, err := s.put(ctx, key, value, 0, ttl)
	// A starting node creates its Node, and updates it if it exists.
	if errors.Is(err, ErrFull) {
		if _, e := s.Get(ctx, key); e == nil {
			return 0, ErrExists
		}
	}
	if err == nil && !ok {
		err = ErrExists
	}
	return rev, err
}

// Update replaces the value if its revision is still rev; otherwise it fails with ErrConflict, or with ErrNotFound if
// the key does not exist. The ttl starts anew; 0 means no expiry.
func (s *Store) Update(ctx context.Context, key string, value []byte, rev int64,
	ttl time.Duration) (_ int64, err error) {
	defer func(began time.Time) { s.metrics.observe(opUpdate, key, began, err) }(time.Now())
	if rev <= 0 {
		return 0, ErrConflict
	}
	at, ok, found, err := s.put(ctx, key, value, rev, ttl)
	return at, outcome(ok, found, err)
}

// Delete deletes the key if its revision is still rev; otherwise it fails with ErrConflict or ErrNotFound. It returns
// the revision of the deletion.
func (s *Store) Delete(ctx context.Context, key string, rev int64) (_ int64, err error) {
	defer func(began time.Time) { s.metrics.observe(opDelete, key, began, err) }(time.Now())
	e, err := s.running()
	if err != nil {
		return 0, err
	}
	at, ok, found, err := s.txn(ctx, e, key, rev, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)},
	}})
	if ok && s.space.nearly.Load() {
		// The deleted value occupies space until history is compacted.
		s.space.wanted.Store(true)
		s.compactSoon()
	}
	return at, outcome(ok, found, err)
}

func outcome(ok, found bool, err error) error {
	switch {
	case err != nil || ok:
		return err
	case found:
		return ErrConflict
	}
	return ErrNotFound
}

func (s *Store) put(ctx context.Context, key string, value []byte, rev int64,
	ttl time.Duration) (at int64, ok, found bool, err error) {
	e, err := s.running()
	if err != nil {
		return 0, false, false, err
	}
	if len(value) > MaxValueBytes {
		return 0, false, false, ErrTooLarge
	}
	if err := s.checkSpace(e, len(value), rev != 0); err != nil {
		return 0, false, false, err
	}
	value, done, err := s.seal(key, value)
	if err != nil {
		return 0, false, false, err
	}
	defer done()
	for {
		id, err := s.leases.get(ctx, e, ttl)
		if err != nil {
			return 0, false, false, s.classify(ctx, err)
		}
		at, ok, found, err = s.txn(ctx, e, key, rev, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
			RequestPut: &pb.PutRequest{Key: []byte(key), Value: value, Lease: int64(id)},
		}})
		// A shared lease that expired in between is replaced by a new one.
		if id != 0 && errors.Is(err, lease.ErrLeaseNotFound) {
			s.leases.forget(id)
			continue
		}
		return at, ok, found, err
	}
}

// txn makes the write in one transaction if the key is at revision rev (0: if it does not exist), and otherwise reports
// whether the key exists.
func (s *Store) txn(ctx context.Context, e endpoint, key string, rev int64,
	op *pb.RequestOp) (at int64, ok, found bool, err error) {
	k := []byte(key)
	cmp := &pb.Compare{
		Key:         k,
		Result:      pb.Compare_EQUAL,
		Target:      pb.Compare_MOD,
		TargetUnion: &pb.Compare_ModRevision{ModRevision: rev},
	}
	req := &pb.TxnRequest{Compare: []*pb.Compare{cmp}, Success: []*pb.RequestOp{op}}
	if rev != 0 {
		req.Failure = []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{
			RequestRange: &pb.RangeRequest{Key: k, KeysOnly: true, Limit: 1},
		}}}
	}
	r, err := e.Txn(ctx, req)
	if err != nil {
		return 0, false, false, s.classify(ctx, err)
	}
	size := 0
	if r.GetSucceeded() {
		size = len(op.GetRequestPut().GetValue())
	}
	s.wrote(header(r), size)
	if !r.GetSucceeded() && rev != 0 && len(r.GetResponses()) == 1 {
		found = len(r.GetResponses()[0].GetResponseRange().GetKvs()) > 0
	}
	return header(r), r.GetSucceeded(), found, nil
}

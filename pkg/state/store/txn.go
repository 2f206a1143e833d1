package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/lease"
)

// MaxOps is the maximum number of operations in a transaction.
const MaxOps = 4096

// Action is what an Op does.
type Action int

// The actions of an Op.
const (
	Put    Action = iota // writes Value: a create if Revision is 0, otherwise an update
	Remove               // deletes the key
	Check                // writes nothing: only compares the key's revision
)

// Op is one operation of a transaction.
type Op struct {
	Action Action
	Key    string
	Value  []byte
	// Revision is the revision that the key must have, or 0 if the key must not exist.
	Revision int64
	TTL      time.Duration // for Put; 0 means no expiry
	// keepExpiry leaves the key's expiry unchanged.
	keepExpiry bool
}

// Txn makes all operations in one revision, with one sync of the log, or none. On a mismatch it returns the index of
// the first operation that failed, and ErrExists, ErrConflict or ErrNotFound as single writes do. For all other errors
// index is 0. ops must have 1 to MaxOps elements with distinct keys.
func (s *Store) Txn(ctx context.Context, ops ...Op) (rev int64, index int, err error) {
	if err := checkOps(ops); err != nil {
		return 0, 0, err
	}
	defer func(began time.Time) { s.metrics.observe(ops[0].operation(), ops[0].Key, began, err) }(time.Now())
	e, err := s.running()
	if err != nil {
		return 0, 0, err
	}
	size, creates := 0, false
	for _, op := range ops {
		if len(op.Value) > MaxValueBytes {
			return 0, 0, ErrTooLarge
		}
		size += len(op.Value)
		creates = creates || op.Action == Put && op.Revision == 0
	}
	if size > 0 {
		if err := s.checkSpace(e, size, !creates); err != nil {
			// A starting node creates its Node, and updates it if it exists.
			if creates && len(ops) == 1 && errors.Is(err, ErrFull) {
				if _, e := s.Get(ctx, ops[0].Key); e == nil {
					return 0, 0, ErrExists
				}
			}
			return 0, 0, err
		}
	}
	ops, done, err := s.sealAll(ops)
	if err != nil {
		return 0, 0, err
	}
	defer done()
	for {
		req, leased, err := s.request(ctx, e, ops)
		if err != nil {
			return 0, 0, s.classify(ctx, err)
		}
		r, err := e.Txn(ctx, req)
		if len(leased) > 0 && errors.Is(err, lease.ErrLeaseNotFound) {
			for _, id := range leased {
				s.leases.forget(id)
			}
			continue
		}
		if err != nil {
			return 0, 0, s.classify(ctx, err)
		}
		if !r.GetSucceeded() {
			s.wrote(header(r), 0)
			index, err = failed(ops, r)
			return 0, index, err
		}
		s.wrote(header(r), size)
		for _, op := range ops {
			if op.Action == Remove && s.space.nearly.Load() {
				s.space.wanted.Store(true)
				s.compactSoon()
				break
			}
		}
		return header(r), 0, nil
	}
}

func (s *Store) sealAll(ops []Op) (sealed []Op, done func(), err error) {
	if s.cfg.Values == nil {
		return ops, func() {}, nil
	}
	var ends []func()
	done = func() {
		for _, end := range ends {
			end()
		}
	}
	sealed = slices.Clone(ops)
	for i := range sealed {
		if sealed[i].Action != Put {
			continue
		}
		stored, end, err := s.cfg.Values.Seal(sealed[i].Key, sealed[i].Value)
		if err != nil {
			done()
			return nil, nil, fmt.Errorf("could not encrypt %s: %w", sealed[i].Key, err)
		}
		sealed[i].Value, ends = stored, append(ends, end)
	}
	return sealed, done, nil
}

func checkOps(ops []Op) error {
	if len(ops) == 0 || len(ops) > MaxOps {
		return fmt.Errorf("%w: a transaction has 1 to %d operations, not %d", ErrTooLarge, MaxOps, len(ops))
	}
	if len(ops) == 1 {
		return nil
	}
	seen := make(map[string]bool, len(ops))
	for _, op := range ops {
		if seen[op.Key] {
			return fmt.Errorf("the key %s occurs twice in one transaction", op.Key)
		}
		seen[op.Key] = true
	}
	return nil
}

func (o Op) operation() operation {
	switch {
	case o.Action == Remove:
		return opDelete
	case o.Action == Check:
		return opGet
	case o.Revision == 0:
		return opCreate
	}
	return opUpdate
}

func (s *Store) request(ctx context.Context, e endpoint, ops []Op) (*pb.TxnRequest, []lease.LeaseID, error) {
	req := &pb.TxnRequest{}
	var leased []lease.LeaseID
	for _, op := range ops {
		k := []byte(op.Key)
		req.Compare = append(req.Compare, &pb.Compare{Key: k, Result: pb.Compare_EQUAL, Target: pb.Compare_MOD,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: op.Revision}})
		if len(ops) > 1 || op.Revision != 0 { // otherwise the failure says that the key exists
			req.Failure = append(req.Failure, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{
				RequestRange: &pb.RangeRequest{Key: k, KeysOnly: true, Limit: 1}}})
		}
		switch op.Action {
		case Put:
			id, err := s.leases.get(ctx, e, op.TTL)
			if err != nil {
				return nil, nil, err
			}
			if id != 0 {
				leased = append(leased, id)
			}
			req.Success = append(req.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
				RequestPut: &pb.PutRequest{Key: k, Value: op.Value, Lease: int64(id), IgnoreLease: op.keepExpiry},
			}})
		case Remove:
			req.Success = append(req.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
				RequestDeleteRange: &pb.DeleteRangeRequest{Key: k}}})
		case Check:
		}
	}
	return req, leased, nil
}

// failed returns the index and the error of the first operation whose key has another revision.
func failed(ops []Op, r *pb.TxnResponse) (int, error) {
	if len(r.GetResponses()) == 0 {
		return 0, ErrExists
	}
	for i, response := range r.GetResponses() {
		var have int64
		if kvs := response.GetResponseRange().GetKvs(); len(kvs) > 0 {
			have = kvs[0].ModRevision
		}
		switch want := ops[i].Revision; {
		case have == want:
			continue
		case want == 0:
			return i, ErrExists
		case have == 0:
			return i, ErrNotFound
		default:
			return i, ErrConflict
		}
	}
	return 0, ErrConflict
}

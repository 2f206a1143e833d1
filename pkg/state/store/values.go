package store

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Values transforms values into the bytes stored in etcd and back, for encryption. It is safe for concurrent use.
type Values interface {
	// Seal returns the bytes to store for value at key, which may be value itself. If it succeeds, done is called once
	// the write has finished, successfully or not.
	Seal(key string, value []byte) (stored []byte, done func(), err error)
	// Open returns the value of stored bytes, which may be stored itself.
	Open(key string, stored []byte) ([]byte, error)
}

// open replaces the stored bytes of kv with their value, or sets its Err.
func (s *Store) open(kv *KV) {
	if s.cfg.Values == nil {
		return
	}
	kv.Value, kv.Err = s.cfg.Values.Open(kv.Key, kv.Value)
	if kv.Err != nil {
		kv.Value = nil
	}
}

func (s *Store) openAll(events []Event) {
	if s.cfg.Values == nil {
		return
	}
	for i := range events {
		if ev := &events[i]; !ev.Deleted {
			s.open(&ev.KV)
		}
		if prev := &events[i].Prev; prev.Key != "" {
			s.open(prev)
		}
	}
}

// Reseal encrypts a value returned by Stored with the present settings of Values and writes it. The key's expiry does
// not change. It fails with ErrConflict or ErrNotFound if the key was written or deleted meanwhile.
func (s *Store) Reseal(ctx context.Context, kv KV) error {
	s.open(&kv)
	if kv.Err != nil {
		return kv.Err
	}
	_, _, err := s.Txn(ctx, Op{Key: kv.Key, Value: kv.Value, Revision: kv.Revision, keepExpiry: true})
	return err
}

// Settle returns once every write begun before the call has been made or has finally failed, including writes whose
// callers no longer wait.
func (s *Store) Settle(ctx context.Context) error {
	e, err := s.running()
	if err != nil {
		return err
	}
	// Log entries are applied in order. Granting a lease adds one that changes no key.
	_, err = e.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 1})
	return s.classify(ctx, err)
}

// Superseded reports whether a write failed because the value was changed or deleted meanwhile.
func (s *Store) Superseded(err error) bool {
	return errors.Is(err, ErrConflict) || errors.Is(err, ErrNotFound)
}

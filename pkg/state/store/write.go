package store

import (
	"context"
	"time"
)

// Create writes a new key. A ttl of 0 means no expiry. It returns the revision of the write, or ErrExists.
func (s *Store) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (int64, error) {
	rev, _, err := s.Txn(ctx, Op{Key: key, Value: value, TTL: ttl})
	return rev, err
}

// Update replaces the value if its revision is still rev; otherwise it fails with ErrConflict, or with ErrNotFound if
// the key does not exist. The ttl starts anew; 0 means no expiry.
func (s *Store) Update(ctx context.Context, key string, value []byte, rev int64, ttl time.Duration) (int64, error) {
	if rev <= 0 {
		return 0, ErrConflict
	}
	rev, _, err := s.Txn(ctx, Op{Key: key, Value: value, Revision: rev, TTL: ttl})
	return rev, err
}

// Delete deletes the key if its revision is still rev; otherwise it fails with ErrConflict or ErrNotFound. It returns
// the revision of the deletion.
func (s *Store) Delete(ctx context.Context, key string, rev int64) (int64, error) {
	rev, _, err := s.Txn(ctx, Op{Action: Remove, Key: key, Revision: rev})
	return rev, err
}

package store

import (
	"context"
	"maps"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/lease"
)

// Keys that expire at about the same time share an etcd lease, since granting a lease costs as much as a write.
const (
	leaseShareMax  = time.Minute // a key may live this much longer than requested,
	leaseSharePart = 20          // or this fraction of its TTL, if that is less
	leaseKeys      = 1000        // keys per lease; all are deleted in one transaction
)

type leases struct {
	mu sync.Mutex
	// byTTL has the current lease for each TTL. Few kinds use a TTL.
	byTTL map[time.Duration]*sharedLease
}

type sharedLease struct {
	id    lease.LeaseID
	until time.Time // no new keys after this time
	keys  int
}

// get returns a lease that expires no sooner than ttl from now, or 0 if ttl is 0.
func (l *leases) get(ctx context.Context, e endpoint, ttl time.Duration) (lease.LeaseID, error) {
	if ttl <= 0 {
		return lease.NoLease, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if s := l.byTTL[ttl]; s != nil && now.Before(s.until) && s.keys < leaseKeys {
		s.keys++
		return s.id, nil
	}
	share := min(ttl/leaseSharePart, leaseShareMax).Truncate(time.Second)
	seconds := int64((ttl + share + time.Second - 1) / time.Second)
	r, err := e.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds})
	if err != nil {
		return 0, err
	}
	if l.byTTL == nil {
		l.byTTL = map[time.Duration]*sharedLease{}
	}
	maps.DeleteFunc(l.byTTL, func(_ time.Duration, s *sharedLease) bool { return now.After(s.until) })
	l.byTTL[ttl] = &sharedLease{id: lease.LeaseID(r.ID), until: now.Add(share), keys: 1}
	return lease.LeaseID(r.ID), nil
}

func (l *leases) forget(id lease.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.byTTL, func(_ time.Duration, s *sharedLease) bool { return s.id == id })
}

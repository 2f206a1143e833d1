package server

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// Each server has a key under masterLeases that ends in its address, as kube-apiserver's lease endpoint reconciler
// writes it. The key expires masterLeaseTTL after its last renewal. Coracle and kube-apiserver on the same etcd
// therefore list each other.
const (
	masterLeases     = "/registry/masterleases/"
	masterLeaseTTL   = 15 * time.Second
	masterLeaseRenew = 10 * time.Second
	mostServers      = 64
	// leaveTime is the timeout for removing the lease of a stopping server.
	leaveTime = 3 * time.Second
)

type leaseStore interface {
	Get(ctx context.Context, key string) (store.KV, error)
	Range(ctx context.Context, prefix, from string, limit, rev int64) (kvs []store.KV, at, remaining int64, err error)
	Create(ctx context.Context, key string, value []byte, ttl time.Duration) (int64, error)
	Update(ctx context.Context, key string, value []byte, rev int64, ttl time.Duration) (int64, error)
	Delete(ctx context.Context, key string, rev int64) (int64, error)
}

// serverList lists the servers of the cluster. A single server lists only itself and writes no lease.
type serverList struct {
	store         leaseStore
	self          netip.Addr
	alone         func() bool
	endpoints     *kind.Resource // upstream stores a lease as an Endpoints object
	ttl, interval time.Duration

	mu         chan struct{} // a mutex that can be acquired with a context
	serving    bool          // this server serves the API
	company    time.Time     // when the store got a second member
	generation int64
}

func newServerList(s leaseStore, self netip.Addr, alone func() bool, endpoints *kind.Resource) *serverList {
	return &serverList{
		store:     s,
		self:      self,
		alone:     alone,
		ttl:       masterLeaseTTL,
		interval:  masterLeaseRenew,
		mu:        make(chan struct{}, 1),
		endpoints: endpoints,
	}
}

func (l *serverList) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case l.mu <- struct{}{}:
		return func() { <-l.mu }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// renew renews this server's lease if it serves the API. It returns the sorted addresses of all servers, and the
// time until the next renewal, 0 for never. An empty list means that the servers are unknown. For one TTL after
// this server starts or the store gets a second member, the servers in present stay listed, because they may not
// have written their leases yet.
func (l *serverList) renew(ctx context.Context,
	present []netip.Addr) (servers []netip.Addr, next time.Duration, err error) {
	unlock, err := l.lock(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer unlock()
	if l.alone() {
		l.company = time.Time{}
		return []netip.Addr{l.self}, 0, nil
	}
	if l.company.IsZero() {
		l.company = time.Now()
	}
	if l.serving {
		if err := l.write(ctx); err != nil {
			return nil, 0, err
		}
	}
	if servers, err = l.list(ctx); err != nil {
		return nil, 0, err
	}
	if time.Since(l.company) < l.ttl {
		for _, a := range present {
			if a != l.self && !slices.Contains(servers, a) && len(servers) < mostServers {
				servers = append(servers, a)
			}
		}
	}
	slices.SortFunc(servers, netip.Addr.Compare)
	return servers, l.interval, nil
}

func (l *serverList) write(ctx context.Context) error {
	l.generation++
	e := &corev1.Endpoints{
		Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: l.self.String()}}}},
	} //nolint:staticcheck // as above
	e.Generation = l.generation
	value, err := l.endpoints.Encode(e)
	if err != nil {
		return err
	}
	key := masterLeases + l.self.String()
	for {
		had, err := l.store.Get(ctx, key)
		switch {
		case errors.Is(err, store.ErrNotFound):
			_, err = l.store.Create(ctx, key, value, l.ttl)
		case err == nil:
			_, err = l.store.Update(ctx, key, value, had.Revision, l.ttl)
		}
		// Retry if the key expired after it was read, or if another process wrote it.
		if !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrExists) ||
			ctx.Err() != nil {
			return err
		}
	}
}

func (l *serverList) list(ctx context.Context) (servers []netip.Addr, err error) {
	kvs, _, _, err := l.store.Range(ctx, masterLeases, "", mostServers, 0)
	if err != nil {
		return nil, err
	}
	for _, kv := range kvs {
		if a, err := netip.ParseAddr(strings.TrimPrefix(kv.Key, masterLeases)); err == nil && a.Zone() == "" {
			servers = append(servers, a)
		}
	}
	return servers, nil
}

// enter marks this server as serving, so that renew writes its lease.
func (l *serverList) enter(ctx context.Context) error {
	unlock, err := l.lock(ctx)
	if err == nil {
		l.serving = true
		unlock()
	}
	return err
}

// leave removes this server's lease. It reports whether the store has other members; then the API's endpoints must
// be updated.
func (l *serverList) leave(ctx context.Context) (bool, error) {
	unlock, err := l.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	l.serving = false
	if l.alone() {
		return false, nil
	}
	key := masterLeases + l.self.String()
	had, err := l.store.Get(ctx, key)
	if err == nil {
		_, err = l.store.Delete(ctx, key, had.Revision)
	}
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	return true, err
}

// presence is the component that adds this server to the API's endpoints and removes it when it stops. It starts
// after the API server and stops before it.
type presence struct {
	bootstrap *bootstrap
	run.Readiness
}

func (p *presence) Name() string { return "endpoints" }
func (p *presence) Run(ctx context.Context) error {
	b := p.bootstrap
	err := b.servers.enter(ctx)
	if err == nil && !b.servers.alone() {
		err = b.publish(ctx)
	}
	if err != nil && ctx.Err() == nil { // bootstrap's reconciler retries
		b.log.Warn("could not write the endpoints of the API", "error", err)
	}
	p.SetReady()
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	others, err := b.servers.leave(ctx)
	if err == nil && others {
		err = b.publish(ctx)
	}
	if err != nil {
		b.log.Warn("could not remove this server from the endpoints of the API", "error", err)
	}
	return nil
}

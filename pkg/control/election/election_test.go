package election

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
)

// takeover is the maximum time until another process leads: client-go notices a missing renewal and retries with
// jitter, at the latest every 2.2 retry periods.
const takeover = leaseDuration + 5*retryPeriod

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type uncached struct{ ctrl.WithWatch }

func (uncached) Cache() ctrlcache.Cache { return nil }

var _ client.Interface = uncached{}

// link is a server's connection to the cluster. It can be cut.
type link struct {
	down     atomic.Bool
	readOnly bool         // writes fail because the store is full
	writes   atomic.Int64 // writes of Leases
}

func (l *link) full() error {
	if l.readOnly {
		return apierrors.NewTooManyRequests("the store is full", 1)
	}
	return nil
}

func (l *link) client(c ctrl.WithWatch) client.Interface {
	gone := func() error {
		if l.down.Load() {
			return apierrors.NewServiceUnavailable("cut off")
		}
		return nil
	}
	return uncached{interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c ctrl.WithWatch, key ctrl.ObjectKey, obj ctrl.Object, opts ...ctrl.GetOption) error {
			return errors.Join(gone(), c.Get(ctx, key, obj, opts...))
		},
		Create: func(ctx context.Context, c ctrl.WithWatch, obj ctrl.Object, opts ...ctrl.CreateOption) error {
			if _, lease := obj.(*coordinationv1.Lease); lease {
				l.writes.Add(1)
			}
			if err := errors.Join(gone(), l.full()); err != nil {
				return err
			}
			return c.Create(ctx, obj, opts...)
		},
		Update: func(ctx context.Context, c ctrl.WithWatch, obj ctrl.Object, opts ...ctrl.UpdateOption) error {
			if _, lease := obj.(*coordinationv1.Lease); lease {
				l.writes.Add(1)
			}
			if err := errors.Join(gone(), l.full()); err != nil {
				return err
			}
			return c.Update(ctx, obj, opts...)
		},
	})}
}

// cluster holds the Lease and records which server acts.
type cluster struct {
	ctrl.WithWatch
	t      *testing.T
	acting atomic.Int64
	mu     sync.Mutex
	terms  []string
}

func newCluster(t *testing.T, objects ...ctrl.Object) *cluster {
	return &cluster{WithWatch: fake.NewClientBuilder().WithScheme(client.Scheme()).WithObjects(objects...).Build(), t: t}
}

// server takes part in the election until stop is called.
type server struct {
	*Election
	link
	settled chan struct{}
	stop    func() error
	metrics *prometheus.Registry
}

func (c *cluster) server(name string, alone func() bool) *server {
	s := &server{settled: make(chan struct{}), metrics: prometheus.NewRegistry()}
	var err error
	s.Election, err = New(Config{
		Client: s.client(c.WithWatch), Lease: Controllers, Identity: func() string { return name }, Alone: alone,
		Metrics: s.metrics, Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan error, 1)
	settled := sync.OnceFunc(func() { close(s.settled) })
	go func() {
		done <- s.Run(ctx, func(term context.Context) error {
			require.EqualValues(c.t, 1, c.acting.Add(1), "two servers lead at the same time")
			defer c.acting.Add(-1)
			require.NoError(c.t, s.Check())
			c.mu.Lock()
			c.terms = append(c.terms, name)
			c.mu.Unlock()
			settled()
			<-term.Done()
			return nil
		}, settled)
	}()
	s.stop = sync.OnceValue(func() error { cancel(); return <-done })
	c.t.Cleanup(func() { require.NoError(c.t, s.stop()) })
	return s
}

func (c *cluster) led() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.terms)
}

func (c *cluster) lease() *coordinationv1.LeaseSpec {
	var l coordinationv1.Lease
	require.NoError(c.t, c.Get(c.t.Context(), ctrl.ObjectKey{Namespace: metav1.NamespaceSystem, Name: Controllers}, &l))
	return &l.Spec
}

// TestOneLeads: the first server leads, and the second one stands by. The second one takes over at once when the first
// one stops, and after LeaseDuration when it is cut off. The server that is cut off stops acting before that.
func TestOneLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.server("a_coracle-1", nil)
		<-a.settled
		b := c.server("b_coracle-2", nil)
		<-b.settled
		time.Sleep(time.Minute)
		require.True(t, a.Leads())
		require.ErrorIs(t, b.Check(), ErrNotLeading)
		require.EqualValues(t, 15, *c.lease().LeaseDurationSeconds)
		require.Equal(t, 1.0, testutil.ToFloat64(gauge{a.metrics}))
		require.Equal(t, 0.0, testutil.ToFloat64(gauge{b.metrics}))

		require.NoError(t, a.stop())
		time.Sleep(3 * retryPeriod)
		require.True(t, b.Leads(), "a stopping server releases the lease")
		require.EqualValues(t, 1, *c.lease().LeaseTransitions)

		a = c.server("a_coracle-1", nil)
		<-a.settled
		b.down.Store(true)
		cut := time.Now()
		for !a.Leads() {
			time.Sleep(100 * time.Millisecond)
		}
		require.Greater(t, time.Since(cut), leaseDuration-retryPeriod)
		require.Less(t, time.Since(cut), takeover)
		require.ErrorIs(t, b.Check(), ErrNotLeading)
		require.Equal(t, []string{"a_coracle-1", "b_coracle-2", "a_coracle-1"}, c.led())

		b.down.Store(false)
		time.Sleep(time.Minute)
		require.True(t, a.Leads())
		var events corev1.EventList
		require.NoError(t, c.List(t.Context(), &events, ctrl.InNamespace(metav1.NamespaceSystem)))
		var said []string
		for _, e := range events.Items {
			require.Equal(t, "LeaderElection", e.Reason)
			said = append(said, e.Message)
		}
		require.Contains(t, said, "a_coracle-1 became leader")
		require.Contains(t, said, "a_coracle-1 stopped leading")
	})
}

// gauge exposes the only metric of a registry.
type gauge struct{ *prometheus.Registry }

func (g gauge) Describe(chan<- *prometheus.Desc) {}

// TestCheckFailsBeforeTheLeaseEnds: after a suspension, Check fails because of the clock before the components are
// stopped.
func TestCheckFailsBeforeTheLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.server("a_coracle-1", nil)
		<-a.settled
		a.down.Store(true)
		a.renewed(time.Now().Add(-leaseDuration + leaseDuration/marginPart - 1))
		require.True(t, a.Leads())
		require.ErrorIs(t, a.Check(), ErrNotLeading)
	})
}

// TestALoneServerPaysNothing: it leads at once, even after the previous server was killed, and writes the Lease once.
func TestALoneServerPaysNothing(t *testing.T) {
	for name, holder := range map[string]string{
		"fresh":                         "",
		"the same server":               "a_coracle-1",
		"another server, from a backup": "z_coracle-9",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				if holder != "" {
					require.NoError(t, c.Create(t.Context(), lease(holder, aloneSeconds)))
				}
				began := time.Now()
				a := c.server("a_coracle-1", func() bool { return true })
				<-a.settled
				require.Zero(t, time.Since(began))
				require.True(t, a.Leads())
				time.Sleep(time.Hour)
				require.NoError(t, a.stop())
				if holder == "a_coracle-1" {
					require.Zero(t, a.writes.Load())
				} else {
					require.EqualValues(t, 1, a.writes.Load())
				}
				require.Equal(t, "a_coracle-1", *c.lease().HolderIdentity)
				require.EqualValues(t, aloneSeconds, *c.lease().LeaseDurationSeconds)
			})
		})
	}
}

// TestALoneServerNeedsNoWrite: a full store rejects writes until the leader deletes objects.
func TestALoneServerNeedsNoWrite(t *testing.T) {
	for name, holder := range map[string]string{"fresh": "", "another server, from a backup": "z_coracle-9"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				if holder != "" {
					require.NoError(t, c.Create(t.Context(), lease(holder, aloneSeconds)))
				}
				full := &link{}
				e, err := New(Config{
					Client: full.client(c.WithWatch), Lease: Controllers, Identity: func() string { return "a_coracle-1" },
					Alone: func() bool { return true }, Log: slog.New(slog.DiscardHandler),
				})
				require.NoError(t, err)
				full.readOnly = true
				ctx, cancel := context.WithCancel(t.Context())
				leads, done := make(chan struct{}), make(chan error)
				go func() {
					done <- e.Run(ctx, func(term context.Context) error { close(leads); <-term.Done(); return nil }, func() {})
				}()
				<-leads
				time.Sleep(time.Hour)
				require.True(t, e.Leads(), "without interruption")
				require.NoError(t, e.Check())
				cancel()
				require.NoError(t, <-done)
			})
		})
	}
}

// TestALoneServerGetsCompany: the server that was Alone keeps leading and begins to renew. When it dies, the other
// server does not wait for a year.
func TestALoneServerGetsCompany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var members atomic.Int64
		members.Store(1)
		alone := func() bool { return members.Load() == 1 }
		a := c.server("a_coracle-1", alone)
		<-a.settled
		time.Sleep(time.Hour)
		members.Store(2)
		b := c.server("b_coracle-2", alone)
		<-b.settled
		time.Sleep(5 * time.Minute)
		require.Equal(t, []string{"a_coracle-1"}, c.led())
		require.EqualValues(t, 15, *c.lease().LeaseDurationSeconds)
		a.down.Store(true)
		time.Sleep(takeover)
		require.True(t, b.Leads())

		members.Store(1) // a was removed from the cluster
		time.Sleep(2 * retryPeriod)
		require.EqualValues(t, aloneSeconds, *c.lease().LeaseDurationSeconds)
		before := b.writes.Load()
		time.Sleep(time.Hour)
		require.Equal(t, before, b.writes.Load())
		require.True(t, b.Leads())
	})
}

// TestALongLeaseIsNotBelieved: a server leaves such a Lease if it dies just after another server joined.
func TestALongLeaseIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, lease("z_coracle-9", aloneSeconds))
		began := time.Now()
		b := c.server("b_coracle-2", nil)
		<-b.settled
		require.False(t, b.Leads())
		for !b.Leads() {
			time.Sleep(100 * time.Millisecond)
		}
		require.GreaterOrEqual(t, time.Since(began), leaseDuration)
		require.Less(t, time.Since(began), takeover)
	})
}

// TestAnUpstreamLeaderIsRespected, even by a server that is Alone.
func TestAnUpstreamLeaderIsRespected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, lease("master-1_6c5b0e0e-1c1b-4a2e-9f1e-3f1c2a0d7b11", 15))
		a := c.server("a_coracle-1", func() bool { return true })
		<-a.settled
		require.False(t, a.Leads())
		time.Sleep(takeover)
		require.True(t, a.Leads(), "its lease has expired")
	})
}

func TestYield(t *testing.T) {
	for holder, yields := range map[string]bool{"z_coracle-9": true, "master-1_6c5b0e0e": false, "": false} {
		c := newCluster(t, lease(holder, aloneSeconds))
		require.NoError(t, Yield(t.Context(), c, Controllers))
		if yields {
			require.Empty(t, *c.lease().HolderIdentity)
			require.EqualValues(t, 1, *c.lease().LeaseDurationSeconds)
		} else {
			require.Equal(t, holder, *c.lease().HolderIdentity)
		}
	}
	require.NoError(t, Yield(t.Context(), newCluster(t), Controllers), "there is none")
}

// TestWhatHangsKeepsTheLease: components that have not stopped may still write.
func TestWhatHangsKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		e, err := New(Config{
			Client:   uncached{c.WithWatch},
			Lease:    Controllers,
			Identity: func() string { return "a_coracle-1" },
			Log:      slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		hung := &run.HungError{Names: []string{"controllers"}}
		require.ErrorIs(t, e.Run(ctx, func(context.Context) error { cancel(); return hung }, func() {}), hung)
		require.Equal(t, "a_coracle-1", *c.lease().HolderIdentity)
		require.ErrorIs(t, e.Check(), ErrNotLeading, "its writes are rejected")
	})
}

func lease(holder string, seconds int32) *coordinationv1.Lease {
	now := metav1.NowMicro()
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: Controllers},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &holder,
			LeaseDurationSeconds: &seconds,
			RenewTime:            &now,
			AcquireTime:          &now,
		}}
}

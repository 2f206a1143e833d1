package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	chain "github.com/coracle-dev/coracle/pkg/api/admission"
	"github.com/coracle-dev/coracle/pkg/api/local"
	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/controllers"
	"github.com/coracle-dev/coracle/pkg/control/election"
	storedkinds "github.com/coracle-dev/coracle/pkg/engine/kinds"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

// pause blocks one server's writes while it is set, until it ends or their context is done.
type pause struct {
	mu    sync.Mutex
	until chan struct{} // nil unless paused
}

func (p *pause) begin() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	until := make(chan struct{})
	p.until = until
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.until = nil
		close(until)
	}
}

func (p *pause) wait(ctx context.Context) error {
	p.mu.Lock()
	until := p.until
	p.mu.Unlock()
	if until == nil {
		return nil
	}
	select {
	case <-until:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type pausedClient struct {
	ctrl.WithWatch
	cache ctrlcache.Cache
}

func (c pausedClient) Cache() ctrlcache.Cache { return c.cache }

func (p *pause) client(c client.Interface) client.Interface {
	return pausedClient{interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c ctrl.WithWatch, obj ctrl.Object, opts ...ctrl.CreateOption) error {
			if err := p.wait(ctx); err != nil {
				return err
			}
			return c.Create(ctx, obj, opts...)
		},
		Update: func(ctx context.Context, c ctrl.WithWatch, obj ctrl.Object, opts ...ctrl.UpdateOption) error {
			if err := p.wait(ctx); err != nil {
				return err
			}
			return c.Update(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c ctrl.WithWatch, obj ctrl.Object, patch ctrl.Patch,
			opts ...ctrl.PatchOption) error {
			if err := p.wait(ctx); err != nil {
				return err
			}
			return c.Patch(ctx, obj, patch, opts...)
		},
		Delete: func(ctx context.Context, c ctrl.WithWatch, obj ctrl.Object, opts ...ctrl.DeleteOption) error {
			if err := p.wait(ctx); err != nil {
				return err
			}
			return c.Delete(ctx, obj, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c ctrl.Client, sub string, obj ctrl.Object,
			opts ...ctrl.SubResourceUpdateOption) error {
			if err := p.wait(ctx); err != nil {
				return err
			}
			return c.SubResource(sub).Update(ctx, obj, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c ctrl.Client, sub string, obj ctrl.Object, patch ctrl.Patch,
			opts ...ctrl.SubResourcePatchOption) error {
			if err := p.wait(ctx); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
		},
	}), c.Cache()}
}

type pausedStore struct {
	leaseStore
	pause *pause
}

func (s pausedStore) Get(ctx context.Context, key string) (store.KV, error) {
	if err := s.pause.wait(ctx); err != nil {
		return store.KV{}, err
	}
	return s.leaseStore.Get(ctx, key)
}

// acts is a component that fails the test if two servers run it at once.
type acts struct {
	run.Component
	t     *testing.T
	count *atomic.Int64
}

func (a acts) Run(ctx context.Context) error {
	if !a.count.CompareAndSwap(0, 1) {
		a.t.Error("reconcilers run on two servers at the same time")
	}
	defer a.count.Store(0)
	return a.Component.Run(ctx)
}

// oneOfTwo is one of two servers that share a store. It has a registry, a cache, endpoints, and controllers with
// leader election.
type oneOfTwo struct {
	*plane
	paused pause
	led    *led[acts]
	stop   func() error
}

func startOne(t *testing.T, s *store.Store, name, address string, running *atomic.Int64) *oneOfTwo {
	t.Helper()
	kinds := kind.NewCatalog(assembled.Kinds())
	o := &oneOfTwo{
		plane: &plane{
			process: &process{log: slog.New(slog.NewTextHandler(io.Discard, nil)), metrics: newRegistries()}, store: s,
		},
	}
	l := o.plane
	var err error
	l.cache, err = cache.New(cache.Config{Kinds: kinds, Source: s})
	require.NoError(t, err)
	l.registry, err = registry.New(registry.Config{Kinds: kinds, Store: s, Cache: l.cache})
	require.NoError(t, err)
	l.clients = local.New(l.registry, l.cache, kinds)
	require.NoError(t, chain.Install(chain.Plugins{Disable: []string{"ServiceAccount"}}, l.registry, l.clients))
	api := netip.MustParseAddrPort(address)
	l.bootstrap = &bootstrap{
		client: o.paused.client(l.client(user.APIServerUser, user.SystemPrivilegedGroup)), api: api,
		service:  netip.MustParseAddr("10.43.0.1"),
		services: netip.MustParsePrefix("10.43.0.0/16"), repair: l.registry.RepairAllocations,
		log: slog.New(slog.DiscardHandler),
		servers: newServerList(pausedStore{s, &o.paused}, api.Addr(), func() bool {
			return false
		}, kinds.Table().ByGVK(corev1.SchemeGroupVersion.WithKind("Endpoints"))),
	}
	// The store rounds a TTL of one second up to four.
	l.bootstrap.servers.ttl, l.bootstrap.servers.interval = time.Second, 500*time.Millisecond
	c := l.election(election.Controllers)
	c.Client, c.Alone = o.paused.client(c.Client), nil
	c.Identity = func() string { return name + "_coracle-" + address }
	// A running server may get no CPU for seconds.
	c.LeaseDuration, c.RenewDeadline, c.RetryPeriod = 20*time.Second, 10*time.Second, 200*time.Millisecond
	o.led, err = newLed(l, "controllers", c, func(led *led[acts], metrics prometheus.Registerer) (acts, error) {
		controllers, err := controllers.New(controllers.Config{
			ClientFor: func(identity string) client.Interface {
				return o.paused.client(led.checked(l.client(identity, "system:serviceaccounts")))
			},
			Kinds: storedkinds.Stored(kinds), Metrics: metrics, Log: slog.New(slog.DiscardHandler),
		})
		return acts{controllers, t, running}, err
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	last := &last{notify: func(context.Context) {}}
	presence := &presence{bootstrap: l.bootstrap}
	go func() { ended <- run.All(ctx, run.Observer{}, l.cache, l.bootstrap, presence, o.led, last) }()
	o.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { require.NoError(t, o.stop()) })
	select {
	case <-last.Ready():
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	}
	return o
}

func (o *oneOfTwo) until(t *testing.T, list ctrl.ObjectList, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	w, err := o.plane.client(apiServerUser, user.SystemPrivilegedGroup).Watch(ctx, list)
	require.NoError(t, err)
	defer w.Stop()
	for !holds() {
		if _, ok := <-w.ResultChan(); !ok {
			t.Fatal(what)
		}
	}
}

func (o *oneOfTwo) servers(t *testing.T, want ...string) {
	t.Helper()
	admin := o.plane.client(apiServerUser, user.SystemPrivilegedGroup)
	var last []string
	o.until(t, &discoveryv1.EndpointSliceList{}, fmt.Sprintf("the endpoints are not %v", want), func() bool {
		var s discoveryv1.EndpointSlice
		require.NoError(t, admin.Get(t.Context(), ctrl.ObjectKey{Namespace: "default", Name: "kubernetes"}, &s))
		last = nil
		for _, e := range s.Endpoints {
			last = append(last, e.Addresses...)
		}
		return slices.Equal(last, want)
	})
	o.until(t, &corev1.EndpointsList{}, fmt.Sprintf("the old endpoints are not %v", want),
		func() bool { //nolint:staticcheck // old clients read it
			var e corev1.Endpoints //nolint:staticcheck // as above
			require.NoError(t, admin.Get(t.Context(), ctrl.ObjectKey{Namespace: "default", Name: "kubernetes"}, &e))
			var have []string
			for _, a := range e.Subsets[0].Addresses {
				have = append(have, a.IP)
			}
			return slices.Equal(have, want)
		})
}

// TestTwoServersAct runs two servers on one store and pauses, resumes, stops and finally kills one. The controllers
// run on one server at a time and create nothing twice, and the API's endpoints follow.
func TestTwoServersAct(t *testing.T) {
	dir, err := os.MkdirTemp("", "coracle-servers-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	s, err := store.New(store.Config{Dir: dir})
	require.NoError(t, err)
	runtest.Start(t, s)

	var running atomic.Int64
	a := startOne(t, s, "a", "192.0.2.1:6443", &running)
	leads := func(o *oneOfTwo) {
		t.Helper()
		o.until(t, &coordinationv1.LeaseList{}, "the server does not lead", func() bool { return o.led.election.Leads() })
	}
	leads(a)
	b := startOne(t, s, "b", "192.0.2.2:6443", &running)
	b.servers(t, "192.0.2.1", "192.0.2.2")
	_, ok := b.led.leads()
	require.False(t, ok)
	families, err := b.led.Gather()
	require.NoError(t, err)
	require.Empty(t, families, "a server that does not lead has no reconciler metrics")

	// A watch counts all pods ever created.
	admin := b.plane.client(apiServerUser, user.SystemPrivilegedGroup)
	pods, err := admin.Watch(t.Context(), &corev1.PodList{})
	require.NoError(t, err)
	defer pods.Stop()
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "set"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			Template: template,
		}}
	require.NoError(t, admin.Create(t.Context(), set))
	made := 0
	scaleTo := func(o *oneOfTwo, n int) {
		t.Helper()
		c := o.plane.client(apiServerUser, user.SystemPrivilegedGroup)
		patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)
		require.NoError(t, c.Patch(t.Context(), set.DeepCopy(), ctrl.RawPatch("application/merge-patch+json", patch)))
	}
	grown := func(n int) {
		t.Helper()
		deadline := time.After(5 * time.Minute)
		for made < n {
			select {
			case e := <-pods.ResultChan():
				if e.Type == watch.Added {
					made++
				}
			case <-deadline:
				t.Fatalf("%d pods of %d", made, n)
			}
		}
	}
	scaleTo(a, 5)
	grown(5)

	resume := a.paused.begin()
	scaleTo(b, 10) // a would act on it, but is paused
	grown(10)
	require.False(t, a.led.election.Leads())
	leads(b)
	b.servers(t, "192.0.2.2")
	resume()
	b.servers(t, "192.0.2.1", "192.0.2.2")
	scaleTo(a, 15)
	grown(15)

	require.NoError(t, b.stop())
	a.servers(t, "192.0.2.1")
	leads(a)
	admin = a.plane.client(apiServerUser, user.SystemPrivilegedGroup)
	pods, err = admin.Watch(t.Context(), &corev1.PodList{})
	require.NoError(t, err)
	defer pods.Stop()
	for range 15 { // the existing pods
		require.Equal(t, watch.Added, (<-pods.ResultChan()).Type)
	}
	scaleTo(a, 20)
	grown(20)

	b = startOne(t, s, "b", "192.0.2.2:6443", &running)
	b.servers(t, "192.0.2.1", "192.0.2.2")
	a.paused.begin() // never ends: the server is dead
	b.servers(t, "192.0.2.2")
	scaleTo(b, 25)
	var list corev1.PodList
	b.until(t, &corev1.PodList{}, "no pods after the other server died", func() bool {
		require.NoError(t, b.plane.client(apiServerUser, user.SystemPrivilegedGroup).List(t.Context(), &list))
		return len(list.Items) >= 25
	})
	leads(b)
	b.until(t, &appsv1.ReplicaSetList{}, "no status", func() bool {
		var have appsv1.ReplicaSet
		require.NoError(t,
			b.plane.client(apiServerUser, user.SystemPrivilegedGroup).Get(t.Context(), ctrl.ObjectKeyFromObject(set), &have))
		return have.Status.Replicas == 25
	})
	require.NoError(t, b.plane.client(apiServerUser, user.SystemPrivilegedGroup).List(t.Context(), &list))
	require.Len(t, list.Items, 25, "no pod was created twice")
}

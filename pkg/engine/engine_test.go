package engine

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	cc "github.com/coracle-dev/coracle/pkg/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stub is a client over controller-runtime's fake client. The test fills its cache, which may lag.
type stub struct {
	client.WithWatch
	cache *stubCache
}

func (s stub) Cache() ctrlcache.Cache { return s.cache }

type stubCache struct {
	ctrlcache.Cache
	client.Reader
	mu       sync.Mutex
	handlers map[*registration]toolscache.ResourceEventHandler
}

type registration struct{ synced chan struct{} }

func (r *registration) HasSynced() bool                          { return true }
func (r *registration) HasSyncedChecker() toolscache.DoneChecker { return r }
func (r *registration) Name() string                             { return "stub" }
func (r *registration) Done() <-chan struct{}                    { return r.synced }

func (c *stubCache) Get(ctx context.Context, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.Reader.Get(ctx, k, o, opts...)
}
func (c *stubCache) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	return c.Reader.List(ctx, l, opts...)
}
func (c *stubCache) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return nil
}
func (c *stubCache) GetInformer(context.Context, client.Object,
	...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	return stubInformer{c: c}, nil
}

type stubInformer struct {
	ctrlcache.Informer
	c *stubCache
}

func (i stubInformer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration,
	error) {
	i.c.mu.Lock()
	defer i.c.mu.Unlock()
	r := &registration{make(chan struct{})}
	close(r.synced)
	i.c.handlers[r] = h
	return r, nil
}

func (i stubInformer) RemoveEventHandler(r toolscache.ResourceEventHandlerRegistration) error {
	i.c.mu.Lock()
	defer i.c.mu.Unlock()
	delete(i.c.handlers, r.(*registration))
	return nil
}

func (c *stubCache) added(o client.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.handlers {
		h.OnAdd(o, false)
	}
}

func newStub(objs ...client.Object) stub {
	s := runtime.NewScheme()
	_ = clientgoscheme.AddToScheme(s)
	f := fake.NewClientBuilder().WithScheme(s).WithObjects(objs...).WithStatusSubresource(&corev1.Pod{}).Build()
	return stub{f, &stubCache{Reader: f, handlers: map[*registration]toolscache.ResourceEventHandler{}}}
}

func aPod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "u"}}
}

func TestGuardHoldsToTheDeclaration(t *testing.T) {
	ctx := context.Background()
	merge := func(body string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(body)) }
	for name, c := range map[string]struct {
		write func(client.Client, *corev1.Pod) error
		part  Part
	}{
		"create": {func(c client.Client, _ *corev1.Pod) error { p := aPod(); p.Name = "q"; return c.Create(ctx, p) }, Create},
		"delete": {func(c client.Client, p *corev1.Pod) error { return c.Delete(ctx, p) }, Delete},
		"labels": {func(c client.Client, p *corev1.Pod) error {
			p.Labels = map[string]string{"a": "b"}
			return c.Update(ctx, p)
		}, Metadata},
		"finalizers": {
			func(c client.Client, p *corev1.Pod) error { p.Finalizers = []string{"x/y"}; return c.Update(ctx, p) }, Finalizers,
		},
		"spec": {func(c client.Client, p *corev1.Pod) error { p.Spec.NodeName = "n"; return c.Update(ctx, p) }, Spec},
		"status": {func(c client.Client, p *corev1.Pod) error {
			p.Status.Phase = "Running"
			return c.Status().Update(ctx, p)
		}, Status},
		"patch label": {func(c client.Client, p *corev1.Pod) error {
			return c.Patch(ctx, p, merge(`{"metadata":{"labels":{"a":"b"}}}`))
		}, Metadata},
		"patch spec": {
			func(c client.Client, p *corev1.Pod) error { return c.Patch(ctx, p, merge(`{"spec":{"nodeName":"n"}}`)) }, Spec,
		},
		"patch fin": {func(c client.Client, p *corev1.Pod) error {
			return c.Patch(ctx, p, merge(`{"metadata":{"uid":"u","finalizers":["x/y"]}}`))
		}, Finalizers},
	} {
		t.Run(name, func(t *testing.T) {
			for _, p := range []Part{Create, Delete, Spec, Metadata, Finalizers, Status} {
				s := newStub(aPod())
				d, err := declare(&Reconciler{Name: "r", Writes: []Write{{Object: &corev1.Pod{}, Parts: []Part{p}}}}, s.Scheme())
				require.NoError(t, err)
				pod := &corev1.Pod{}
				require.NoError(t, s.Get(ctx, client.ObjectKey{Namespace: "n", Name: "p"}, pod))
				err = c.write(guard{s, d, s.cache}, pod)
				if p == c.part {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, "reconciler r writes "+string(c.part)+" of Pod, but does not declare it")
				}
			}
		})
	}
	s := newStub(aPod())
	deletes, err := declare(&Reconciler{Name: "r", Writes: []Write{{Object: &corev1.Pod{}, Parts: []Part{Delete}}}},
		s.Scheme())
	require.NoError(t, err)
	require.ErrorContains(t, guard{s, deletes, s.cache}.Delete(ctx, aPod(), cc.WithoutFinalizer("x/y")),
		"reconciler r writes finalizers of Pod")
	d, err := declare(&Reconciler{Name: "r", Reads: []client.Object{&corev1.Node{}}}, s.Scheme())
	require.NoError(t, err)
	require.ErrorContains(t, reader{s, d}.List(ctx, &corev1.PodList{}), "reads Pod, but does not declare it")
	require.NoError(t, reader{s, d}.List(ctx, &corev1.NodeList{}))
}

// TestACrashIsTheReconcilersOwn checks that a panic in one reconciler's watch restarts it after a pause, that the
// other one keeps running, and that nothing is left at the end.
func TestACrashIsTheReconcilersOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(aPod())
		ctx, cancel := context.WithCancel(t.Context())
		var starts, good atomic.Int32
		sound := &Reconciler{Name: "sound", Watches: []Watch{{Object: &corev1.Pod{}}}, New: func(Env) Func {
			return func(context.Context, Request) (Result, error) { good.Add(1); return Result{}, nil }
		}}
		crashing := &Reconciler{
			Name: "crashing", Watches: []Watch{{Object: &corev1.Pod{}, Map: func(context.Context, Env, client.Object) []Request {
				panic("no")
			}}}, New: func(Env) Func {
				starts.Add(1)
				return func(context.Context, Request) (Result, error) { return Result{}, nil }
			},
		}
		readied := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, Config{ClientFor: func(string) cc.Interface { return s }, Log: slog.New(slog.DiscardHandler)},
				[]*Reconciler{sound, crashing}, func() { close(readied) })
		}()
		<-readied
		for n := int32(1); n <= 3; n++ {
			synctest.Wait()
			require.Equal(t, n, starts.Load())
			s.cache.added(aPod())
			synctest.Wait()
			require.Equal(t, n, good.Load())
			time.Sleep(crashFirst << (n - 1))
		}
		cancel()
		require.NoError(t, <-done)
		require.Empty(t, s.cache.handlers, "handlers are taken back")
	})
}

// TestWritesAreSeenBeforeTheNextCall checks that a request is delayed until a lagging cache shows its writes.
func TestWritesAreSeenBeforeTheNextCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, cache := newStub(), newStub()
		d, err := declare(&Reconciler{
			Name:   "r",
			Reads:  []client.Object{&corev1.Pod{}},
			Writes: []Write{{Object: &corev1.Pod{}, Parts: []Part{Create}}},
		}, server.Scheme())
		require.NoError(t, err)
		calls := 0
		g := guard{server, d, cache}
		f := journaled(reader{cache, d}, time.Now, func(ctx context.Context, _ Request) (Result, error) {
			if calls++; calls == 1 {
				return Result{}, g.Create(ctx, aPod())
			}
			return Result{}, nil
		})
		res, err := f(t.Context(), Request{})
		require.NoError(t, err)
		require.Equal(t, patience, res.RequeueAfter)
		time.Sleep(time.Second)
		res, err = f(t.Context(), Request{})
		require.NoError(t, err)
		require.Equal(t, 1, calls, "put off")
		require.Equal(t, patience-time.Second, res.RequeueAfter)
		require.NoError(t, cache.Create(t.Context(), aPod()))
		_, err = f(t.Context(), Request{})
		require.NoError(t, err)
		require.Equal(t, 2, calls)
	})
}

// TestAnUpdatedObjectMayBeGone checks that a request does not wait for the cache to show an update of an object that
// was deleted after it.
func TestAnUpdatedObjectMayBeGone(t *testing.T) {
	s := newStub(aPod())
	d, err := declare(&Reconciler{
		Name:   "r",
		Reads:  []client.Object{&corev1.Pod{}},
		Writes: []Write{{Object: &corev1.Pod{}, Parts: []Part{Finalizers, Delete}}},
	}, s.Scheme())
	require.NoError(t, err)
	g := guard{s, d, s}
	res, err := journaled(reader{s, d}, time.Now, func(ctx context.Context, _ Request) (Result, error) {
		if err := g.Patch(ctx, aPod(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
			return Result{}, err
		}
		return Result{}, g.Delete(ctx, aPod())
	})(t.Context(), Request{})
	require.NoError(t, err)
	require.Zero(t, res.RequeueAfter)
}

func TestQueueDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[Request](time.Millisecond, time.Second),
			newMetrics(nil).of("test", 1))
		r := RequestFor("n", "a")
		q.AddAfter(r, time.Minute)
		q.AddAfter(r, time.Second) // the earlier wins
		q.AddAfter(r, time.Hour)
		began := time.Now()
		got, _ := q.Get()
		require.Equal(t, r, got)
		require.Equal(t, time.Second, time.Since(began))
		q.Done(r)
		q.AddAfter(RequestFor("n", "b"), time.Minute)
		q.ShutDown()
		q.AddAfter(RequestFor("n", "c"), time.Minute)
		_, down := q.Get()
		require.True(t, down)
	})
}

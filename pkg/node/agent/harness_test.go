package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	fakeruntime "github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(lifeEnv); text != "" {
		var l life
		err := json.Unmarshal([]byte(text), &l)
		if err == nil {
			err = l.live()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the agent's tests mount a tmpfs: run them as root")
		os.Exit(1)
	}
	// spdystream keeps a closed connection until its peer, which the test has closed too, is done.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"))
}

// cluster is an in-memory API that, unlike controller-runtime's fake, deletes a pod in two steps.
type cluster struct {
	ctrl.WithWatch
	ctx context.Context

	created func(ctrl.Object) // called with each created object before Create returns

	mu        sync.Mutex
	informers map[string]toolscache.SharedIndexInformer
	running   sync.WaitGroup // counts the informers
}

const hold = "test/hold"

func newCluster(ctx context.Context) *cluster {
	c := &cluster{ctx: ctx, informers: map[string]toolscache.SharedIndexInformer{}}
	c.WithWatch = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).
		WithStatusSubresource(&corev1.Pod{}, &corev1.Node{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, w ctrl.WithWatch, obj ctrl.Object, opts ...ctrl.CreateOption) error {
				err := w.Create(ctx, obj, opts...)
				if err == nil && c.created != nil {
					c.created(obj)
				}
				return err
			},
			Delete: func(ctx context.Context, w ctrl.WithWatch, obj ctrl.Object, opts ...ctrl.DeleteOption) error {
				o := ctrl.DeleteOptions{}
				o.ApplyOptions(opts)
				p, ok := obj.(*corev1.Pod)
				for ok && o.GracePeriodSeconds != nil && *o.GracePeriodSeconds == 0 {
					if err := w.Get(ctx, ctrl.ObjectKeyFromObject(p), p); err != nil {
						return err
					}
					p.Finalizers = nil
					if p.DeletionTimestamp == nil {
						break
					}
					// Retry: a deletion must not fail because of concurrent writes.
					if err := w.Update(ctx, p); !apierrors.IsConflict(err) {
						return err
					}
				}
				return w.Delete(ctx, obj)
			},
			SubResourceCreate: func(_ context.Context, _ ctrl.Client, sub string, _ ctrl.Object, r ctrl.Object,
				_ ...ctrl.SubResourceCreateOption) error {
				if t, ok := r.(*authv1.TokenRequest); ok && sub == "token" {
					t.Status = authv1.TokenRequestStatus{
						Token: "token", ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
					}
				}
				return nil
			},
		}).Build()
	return c
}

// IsWatchListSemanticsUnSupported makes reflectors list first.
func (c *cluster) IsWatchListSemanticsUnSupported() bool { return true }

func (c *cluster) Cache() ctrlcache.Cache { return clusterCache{c} }

type clusterCache struct{ *cluster }

func (c clusterCache) GetInformer(_ context.Context, obj ctrl.Object,
	_ ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	gvk, err := apiutil.GVKForObject(obj, c.Scheme())
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.informers[gvk.Kind]; i != nil {
		return i, nil
	}
	list := func() ctrl.ObjectList {
		gvk.Kind += "List"
		o, err := c.Scheme().New(gvk)
		gvk.Kind = gvk.Kind[:len(gvk.Kind)-4]
		if err != nil {
			panic(err)
		}
		return o.(ctrl.ObjectList)
	}
	// The fake's watch starts when it is opened, whatever the revision. Open it before the list, to miss no change.
	opened := make(chan watch.Interface, 1)
	i := toolscache.NewSharedIndexInformer(toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListFunc: func(metav1.ListOptions) (k8sruntime.Object, error) {
			w, err := c.Watch(c.ctx, list())
			if err != nil {
				return nil, err
			}
			l := list()
			if err := c.List(c.ctx, l); err != nil {
				w.Stop()
				return nil, err
			}
			opened <- w
			return l, nil
		},
		WatchFunc: func(metav1.ListOptions) (watch.Interface, error) { return <-opened, nil },
	}, c), obj, 0, toolscache.Indexers{})
	c.informers[gvk.Kind] = i
	c.running.Go(func() { i.Run(c.ctx.Done()) })
	return i, nil
}
func (c clusterCache) GetInformerForKind(context.Context, schema.GroupVersionKind,
	...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	panic("not used")
}
func (c clusterCache) RemoveInformer(context.Context, ctrl.Object) error { return nil }
func (c clusterCache) Start(context.Context) error                       { return nil }
func (c clusterCache) WaitForCacheSync(context.Context) bool             { return true }
func (c clusterCache) IndexField(context.Context, ctrl.Object, string, ctrl.IndexerFunc) error {
	return nil
}

// fakeNetwork assigns addresses.
type fakeNetwork struct {
	mu        sync.Mutex
	sandboxes map[string]network.Sandbox
	fail      error
	panics    string // the name of a pod whose Setup panics
	next      int
}

func (n *fakeNetwork) Setup(_ context.Context, p network.Pod) (network.Sandbox, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail != nil {
		return network.Sandbox{}, n.fail
	}
	if n.panics != "" && n.panics == p.Name {
		panic("injected")
	}
	s, ok := n.sandboxes[p.UID]
	if !ok {
		n.next++
		s = network.Sandbox{UID: p.UID, IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(n.next)})}
		n.sandboxes[p.UID] = s
	}
	return s, nil
}
func (n *fakeNetwork) Teardown(_ context.Context, uid string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.sandboxes, uid)
	return nil
}
func (n *fakeNetwork) List(context.Context) ([]network.Sandbox, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []network.Sandbox
	for _, s := range n.sandboxes {
		out = append(out, s)
	}
	return out, nil
}
func (n *fakeNetwork) Enter(_ context.Context, _ string, f func() error) error { return f() }
func (n *fakeNetwork) Traffic(context.Context) (map[string]network.Traffic, []network.Traffic, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	pods := map[string]network.Traffic{}
	for uid := range n.sandboxes {
		pods[uid] = network.Traffic{Interface: "eth0", Received: network.Count{Bytes: 3}, Sent: network.Count{Errors: 4}}
	}
	return pods, []network.Traffic{{Interface: "lan", Received: network.Count{Bytes: 5}}}, nil
}
func (n *fakeNetwork) Routes(context.Context, map[netip.Prefix]netip.Addr) error {
	return nil
}

// eventList records events as "reason: message".
type eventList struct {
	mu     sync.Mutex
	all    []string
	panics string // the reason of events that panic
	tried  int    // number of events that panicked
}

func (e *eventList) About(_ corev1.ObjectReference, _, reason, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.panics != "" && e.panics == reason {
		e.tried++
		panic("injected")
	}
	if len(args) > 0 {
		format = fmt.Sprintf(format, args...)
	}
	e.all = append(e.all, reason+": "+format)
}

func (e *eventList) list() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.all...)
}

// bench is one node in a synctest bubble.
type bench struct {
	*testing.T
	ctx     context.Context
	cluster *cluster
	runtime *fakeruntime.Runtime
	network *fakeNetwork
	events  *eventList
	dir     string
	machine eviction.Machine // nil means no pressure
	// onPodCIDR, if not nil, makes pods wait for the node's podCIDR.
	onPodCIDR func(context.Context, netip.Prefix) error
	// logind, if not nil, is the machine's logind, and periods are the pods' grace periods during a shutdown.
	logind  *logind
	periods []config.ShutdownPeriod
	stop    func()
	agent   *Agent // the running agent
}

// node runs f against an agent in fake time.
func node(t *testing.T, rc fakeruntime.Config, f func(b *bench)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b := &bench{T: t, ctx: ctx, cluster: newCluster(ctx), runtime: fakeruntime.New(rc), dir: dir,
			network: &fakeNetwork{sandboxes: map[string]network.Sandbox{}}, events: &eventList{}}
		b.start()
		defer func() {
			b.stop()
			for _, c := range b.containers() {
				require.NoError(t, b.runtime.Remove(context.Background(), c.ID))
			}
			cancel()
			synctest.Wait()
			require.NoError(t, Reset(filepath.Join(dir, "data"), filepath.Join(dir, "run")))
		}()
		f(b)
	})
}

// start runs an agent like a new process.
func (b *bench) start() {
	c := Config{
		Environment: pod.Environment{
			Client:   b.cluster,
			Runtime:  b.runtime,
			Network:  b.network,
			NodeName: "node",
			DataDir:  filepath.Join(b.dir, "data"),
			RunDir:   filepath.Join(b.dir, "run"),
			LogDir:   filepath.Join(b.dir, "log"),
			Recorder: b.events,
		},
		NodeIP:    netip.MustParseAddr("192.0.2.1"),
		Machine:   b.machine,
		OnPodCIDR: b.onPodCIDR,
		Shutdown:  b.periods,
	}
	if b.logind != nil {
		c.Logind = b.logind.connect
	}
	a, err := New(c)
	require.NoError(b, err)
	b.agent = a
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	select {
	case <-a.Ready():
	case err := <-done:
		require.NoError(b, err)
	case <-time.After(time.Minute):
		b.Fatal("the agent did not become ready")
	}
	b.stop = func() {
		cancel()
		require.NoError(b, <-done)
	}
}

func (b *bench) containers() []runtime.Container {
	l, err := b.runtime.List(context.Background())
	require.NoError(b, err)
	return l
}

// settle waits until the bubble is idle.
func (b *bench) settle() { synctest.Wait() }

func (b *bench) pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func (b *bench) create(p *corev1.Pod) *corev1.Pod {
	p.Namespace, p.Finalizers = "default", []string{hold}
	p.UID = types.UID("00000000-0000-0000-0000-" + fmt.Sprintf("%012x", []byte(p.Name)[:min(6, len(p.Name))]))
	p.Spec.NodeName = "node"
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			list[i].ImagePullPolicy = corev1.PullIfNotPresent
			if list[i].Image == "" {
				list[i].Image = "busybox"
			}
		}
	}
	require.NoError(b, b.cluster.Create(b.ctx, p))
	b.settle()
	return b.pod(p.Name)
}

func (b *bench) pod(name string) *corev1.Pod {
	p := &corev1.Pod{}
	require.NoError(b, b.cluster.Get(b.ctx, types.NamespacedName{Namespace: "default", Name: name}, p))
	return p
}

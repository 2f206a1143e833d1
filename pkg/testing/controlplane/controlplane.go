// Package controlplane provides tests with a control plane: a registry, all reconcilers including the systems', the
// scheduler, and an agent that simulates running pods.
//
// Its invariant: everything that it starts has ended when the test ends.
package controlplane

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/controllers"
	"github.com/coracle-dev/coracle/pkg/control/controllers/certificates"
	"github.com/coracle-dev/coracle/pkg/control/controllers/loadbalancer"
	"github.com/coracle-dev/coracle/pkg/control/controllers/roles"
	"github.com/coracle-dev/coracle/pkg/control/controllers/rootca"
	"github.com/coracle-dev/coracle/pkg/control/controllers/tokensecret"
	"github.com/coracle-dev/coracle/pkg/control/scheduler"
	"github.com/coracle-dev/coracle/pkg/control/scheduler/allocation"
	"github.com/coracle-dev/coracle/pkg/engine/kinds"
	"github.com/coracle-dev/coracle/pkg/systems/system"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

// Cluster is a real registry with the reconcilers and the scheduler, and a fake agent that makes bound pods run and
// removes deleted ones.
type Cluster struct {
	T testing.TB
	client.Interface
	Ctx    context.Context
	Engine *registrytest.Engine
	RootCA *rootca.Bundle
	// REST returns a client configuration for a user of the API server; nil without HTTP.
	REST func(name string, groups ...string) *rest.Config
}

// Options configure Start.
type Options struct {
	Agent bool
	Log   slog.Level
	// HTTP gives each reconciler and the scheduler its own HTTP client with only the rights of its bootstrap role.
	HTTP    bool
	CIDR    string // the pod range; empty means 10.42.0.0/16
	Signers map[string]certificates.Signer
	RootCA  []byte // nil: no certificate
	Sign    tokensecret.Sign
	Bare    bool // without reconcilers and scheduler
	// Client, if not nil, wraps the client of each reconciler. Metrics, if not nil, registers the reconcilers' metrics.
	Client  func(name string, c client.Interface) client.Interface
	Metrics prometheus.Registerer
	Balance *loadbalancer.Config
	// Scheduler changes the scheduler's configuration.
	Scheduler func(*scheduler.Config)
}

// Start starts a control plane for a test.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	e := registrytest.Start(t, registrytest.Options{Kinds: assembled.Kinds()})
	as := e.As
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: o.Log}))
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c := &Cluster{
		T:         t,
		Interface: as("admin"),
		Ctx:       ctx,
		Engine:    e,
		RootCA:    rootca.NewBundle([]byte(cmp.Or(string(o.RootCA), "pem"))),
	}
	if o.HTTP {
		as = c.serve()
	}
	clientFor := as
	if o.Client != nil {
		clientFor = func(name string) client.Interface { return o.Client(name, as(name)) }
	}
	controllers, err := controllers.New(controllers.Config{
		More:      assembled.Systems().Reconcilers(system.Controllers{ClientFor: clientFor}),
		ClientFor: clientFor, Metrics: o.Metrics, Kinds: kinds.Stored(e.Kinds), RootCA: c.RootCA, SignToken: o.Sign,
		Signers: o.Signers, QuotaUsage: e.Registry.QuotaUsage,
		ClusterCIDR: netip.MustParsePrefix(cmp.Or(o.CIDR, "10.42.0.0/16")), Log: log,
		LoadBalancer: o.Balance, NodePatience: time.Hour, // the nodes send no heartbeats
	})
	require.NoError(t, err)
	config := scheduler.Config{Client: as(scheduler.Identity), Devices: allocation.New(), Log: log}
	if o.Scheduler != nil {
		o.Scheduler(&config)
	}
	sched, err := scheduler.New(config)
	require.NoError(t, err)
	parts := []run.Component{controllers, sched}
	if o.Bare {
		parts = nil
	}
	last := &ready{ch: make(chan struct{}), run: func(ctx context.Context) error {
		if o.Agent {
			return c.agent(ctx)
		}
		<-ctx.Done()
		return nil
	}}
	above, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- run.All(above, run.Observer{}, append(parts, last)...) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	select {
	case <-last.ch:
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	}
	for _, ns := range []string{"default", "kube-system", "kube-node-lease"} {
		require.NoError(t,
			ctrl.IgnoreAlreadyExists(c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})))
	}
	return c
}

// serve starts an API server on loopback and returns a function that makes clients for it.
func (c *Cluster) serve() func(string) client.Interface {
	t := c.T
	keys, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	source, err := keys.Server.NewSource(pki.Leaf{Name: "server", Hosts: []string{"127.0.0.1"}})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv, err := apiserver.New(apiserver.Config{
		Registry: c.Engine.Registry, Cache: c.Engine.Cache, Kinds: c.Engine.Kinds, Listener: l,
		Logger: slog.New(slog.DiscardHandler),
		TLS:    &tls.Config{GetCertificate: source.Server, ClientCAs: keys.Client.Pool()}, Version: version.Info(),
	})
	require.NoError(t, err)
	c.Run(srv)
	require.NoError(t, roles.Ensure(c.Ctx, c.Interface, assembled.Roles()))
	c.REST = func(name string, groups ...string) *rest.Config {
		cert, key, err := keys.Client.Issue(pki.Leaf{Name: name, Groups: groups})
		require.NoError(t, err)
		return &rest.Config{
			Host:            "https://" + l.Addr().String(),
			TLSClientConfig: rest.TLSClientConfig{CAData: keys.Server.Bundle(), CertData: cert, KeyData: key},
		}
	}
	dial := func(name string) *client.Client {
		cl, err := client.New(client.Config{REST: c.REST(name)})
		require.NoError(t, err)
		return cl
	}
	readers := map[string]client.Interface{}
	for _, name := range []string{user.KubeControllerManager, scheduler.Identity} {
		cl := dial(name)
		c.Run(cl)
		readers[name] = cl
	}
	return func(name string) client.Interface {
		if name == scheduler.Identity {
			return readers[name]
		}
		// As upstream, all components read as the controller manager through one cache, and each writes as itself.
		return split{dial(name), readers[user.KubeControllerManager].Cache()}
	}
}

// split writes with one identity and reads with another.
type split struct {
	client.Interface
	cache ctrlcache.Cache
}

func (s split) Cache() ctrlcache.Cache { return s.cache }

// Run runs a component until the test ends.
func (c *Cluster) Run(p run.Component) {
	ctx, cancel := context.WithCancel(c.Ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	c.T.Cleanup(func() { cancel(); require.NoError(c.T, <-ended) })
	select {
	case <-p.Ready():
	case err := <-ended:
		ended <- err
		c.T.Fatal(err)
	}
}

type ready struct {
	ch  chan struct{}
	run func(context.Context) error
}

func (r *ready) Name() string           { return "agent" }
func (r *ready) Ready() <-chan struct{} { return r.ch }
func (r *ready) Run(ctx context.Context) error {
	close(r.ch)
	return r.run(ctx)
}

// agent acts for all nodes: it reports a bound pod as Running and Ready, and deletes a terminating one. Pods with
// the label exit end with that exit code; pods with the label stuck are ignored.
func (c *Cluster) agent(ctx context.Context) error {
	w, err := c.Watch(ctx, &corev1.PodList{})
	if err != nil && ctx.Err() == nil {
		return err
	}
	if err != nil {
		return nil //nolint:nilerr // the test ends, and had ended the watch before this saw that
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-w.ResultChan():
			if !ok { // the watch was closed because it fell behind
				return c.agent(ctx)
			}
			p, ok := e.Object.(*corev1.Pod)
			if !ok || e.Type == "DELETED" || p.Spec.NodeName == "" || p.Labels["stuck"] != "" {
				continue
			}
			if p.DeletionTimestamp != nil {
				_ = c.Delete(ctx, p, ctrl.GracePeriodSeconds(0))
				continue
			}
			if p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodSucceeded ||
				p.Status.Phase == corev1.PodFailed {
				continue
			}
			next := p.DeepCopy()
			now := metav1.Now()
			next.Status.Phase, next.Status.StartTime = corev1.PodRunning, &now
			next.Status.PodIP, next.Status.PodIPs = "10.42.0.5", []corev1.PodIP{{IP: "10.42.0.5"}}
			next.Status.Conditions = append(next.Status.Conditions, corev1.PodCondition{
				Type:               corev1.PodReady,
				Status:             corev1.ConditionTrue,
				LastTransitionTime: now,
			})
			state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
			if len(p.Spec.Containers[0].Args) == 2 && p.Spec.Containers[0].Args[0] == "exit" {
				code := int32(p.Spec.Containers[0].Args[1][0] - '0')
				state = corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{ExitCode: code, StartedAt: now, FinishedAt: now, Reason: "Error"},
				}
				next.Status.Phase = corev1.PodSucceeded
				if code != 0 {
					next.Status.Phase = corev1.PodFailed
				}
			}
			next.Status.ContainerStatuses = []corev1.ContainerStatus{
				{Name: p.Spec.Containers[0].Name, State: state, ContainerID: "test://1", Image: "x", ImageID: "x"},
			}
			if err := c.Status().Update(ctx, next); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) &&
				ctx.Err() == nil {
				c.T.Error(err)
			}
		}
	}
}

// Make creates objects, and fails the test on an error.
func (c *Cluster) Make(objs ...ctrl.Object) {
	c.T.Helper()
	for _, o := range objs {
		require.NoError(c.T, c.Create(c.Ctx, o))
	}
}

// Holder is a Cluster, or a test's type that embeds it.
type Holder interface{ held() *Cluster }

func (c *Cluster) held() *Cluster { return c }

// Change patches an object as another field manager.
func (c *Cluster) Change(o ctrl.Object, name, text string) {
	c.T.Helper()
	o.SetName(name)
	require.NoError(c.T, c.Patch(c.Ctx, o, ctrl.RawPatch(types.MergePatchType, []byte(text)), ctrl.FieldOwner("somebody")))
}

// Patience is the timeout for a change that should come at once.
const Patience = 5 * time.Minute

// Until waits until ok returns true for an object of the list's kind, and returns the object. An empty name means
// any object. It checks at each event of the kind.
func Until[T ctrl.Object](h Holder, list ctrl.ObjectList, namespace, name string, ok func(T) bool) T {
	c := h.held()
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.Ctx, Patience)
	defer cancel()
	w, err := c.Watch(ctx, list, ctrl.InNamespace(namespace))
	require.NoError(c.T, err)
	defer func() { w.Stop() }()
	var last T
	for {
		select {
		case <-ctx.Done():
			require.FailNow(c.T, "it did not come so far", "%s/%s: last seen %+v", namespace, name, last)
		case e, open := <-w.ResultChan():
			if !open && ctx.Err() == nil { // the watch was closed because it fell behind
				w, err = c.Watch(ctx, list, ctrl.InNamespace(namespace))
				require.NoError(c.T, err)
			}
			o, is := e.Object.(T)
			if !is || name != "" && o.GetName() != name {
				continue
			}
			last = o
			if e.Type != "DELETED" && ok(o) {
				return o
			}
		}
	}
}

// Edit changes an object and repeats that on a conflict. It returns the stored object.
func Edit[T ctrl.Object](h Holder, o T, change func(T)) T {
	c := h.held()
	c.T.Helper()
	for {
		require.NoError(c.T, c.Get(c.Ctx, ctrl.ObjectKeyFromObject(o), o))
		next := o.DeepCopyObject().(T)
		change(next)
		if err := c.Update(c.Ctx, next); !apierrors.IsConflict(err) {
			require.NoError(c.T, err)
			return next
		}
	}
}

// Gone waits until an object no longer exists.
func (c *Cluster) Gone(o ctrl.Object) {
	c.T.Helper()
	into := o.DeepCopyObject().(ctrl.Object) // o may be shared with the cache
	require.Eventually(c.T, func() bool {
		return apierrors.IsNotFound(c.Get(c.Ctx, ctrl.ObjectKeyFromObject(o), into))
	}, Patience, 2*time.Millisecond)
}

func (c *Cluster) Node(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	n.Status.Capacity = n.Status.Allocatable
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	c.Make(n)
	return n
}

package controllers_test

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
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// cluster is a real registry with the reconcilers and the scheduler, and an agent of the test's own
// that makes bound pods run and lets deleted ones go.
type cluster struct {
	t testing.TB
	client.Interface
	ctx    context.Context
	engine *registrytest.Engine
	rootCA *rootca.Bundle
	// rest returns the configuration with which a user reaches the API server, if there is one.
	rest func(name string, groups ...string) *rest.Config
}

type options struct {
	agent bool
	log   slog.Level
	// http lets each reconciler, and the scheduler, reach the cluster through a client of its own over HTTP, with
	// no more rights than its bootstrap role gives it.
	http    bool
	cidr    string // of the pods; empty is 10.42.0.0/16
	signers map[string]certificates.Signer
	rootCA  []byte // nil is no certificate
	sign    tokensecret.Sign
	bare    bool // without reconcilers and scheduler
	// writes, if not nil, counts what reconcilers write; metrics, if not nil, has theirs.
	writes  *writes
	metrics prometheus.Registerer
	balance *loadbalancer.Config
	// scheduler changes the scheduler's configuration.
	scheduler func(*scheduler.Config)
}

func start(t testing.TB, o options) *cluster {
	t.Helper()
	e := registrytest.Start(t, registrytest.Options{Kinds: assembled.Kinds()})
	as := e.As
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: o.log}))
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c := &cluster{
		t:         t,
		Interface: as("admin"),
		ctx:       ctx,
		engine:    e,
		rootCA:    rootca.NewBundle([]byte(cmp.Or(string(o.rootCA), "pem"))),
	}
	if o.http {
		as = c.serve()
	}
	clientFor := as
	if o.writes != nil {
		clientFor = func(name string) client.Interface { return o.writes.through(name, as(name)) }
	}
	controllers, err := controllers.New(controllers.Config{
		More:      assembled.Systems().Reconcilers(system.Controllers{ClientFor: clientFor}),
		ClientFor: clientFor, Metrics: o.metrics, Kinds: kinds.Stored(e.Kinds), RootCA: c.rootCA, SignToken: o.sign,
		Signers: o.signers, QuotaUsage: e.Registry.QuotaUsage,
		ClusterCIDR: netip.MustParsePrefix(cmp.Or(o.cidr, "10.42.0.0/16")), Log: log,
		LoadBalancer: o.balance, NodePatience: time.Hour, // the nodes send no heartbeats
	})
	require.NoError(t, err)
	config := scheduler.Config{Client: as(scheduler.Identity), Devices: allocation.New(), Log: log}
	if o.scheduler != nil {
		o.scheduler(&config)
	}
	sched, err := scheduler.New(config)
	require.NoError(t, err)
	parts := []run.Component{controllers, sched}
	if o.bare {
		parts = nil
	}
	last := &ready{ch: make(chan struct{}), run: func(ctx context.Context) error {
		if o.agent {
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

// serve starts an API server on loopback and gives clients of it.
func (c *cluster) serve() func(string) client.Interface {
	t := c.t
	keys, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	source, err := keys.Server.NewSource(pki.Leaf{Name: "server", Hosts: []string{"127.0.0.1"}})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv, err := apiserver.New(apiserver.Config{
		Registry: c.engine.Registry, Cache: c.engine.Cache, Kinds: c.engine.Kinds, Listener: l,
		Logger: slog.New(slog.DiscardHandler),
		TLS:    &tls.Config{GetCertificate: source.Server, ClientCAs: keys.Client.Pool()}, Version: version.Info(),
	})
	require.NoError(t, err)
	c.run(srv)
	require.NoError(t, roles.Ensure(c.ctx, c.Interface, assembled.Roles()))
	c.rest = func(name string, groups ...string) *rest.Config {
		cert, key, err := keys.Client.Issue(pki.Leaf{Name: name, Groups: groups})
		require.NoError(t, err)
		return &rest.Config{
			Host:            "https://" + l.Addr().String(),
			TLSClientConfig: rest.TLSClientConfig{CAData: keys.Server.Bundle(), CertData: cert, KeyData: key},
		}
	}
	dial := func(name string) *client.Client {
		cl, err := client.New(client.Config{REST: c.rest(name)})
		require.NoError(t, err)
		return cl
	}
	readers := map[string]client.Interface{}
	for _, name := range []string{user.KubeControllerManager, scheduler.Identity} {
		cl := dial(name)
		c.run(cl)
		readers[name] = cl
	}
	return func(name string) client.Interface {
		if name == scheduler.Identity {
			return readers[name]
		}
		// As upstream: all read as the controller manager, from one cache, and each writes as itself.
		return split{dial(name), readers[user.KubeControllerManager].Cache()}
	}
}

// split writes with one identity and reads with another.
type split struct {
	client.Interface
	cache ctrlcache.Cache
}

func (s split) Cache() ctrlcache.Cache { return s.cache }

// run runs a component until the test ends.
func (c *cluster) run(p run.Component) {
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	c.t.Cleanup(func() { cancel(); require.NoError(c.t, <-ended) })
	select {
	case <-p.Ready():
	case err := <-ended:
		ended <- err
		c.t.Fatal(err)
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

// agent acts for all nodes: a bound pod becomes Running and Ready, a deleted one goes. Pods with the label
// exit end with that code; those with the label stuck are left alone.
func (c *cluster) agent(ctx context.Context) error {
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
			if !ok { // it fell behind
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
				c.t.Error(err)
			}
		}
	}
}

func (c *cluster) create(objs ...ctrl.Object) {
	c.t.Helper()
	for _, o := range objs {
		require.NoError(c.t, c.Create(c.ctx, o))
	}
}

// patience is how long a test waits for what should come at once.
const patience = 5 * time.Minute

// until waits for an object to be so. The other side is the cluster's own reconcilers: each change of the kind is an
// event.
func until[T ctrl.Object](c *cluster, list ctrl.ObjectList, namespace, name string, ok func(T) bool) T {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	w, err := c.Watch(ctx, list, ctrl.InNamespace(namespace))
	require.NoError(c.t, err)
	defer func() { w.Stop() }()
	var last T
	for {
		select {
		case <-ctx.Done():
			require.FailNow(c.t, "it did not come so far", "%s/%s: last seen %+v", namespace, name, last)
		case e, open := <-w.ResultChan():
			if !open && ctx.Err() == nil { // it fell behind
				w, err = c.Watch(ctx, list, ctrl.InNamespace(namespace))
				require.NoError(c.t, err)
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

// edit changes an object that others write meanwhile, and returns it.
func edit[T ctrl.Object](c *cluster, o T, change func(T)) T {
	c.t.Helper()
	for {
		require.NoError(c.t, c.Get(c.ctx, ctrl.ObjectKeyFromObject(o), o))
		next := o.DeepCopyObject().(T)
		change(next)
		if err := c.Update(c.ctx, next); !apierrors.IsConflict(err) {
			require.NoError(c.t, err)
			return next
		}
	}
}

// gone waits until an object is not there any more.
func (c *cluster) gone(o ctrl.Object) {
	c.t.Helper()
	into := o.DeepCopyObject().(ctrl.Object) // o may be the cache's own, from a watch
	require.Eventually(c.t, func() bool {
		return apierrors.IsNotFound(c.Get(c.ctx, ctrl.ObjectKeyFromObject(o), into))
	}, patience, 2*time.Millisecond)
}

func (c *cluster) node(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	n.Status.Capacity = n.Status.Allocatable
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	c.create(n)
	return n
}

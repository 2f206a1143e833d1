package apiservices

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/apiserver"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/controllers/garbage"
	"github.com/coracle-dev/coracle/pkg/engine"
	storedkinds "github.com/coracle-dev/coracle/pkg/engine/kinds"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

var flunder = schema.GroupVersionKind{Group: "wardle.example.com", Version: "v1alpha1", Kind: "Flunder"}

// collecting is a world with a garbage collector, whose other server is a complete API server that stores Flunders.
type collecting struct {
	*world
	there client.Interface
	// hung, if not nil, delays the other server's responses until it is closed.
	hung atomic.Pointer[chan struct{}]
	// broken makes the other server respond with errors.
	broken atomic.Bool
}

// patient gives the collector a client whose requests last until the test ends, so that no timeout affects the
// result.
type patient struct {
	*Controller
	test context.Context
}

func (p patient) Metadata() (metadata.Interface, error) {
	return metadata.NewForConfig(&rest.Config{
		Host: "https://aggregated.invalid", QPS: -1, Transport: trip(func(req *http.Request) (*http.Response, error) {
			if req.URL.Query().Get("watch") == "" {
				req = req.WithContext(p.test)
			}
			return p.roundTrip(req)
		}),
	})
}

// newCollecting returns a collecting whose garbage collector runs.
func newCollecting(t *testing.T) *collecting {
	c := newServing(t)
	c.collect()
	return c
}

// newServing returns a collecting whose garbage collector has not been started.
func newServing(t *testing.T) *collecting {
	w := newWorld(t)
	c := &collecting{world: w}
	quiet := slog.New(slog.DiscardHandler)
	e := registrytest.Start(t, registrytest.Options{NoPlugins: true})
	row := own.Untyped{Kind: flunder, Plural: "flunders"}.Row()
	require.NoError(t, e.Registry.Kinds().Change(t.Context(), nil, []*kind.Resource{row}))
	srv, err := apiserver.New(apiserver.Config{
		Registry: e.Registry,
		Cache:    e.Cache,
		Kinds:    e.Registry.Kinds(),
		Logger:   quiet,
		Version:  version.Info{GitVersion: "v1.37.1"},
	})
	require.NoError(t, err)
	runtest.Start(t, srv)
	var handler http.Handler = http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if hung := c.hung.Load(); hung != nil {
			select {
			case <-*hung:
			case <-req.Context().Done():
				return
			}
		}
		if c.broken.Load() {
			http.Error(rw, "broken", http.StatusServiceUnavailable)
			return
		}
		who := &user.DefaultInfo{Name: req.Header.Get("X-Remote-User"), Groups: []string{user.SystemPrivilegedGroup}}
		srv.Handler().ServeHTTP(rw, req.WithContext(request.WithUser(req.Context(), who)))
	})
	w.api.Store(&handler)
	c.there = e.As("admin")
	require.NoError(t, c.there.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}))
	return c
}

func (c *collecting) collect() {
	ctx, stop := context.WithCancel(c.t.Context())
	ended := make(chan error, 1)
	g := garbage.New(storedkinds.Stored(c.kinds), patient{c.controller, c.t.Context()})
	began := time.Now() // the collector's time stands still, so that it waits as long as necessary
	go func() {
		ended <- engine.Run(ctx,
			engine.Config{
				ClientFor: func(string) client.Interface { return c.client },
				Log:       slog.New(slog.DiscardHandler),
				Now:       func() time.Time { return began },
			}, []*engine.Reconciler{g}, func() {})
	}()
	c.t.Cleanup(func() { stop(); require.NoError(c.t, <-ended) })
}

func (c *collecting) config(name string, owner ctrl.Object) *corev1.ConfigMap {
	c.t.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, OwnerReferences: refs(owner)}}
	require.NoError(c.t, c.client.Create(c.t.Context(), m))
	return m
}

func (c *collecting) flunder(name string, owner ctrl.Object, finalizers ...string) *unstructured.Unstructured {
	c.t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(flunder)
	u.SetNamespace("default")
	u.SetName(name)
	u.SetOwnerReferences(refs(owner))
	u.SetFinalizers(finalizers)
	require.NoError(c.t, c.there.Create(c.t.Context(), u))
	return u
}

func refs(owner ctrl.Object) []metav1.OwnerReference {
	if owner == nil {
		return nil
	}
	ref := metav1.OwnerReference{
		APIVersion:         "v1",
		Kind:               "ConfigMap",
		Name:               owner.GetName(),
		UID:                owner.GetUID(),
		BlockOwnerDeletion: new(true),
	}
	if _, ok := owner.(*unstructured.Unstructured); ok {
		ref.APIVersion, ref.Kind = flunder.GroupVersion().String(), flunder.Kind
	}
	return []metav1.OwnerReference{ref}
}

// becomes waits until want accepts the object. It passes nil for an object that does not exist.
func (c *collecting) becomes(in client.Interface, o ctrl.Object, want func(ctrl.Object) bool) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		var now ctrl.Object = &corev1.ConfigMap{}
		if _, ok := o.(*unstructured.Unstructured); ok {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(flunder)
			now = u
		}
		err := in.Get(context.Background(), ctrl.ObjectKeyFromObject(o), now)
		if apierrors.IsNotFound(err) {
			return want(nil)
		}
		return err == nil && want(now)
	}, 2*time.Minute, 5*time.Millisecond, "%s", o.GetName())
}

// catchUp waits until the garbage collector has processed all existing Flunders.
func (c *collecting) catchUp(name string) {
	c.t.Helper()
	owner := c.config(name, nil)
	last := c.flunder(name, owner)
	require.NoError(c.t, c.client.Delete(c.t.Context(), owner))
	c.becomes(c.there, last, gone) // created after the others
}

func gone(o ctrl.Object) bool { return o == nil }

// Deleting an owner here collects its objects in another server, and vice versa.
func TestObjectsElsewhereAreCollected(t *testing.T) {
	c := newCollecting(t)
	early := c.flunder("early", nil)
	waits := c.config("waits", early) // before the kind is known
	c.register()
	c.until("v1alpha1.wardle.example.com", apiregistrationv1.ConditionTrue, "Passed")
	ctx := t.Context()

	owner := c.config("owner", nil)
	owned, kept := c.flunder("owned", owner), c.flunder("kept", nil)
	require.NoError(t, c.client.Delete(ctx, owner))
	c.becomes(c.there, owned, gone)
	require.NoError(t, c.there.Get(ctx, ctrl.ObjectKeyFromObject(kept), kept))

	require.NoError(t, c.there.Delete(ctx, early))
	c.becomes(c.client, waits, gone)

	// Foreground: the owner waits for its objects in the other server.
	owner = c.config("foreground", nil)
	owned = c.flunder("held", owner, "example.com/hold")
	c.catchUp("before-foreground")
	require.NoError(t, c.client.Delete(ctx, owner, ctrl.PropagationPolicy(metav1.DeletePropagationForeground)))
	c.becomes(c.there, owned, func(o ctrl.Object) bool { return o != nil && o.GetDeletionTimestamp() != nil })
	require.NoError(t, c.client.Get(ctx, ctrl.ObjectKeyFromObject(owner), owner))
	require.NoError(t,
		c.there.Patch(ctx, owned, ctrl.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))))
	c.becomes(c.there, owned, gone)
	c.becomes(c.client, owner, gone)

	// Orphans lose their owner reference and stay.
	owner = c.config("orphans", nil)
	orphan := c.flunder("orphan", owner)
	c.catchUp("before-orphans")
	require.NoError(t, c.client.Delete(ctx, owner, ctrl.PropagationPolicy(metav1.DeletePropagationOrphan)))
	c.becomes(c.client, owner, gone)
	require.NoError(t, c.there.Get(ctx, ctrl.ObjectKeyFromObject(orphan), orphan))
	require.Empty(t, orphan.GetOwnerReferences())
}

// A server that hangs does not delay the collection of local objects. Its objects are collected when it responds
// again.
func TestCollectionWithADeadServer(t *testing.T) {
	c := newCollecting(t)
	c.register()
	c.until("v1alpha1.wardle.example.com", apiregistrationv1.ConditionTrue, "Passed")
	first := c.config("first", nil)
	seen := c.flunder("seen", first)
	require.NoError(t, c.client.Delete(t.Context(), first))
	c.becomes(c.there, seen, gone) // the collector watches the kind

	owner := c.config("owner", nil)
	local := c.config("local", owner)
	remote := c.flunder("remote", owner)
	answers := make(chan struct{})
	c.hung.Store(&answers)
	require.NoError(t, c.client.Delete(t.Context(), owner))
	c.becomes(c.client, local, gone) // while requests to the server hang
	close(answers)
	c.becomes(c.there, remote, gone)
}

// A garbage collector that has just started does not treat the dependents in a server that it could not list yet as
// absent.
func TestTheStartOfCollectionKeepsOrphans(t *testing.T) {
	c := newServing(t)
	c.broken.Store(true)
	c.register()
	c.until("v1alpha1.wardle.example.com", apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck")
	_, all, _ := c.controller.Served()
	require.False(t, all)
	ctx := t.Context()
	owner := c.config("owner", nil)
	orphan := c.flunder("orphan", owner)
	background := c.config("background", nil)
	local := c.config("local", background)
	require.NoError(t, c.client.Delete(ctx, owner, ctrl.PropagationPolicy(metav1.DeletePropagationOrphan)))
	require.NoError(t, c.client.Delete(ctx, background))
	c.collect()
	c.becomes(c.client, local, gone) // local collection is not delayed
	require.NoError(t, c.client.Get(ctx, ctrl.ObjectKeyFromObject(owner), owner))
	c.broken.Store(false)
	again := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1alpha1.wardle.example.com"}}
	require.NoError(t,
		c.client.Patch(ctx, again,
			ctrl.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"check":"again"}}}`))))
	c.becomes(c.client, owner, gone)
	require.NoError(t, c.there.Get(ctx, ctrl.ObjectKeyFromObject(orphan), orphan))
	require.Empty(t, orphan.GetOwnerReferences())
	kinds, all, _ := c.controller.Served()
	require.True(t, all)
	require.Len(t, kinds, 1)
	require.Equal(t, "default/wardle", kinds[0].Server, "the APIServices of a server share its limits")
}

// A server cannot redirect the collector's requests to another object or to another group's server.
func TestTheCollectorFollowsNoRedirects(t *testing.T) {
	w := newWorld(t)
	w.register()
	w.until("v1alpha1.wardle.example.com", apiregistrationv1.ConditionTrue, "Passed")
	api, err := w.controller.Metadata()
	require.NoError(t, err)
	flunders := api.Resource(flunder.GroupVersion().WithResource("flunders")).Namespace("prod")
	require.ErrorContains(t, flunders.Delete(t.Context(), "evil", metav1.DeleteOptions{}),
		"/flunders/victim\", which is not followed")
	_, err = flunders.Get(t.Context(), "evil", metav1.GetOptions{})
	require.ErrorContains(t, err, "not followed")
	require.Nil(t, w.seen.Load())
}

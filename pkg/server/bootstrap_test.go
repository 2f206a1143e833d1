package server

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	chain "github.com/coracle-dev/coracle/pkg/api/admission"
	"github.com/coracle-dev/coracle/pkg/api/local"
	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

func TestWhatEveryClusterHasIsRestored(t *testing.T) {
	dir, err := os.MkdirTemp("", "coracle-bootstrap-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	s, err := store.New(store.Config{Dir: dir})
	require.NoError(t, err)
	kinds := kind.NewCatalog(assembled.Kinds())
	ca, err := cache.New(cache.Config{Kinds: kinds, Source: s})
	require.NoError(t, err)
	r, err := registry.New(registry.Config{Kinds: kinds, Store: s, Cache: ca})
	require.NoError(t, err)
	clients := local.New(r, ca, kinds)
	require.NoError(t, chain.Install(chain.Plugins{}, r, clients))
	c := clients.For(&user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
	b := &bootstrap{
		client: c, api: netip.MustParseAddrPort("192.0.2.1:6443"), service: netip.MustParseAddr("10.43.0.1"),
		services: netip.MustParsePrefix("10.43.0.0/16"),
		servers: newServerList(s, netip.MustParseAddr("192.0.2.1"), s.Alone,
			kinds.Table().ByGVK(corev1.SchemeGroupVersion.WithKind("Endpoints"))), repair: r.RepairAllocations,
		log: slog.New(slog.DiscardHandler),
	}
	runtest.Start(t, s, ca, b)

	for _, o := range b.objects([]netip.Addr{b.api.Addr()}) {
		first := o.DeepCopyObject().(ctrl.Object)
		require.NoError(t, c.Get(t.Context(), ctrl.ObjectKeyFromObject(o), first), "%T %s", o, o.GetName())
		err := c.Delete(t.Context(), first.DeepCopyObject().(ctrl.Object))
		if apierrors.IsForbidden(err) {
			continue // not deletable
		}
		require.NoError(t, err)
		if ns, ok := first.(*corev1.Namespace); ok { // this test has no namespace controller
			require.NoError(t, c.Get(t.Context(), ctrl.ObjectKeyFromObject(o), ns))
			ns.Spec.Finalizers = nil
			require.NoError(t, c.SubResource("finalize").Update(t.Context(), ns))
		}
		shows(t, c, o, func(have ctrl.Object) bool { return have.GetUID() != first.GetUID() })
	}

	change := func(o ctrl.Object, patch string, restored func(ctrl.Object) bool) {
		require.NoError(t, c.Patch(t.Context(), o, ctrl.RawPatch(types.MergePatchType, []byte(patch))))
		shows(t, c, o, restored)
	}
	meta := metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}
	change(&corev1.Service{ObjectMeta: meta}, `{"spec":{"ports":[{"name":"https","port":444}]}}`,
		func(o ctrl.Object) bool { return o.(*corev1.Service).Spec.Ports[0].Port == 443 })
	change(&discoveryv1.EndpointSlice{ObjectMeta: meta}, `{"endpoints":[{"addresses":["192.0.2.66"]}]}`,
		func(o ctrl.Object) bool {
			return o.(*discoveryv1.EndpointSlice).Endpoints[0].Addresses[0] == "192.0.2.1"
		})
	change(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "coracle:node-proxier"}}, `{"subjects":[]}`,
		func(o ctrl.Object) bool { return len(o.(*rbacv1.ClusterRoleBinding).Subjects) == 1 })
}

func shows(t *testing.T, c ctrl.WithWatch, o ctrl.Object, good func(ctrl.Object) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	gvk, err := c.GroupVersionKindFor(o)
	require.NoError(t, err)
	list, err := c.Scheme().New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	require.NoError(t, err)
	w, err := c.Watch(ctx, list.(ctrl.ObjectList), ctrl.InNamespace(o.GetNamespace()), ctrl.MatchingFields{
		"metadata.name": o.GetName(),
	})
	require.NoError(t, err)
	defer w.Stop()
	now := o.DeepCopyObject().(ctrl.Object)
	if c.Get(ctx, ctrl.ObjectKeyFromObject(o), now) == nil && now.GetDeletionTimestamp() == nil && good(now) {
		return
	}
	for e := range w.ResultChan() {
		if have, ok := e.Object.(ctrl.Object); ok && e.Type != "DELETED" && have.GetDeletionTimestamp() == nil && good(have) {
			return
		}
	}
	t.Fatalf("%T %s was not restored", o, o.GetName())
}

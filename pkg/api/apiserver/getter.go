package apiserver

import (
	"context"
	"encoding/base64"
	"net/http"
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// getter implements the getters of upstream's authenticators and authorizers on the cache. Callers must not modify
// the returned objects.
type getter struct {
	cache                                         *cache.Cache
	pods, secrets, accounts, nodes                *kind.Resource
	roles, bindings, clusterRoles, clusterBinding *kind.Resource
	volumes, attachments, validating, mutating    *kind.Resource
	slices                                        *kind.Resource // ResourceSlices
}

func newGetter(c *cache.Cache, t *kind.Table) getter {
	core := func(name string) *kind.Resource {
		return t.ByGVR(schema.GroupVersionResource{Version: "v1", Resource: name})
	}
	rbac := func(name string) *kind.Resource {
		return t.ByGVR(rbacv1.SchemeGroupVersion.WithResource(name))
	}
	return getter{
		cache: c, pods: core("pods"), secrets: core("secrets"), accounts: core("serviceaccounts"), nodes: core("nodes"),
		roles: rbac("roles"), bindings: rbac("rolebindings"), clusterRoles: rbac("clusterroles"),
		clusterBinding: rbac("clusterrolebindings"),
		volumes:        core("persistentvolumes"),
		attachments:    t.ByGVR(storagev1.SchemeGroupVersion.WithResource("volumeattachments")),
		slices:         t.ByGVR(resourcev1.SchemeGroupVersion.WithResource("resourceslices")),
		validating:     t.ByGVR(admissionregistrationv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations")),
		mutating:       t.ByGVR(admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations")),
	}
}

func one[T client.Object](c *cache.Cache, r *kind.Resource, gr schema.GroupResource,
	namespace, name string) (T, error) {
	var none T
	if r != nil {
		if e := c.Get(r, namespace, name); e != nil {
			if obj, ok := e.Object.(T); ok {
				return obj, nil
			}
		}
	}
	return none, apierrors.NewNotFound(gr, name)
}

func all[T client.Object](c *cache.Cache, r *kind.Resource, namespace string) []T {
	if r == nil {
		return nil
	}
	entries, _ := c.List(r, cache.Query{Namespace: namespace})
	out := make([]T, 0, len(entries))
	for _, e := range entries {
		if obj, ok := e.Object.(T); ok {
			out = append(out, obj)
		}
	}
	return out
}

func (g getter) GetServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return one[*corev1.ServiceAccount](g.cache, g.accounts, corev1.Resource("serviceaccounts"), namespace, name)
}

func (g getter) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	return one[*corev1.Pod](g.cache, g.pods, corev1.Resource("pods"), namespace, name)
}

func (g getter) GetSecret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	return one[*corev1.Secret](g.cache, g.secrets, corev1.Resource("secrets"), namespace, name)
}

func (g getter) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return one[*corev1.Node](g.cache, g.nodes, corev1.Resource("nodes"), "", name)
}

func (g getter) GetValidatingWebhookConfiguration(_ context.Context,
	name string) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	return one[*admissionregistrationv1.ValidatingWebhookConfiguration](g.cache, g.validating,
		admissionregistrationv1.Resource("validatingwebhookconfigurations"), "", name)
}

func (g getter) GetMutatingWebhookConfiguration(_ context.Context,
	name string) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	return one[*admissionregistrationv1.MutatingWebhookConfiguration](g.cache, g.mutating,
		admissionregistrationv1.Resource("mutatingwebhookconfigurations"), "", name)
}

func (g getter) GetRole(_ context.Context, namespace, name string) (*rbacv1.Role, error) {
	return one[*rbacv1.Role](g.cache, g.roles, rbacv1.Resource("roles"), namespace, name)
}

func (g getter) ListRoleBindings(_ context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	return all[*rbacv1.RoleBinding](g.cache, g.bindings, namespace), nil
}

func (g getter) GetClusterRole(_ context.Context, name string) (*rbacv1.ClusterRole, error) {
	return one[*rbacv1.ClusterRole](g.cache, g.clusterRoles, rbacv1.Resource("clusterroles"), "", name)
}

func (g getter) ListClusterRoleBindings(context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	return all[*rbacv1.ClusterRoleBinding](g.cache, g.clusterBinding, ""), nil
}

// alive reports whether the token's service account, and the pod or node that the token is bound to, still exist.
func (g getter) alive(u user.Info) bool {
	namespace, name, err := serviceaccount.SplitUsername(u.GetName())
	if err != nil {
		return false
	}
	account, err := g.GetServiceAccount(context.Background(), namespace, name)
	if err != nil || string(account.UID) != u.GetUID() {
		return false
	}
	extra := u.GetExtra()
	if pod := extra[serviceaccount.PodNameKey]; len(pod) == 1 {
		p, err := g.GetPod(context.Background(), namespace, pod[0])
		return err == nil && len(extra[serviceaccount.PodUIDKey]) == 1 && string(p.UID) == extra[serviceaccount.PodUIDKey][0]
	}
	return false
}

// feedGraph keeps the node authorizer's graph up to date: pods by node, and the objects that they refer to.
func (a *auth) feedGraph(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		a.follow(ctx, a.volumes, a.placeVolume, func(o client.Object) { a.graph.DeletePV(o.GetName()) })
	})
	wg.Go(func() {
		a.follow(ctx, a.attachments, func(_, is *cache.Entry) {
			if o, ok := is.Object.(*storagev1.VolumeAttachment); ok {
				a.graph.AddVolumeAttachment(o.Name, o.Spec.NodeName)
			}
		}, func(o client.Object) { a.graph.DeleteVolumeAttachment(o.GetName()) })
	})
	wg.Go(func() {
		a.follow(ctx, a.slices, func(_, is *cache.Entry) {
			if o, ok := is.Object.(*resourcev1.ResourceSlice); ok && o.Spec.NodeName != nil {
				a.graph.AddResourceSlice(o.Name, *o.Spec.NodeName)
			}
		}, func(o client.Object) { a.graph.DeleteResourceSlice(o.GetName()) })
	})
	a.follow(ctx, a.pods, a.place, func(o client.Object) {
		if p := o.(*corev1.Pod); p.Spec.NodeName != "" {
			a.graph.DeletePod(p.Name, p.Namespace)
		}
	})
}

// follow calls place for each object of a kind and after each change, and gone after each deletion. was is nil for
// an object that is new.
func (a *auth) follow(ctx context.Context, row *kind.Resource, place func(was, is *cache.Entry),
	gone func(client.Object)) {
	if row == nil {
		return
	}
	w, initial, err := a.cache.Follow(row)
	if err != nil {
		return
	}
	defer w.Close()
	for _, e := range initial {
		place(nil, e)
	}
	for {
		events, err := w.Next(ctx)
		if err != nil {
			return // ctx is done, or the cache has stopped
		}
		for _, e := range events {
			if watch.EventType(e.Type) != watch.Deleted {
				place(e.Prev, e.Entry)
			} else {
				gone(e.Entry.Object)
			}
		}
	}
}

// placeVolume updates the graph when a volume's claim or secrets change.
func (a *auth) placeVolume(was, is *cache.Entry) {
	v := is.Object.(*corev1.PersistentVolume)
	if was != nil && equality.Semantic.DeepEqual(was.Object.(*corev1.PersistentVolume).Spec, v.Spec) {
		return
	}
	a.graph.AddPV(v)
}

// place updates the graph when a pod is bound to a node or when the objects that it refers to change. was may be
// nil.
func (a *auth) place(was, is *cache.Entry) {
	p := is.Object.(*corev1.Pod)
	if p.Spec.NodeName == "" {
		return // not bound, or unchanged: a bound pod never changes its node
	}
	if was != nil {
		if old := was.Object.(*corev1.Pod); old.UID == p.UID && old.Spec.NodeName == p.Spec.NodeName &&
			len(old.Spec.EphemeralContainers) == len(p.Spec.EphemeralContainers) &&
			resourceclaim.PodStatusEqual(old.Status.ResourceClaimStatuses, p.Status.ResourceClaimStatuses) {
			return
		}
	}
	a.graph.AddPod(p)
}

// webSocketToken returns the token in a WebSocket's subprotocols ("base64url.bearer.authorization.k8s.io.<token>").
func webSocketToken(req *http.Request) string {
	const prefix = "base64url.bearer.authorization.k8s.io."
	if !strings.EqualFold(req.Header.Get("Upgrade"), "websocket") {
		return ""
	}
	token := ""
	var rest []string
	for _, h := range req.Header["Sec-Websocket-Protocol"] {
		for p := range strings.SplitSeq(h, ",") {
			p = strings.TrimSpace(p)
			if encoded, ok := strings.CutPrefix(p, prefix); ok {
				if raw, err := base64.RawURLEncoding.DecodeString(encoded); err == nil {
					token = string(raw)
				}
				continue
			}
			rest = append(rest, p)
		}
	}
	if token != "" {
		// Do not forward the token to the node.
		if len(rest) > 0 {
			req.Header["Sec-Websocket-Protocol"] = []string{strings.Join(rest, ",")}
		} else {
			req.Header.Del("Sec-Websocket-Protocol")
		}
	}
	return token
}

package local

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/client"
)

// userClient is the in-process client of one identity. It reads from the cache without authorization, because its
// users are part of the server.
type userClient struct {
	*Clients
	user user.Info
	own  *clientCache
}

var _ client.Interface = (*userClient)(nil)

func (c *userClient) Cache() ctrlcache.Cache      { return c.own }
func (c *userClient) Scheme() *runtime.Scheme     { return c.scheme }
func (c *userClient) RESTMapper() meta.RESTMapper { return c.mapper() }

func (c *userClient) GroupVersionKindFor(obj runtime.Object) (schema.GroupVersionKind, error) {
	row, _, err := c.row(obj)
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	if meta.IsListType(obj) {
		return row.GroupVersionKind.GroupVersion().WithKind(row.Kind + "List"), nil
	}
	return row.GroupVersionKind, nil
}

func (c *userClient) IsObjectNamespaced(obj runtime.Object) (bool, error) {
	row, _, err := c.row(obj)
	return err == nil && row.Namespaced, err
}

func (c *userClient) as(ctx context.Context) context.Context { return request.WithUser(ctx, c.user) }

func (c *userClient) target(obj ctrl.Object, subresource string) (registry.Target, error) {
	row, _, err := c.row(obj)
	if err != nil {
		return registry.Target{}, err
	}
	t := registry.Target{Resource: row, Subresource: subresource, Name: obj.GetName()}
	if row.Namespaced {
		t.Namespace = obj.GetNamespace()
	}
	return t, nil
}

func (c *userClient) Create(ctx context.Context, obj ctrl.Object, opts ...ctrl.CreateOption) error {
	if r := c.kinds.Table().ByType(obj); r != nil && r.Computed {
		return c.registry.Review(c.as(ctx), obj.GetNamespace(), obj)
	}
	t, err := c.target(obj, "")
	if err != nil {
		return err
	}
	in, err := body(t, obj)
	if err != nil {
		return err
	}
	t.Name = ""
	o := (&ctrl.CreateOptions{}).ApplyOptions(opts).AsCreateOptions()
	res, err := c.registry.Create(c.as(ctx), t, in, *o)
	return c.answer(obj, res, err)
}

func (c *userClient) Update(ctx context.Context, obj ctrl.Object, opts ...ctrl.UpdateOption) error {
	t, err := c.target(obj, "")
	if err != nil {
		return err
	}
	in, err := body(t, obj)
	if err != nil {
		return err
	}
	o := (&ctrl.UpdateOptions{}).ApplyOptions(opts).AsUpdateOptions()
	res, err := c.registry.Update(c.as(ctx), t, in, *o)
	return c.answer(obj, res, err)
}

func (c *userClient) Patch(ctx context.Context, obj ctrl.Object, patch ctrl.Patch, opts ...ctrl.PatchOption) error {
	t, err := c.target(obj, "")
	if err != nil {
		return err
	}
	return c.patch(ctx, t, obj, patch, (&ctrl.PatchOptions{}).ApplyOptions(opts).AsPatchOptions())
}

func (c *userClient) patch(ctx context.Context, t registry.Target, obj ctrl.Object, patch ctrl.Patch,
	o *metav1.PatchOptions) error {
	data, err := patch.Data(obj)
	if err != nil {
		return err
	}
	res, err := c.registry.Patch(c.as(ctx), t, patch.Type(), data, *o)
	return c.answer(obj, res, err)
}

func (c *userClient) Delete(ctx context.Context, obj ctrl.Object, opts ...ctrl.DeleteOption) error {
	t, err := c.target(obj, "")
	if err != nil {
		return err
	}
	o := (&ctrl.DeleteOptions{}).ApplyOptions(opts).AsDeleteOptions()
	_, err = c.registry.DeleteWithout(c.as(ctx), t, *o, client.FinalizerOf(opts))
	return err
}

func (c *userClient) DeleteAllOf(ctx context.Context, obj ctrl.Object, opts ...ctrl.DeleteAllOfOption) error {
	row, _, err := c.row(obj)
	if err != nil {
		return err
	}
	o := (&ctrl.DeleteAllOfOptions{}).ApplyOptions(opts)
	_, err = c.registry.DeleteCollection(c.as(ctx), registry.Target{Resource: row, Namespace: o.Namespace},
		*o.AsDeleteOptions(), *o.AsListOptions())
	return err
}

// applied is implemented by client-go's apply configurations, also for unstructured objects.
type applied interface {
	GetName() *string
	GetNamespace() *string
	GetKind() *string
	GetAPIVersion() *string
}

func (c *userClient) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...ctrl.ApplyOption) error {
	return c.apply(ctx, obj, obj, "", (&ctrl.ApplyOptions{}).ApplyOptions(opts).AsPatchOptions())
}

func (c *userClient) apply(ctx context.Context, obj, body runtime.ApplyConfiguration, subresource string,
	o *metav1.PatchOptions) error {
	var gvk schema.GroupVersionKind
	t := registry.Target{Subresource: subresource}
	switch a := obj.(type) {
	case applied:
		gv, err := schema.ParseGroupVersion(deref(a.GetAPIVersion()))
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		gvk, t.Namespace, t.Name = gv.WithKind(deref(a.GetKind())), deref(a.GetNamespace()), deref(a.GetName())
	case ctrl.Object: // the apply configuration of an unstructured object
		gvk, t.Namespace, t.Name = a.GetObjectKind().GroupVersionKind(), a.GetNamespace(), a.GetName()
	default:
		return fmt.Errorf("%T has no kind or name", obj)
	}
	if t.Resource = c.kinds.Table().ByGVK(gvk); t.Resource == nil {
		return noKind(gvk)
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	res, err := c.registry.Patch(c.as(ctx), t, types.ApplyPatchType, data, *o)
	if err != nil {
		return err
	}
	out, err := res.Value()
	if err != nil {
		return err
	}
	if data, err = json.Marshal(out); err != nil {
		return err
	}
	return json.Unmarshal(data, obj)
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Watch watches objects. They belong to the cache and are immutable.
func (c *userClient) Watch(ctx context.Context, list ctrl.ObjectList,
	opts ...ctrl.ListOption) (watch.Interface, error) {
	row, as, err := c.row(list)
	if err != nil {
		return nil, err
	}
	o := (&ctrl.ListOptions{}).ApplyOptions(opts)
	lo := o.AsListOptions()
	if lo == nil {
		lo = &metav1.ListOptions{}
	}
	ctx, cancel := context.WithCancel(c.as(ctx))
	w, initial, sync, err := c.registry.Watch(ctx, registry.Target{Resource: row, Namespace: o.Namespace}, *lo)
	if err != nil {
		cancel()
		return nil, err
	}
	return newWatch(ctx, cancel, w, initial, sync, lo, c.view(row, as)), nil
}

func noKind(gvk schema.GroupVersionKind) error {
	return &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
}

package registry

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// Update replaces the object, or the part of it that a subresource covers. The caller must not use obj afterwards.
func (r *Registry) Update(ctx context.Context, t Target, obj runtime.Object, o metav1.UpdateOptions) (Result, error) {
	if errs := validation.ValidateUpdateOptions(&o); len(errs) > 0 {
		return Result{}, apierrors.NewInvalid(metaKind("UpdateOptions"), "", errs)
	}
	c, err := r.begin(ctx, t, "update", o.DryRun)
	if err != nil {
		return Result{}, err
	}
	if c.Subresource == "scale" {
		return c.updateScale(obj, o)
	}
	w, err := c.write(o)
	if err != nil {
		return Result{}, err
	}
	in, ok := obj.(client.Object)
	if !ok {
		return Result{}, apierrors.NewBadRequest(fmt.Sprintf("a %T is not a %s", obj, t.Resource.Kind))
	}
	if err := c.checkName(in); err != nil {
		return Result{}, err
	}
	dedupOwners(c.ctx, in, false)
	w.change = func(old *cache.Entry) (client.Object, error) {
		// Strategies modify the object, and a retry needs the original.
		return in.DeepCopyObject().(client.Object), nil
	}
	return w.run()
}

// write prepares an update of the object or of a subresource that has an update strategy.
func (c *call) write(o metav1.UpdateOptions) (*write, error) {
	w := &write{call: c, options: o}
	switch s := c.Resource.Subresource(c.Subresource); {
	case c.Subresource == "":
		w.strategy = c.strategy()
		w.upsert = c.strategy().AllowCreateOnUpdate(c.ctx)
	case c.Subresource == "status" && c.Resource.Status != nil:
		w.strategy = c.Resource.Status
	case s != nil && s.Update != nil:
		w.strategy = s.Update
	default:
		return nil, c.noSubresource()
	}
	return w, nil
}

func (c *call) noSubresource() error {
	return apierrors.NewMethodNotSupported(c.gr(), c.verb)
}

// checkName checks name and namespace of an object against the request's, with upstream's messages.
func (c *call) checkName(o client.Object) error {
	if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(c.Namespace, o); err != nil {
		return err
	}
	if name := o.GetName(); name != "" && name != c.Name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)",
			name, c.Name))
	}
	return nil
}

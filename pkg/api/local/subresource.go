package local

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// subresource is a client for a subresource of any kind.
type subresource struct {
	c    *userClient
	name string
}

var _ ctrl.SubResourceClient = subresource{}

func (c *userClient) Status() ctrl.SubResourceWriter                 { return subresource{c, "status"} }
func (c *userClient) SubResource(name string) ctrl.SubResourceClient { return subresource{c, name} }

func (s subresource) Get(ctx context.Context, obj, sub ctrl.Object, opts ...ctrl.SubResourceGetOption) error {
	t, err := s.c.target(obj, s.name)
	if err != nil {
		return err
	}
	o := (&ctrl.SubResourceGetOptions{}).ApplyOptions(opts).AsGetOptions()
	res, err := s.c.registry.Get(s.c.as(ctx), t, *o)
	return s.c.answer(sub, res, err)
}

func (s subresource) Create(ctx context.Context, obj, sub ctrl.Object, opts ...ctrl.SubResourceCreateOption) error {
	t, err := s.c.target(obj, s.name)
	if err != nil {
		return err
	}
	in, err := body(t, sub)
	if err != nil {
		return err
	}
	o := (&ctrl.SubResourceCreateOptions{}).ApplyOptions(opts).AsCreateOptions()
	res, err := s.c.registry.Create(s.c.as(ctx), t, in, *o)
	return s.c.answer(sub, res, err)
}

func (s subresource) Update(ctx context.Context, obj ctrl.Object, opts ...ctrl.SubResourceUpdateOption) error {
	t, err := s.c.target(obj, s.name)
	if err != nil {
		return err
	}
	o := (&ctrl.SubResourceUpdateOptions{}).ApplyOptions(opts)
	sub := obj
	if o.SubResourceBody != nil {
		sub = o.SubResourceBody
	}
	if sub.GetName() == "" { // the name in a Scale is optional
		sub.SetName(obj.GetName())
		sub.SetNamespace(obj.GetNamespace())
	}
	in, err := body(t, sub)
	if err != nil {
		return err
	}
	res, err := s.c.registry.Update(s.c.as(ctx), t, in, *o.AsUpdateOptions())
	return s.c.answer(sub, res, err)
}

func (s subresource) Patch(ctx context.Context, obj ctrl.Object, patch ctrl.Patch,
	opts ...ctrl.SubResourcePatchOption) error {
	t, err := s.c.target(obj, s.name)
	if err != nil {
		return err
	}
	o := (&ctrl.SubResourcePatchOptions{}).ApplyOptions(opts)
	body := obj
	if o.SubResourceBody != nil {
		body = o.SubResourceBody
	}
	return s.c.patch(ctx, t, body, patch, o.AsPatchOptions())
}

func (s subresource) Apply(ctx context.Context, obj runtime.ApplyConfiguration,
	opts ...ctrl.SubResourceApplyOption) error {
	o := (&ctrl.SubResourceApplyOptions{}).ApplyOpts(opts)
	body := obj
	if o.SubResourceBody != nil {
		body = o.SubResourceBody
	}
	return s.c.apply(ctx, obj, body, s.name, o.AsPatchOptions())
}

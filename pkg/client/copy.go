package client

import (
	"context"
	"reflect"

	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// writeCopy writes a copy of an object, and then sets the object to the response. controller-runtime decodes the
// response into the object that it wrote, and so into its maps and slices, which may belong to the cache: only the
// outermost struct belongs to the caller.
func writeCopy(obj ctrl.Object, write func(own ctrl.Object) error) error {
	own := obj.DeepCopyObject().(ctrl.Object)
	if err := write(own); err != nil {
		return err
	}
	reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(own).Elem())
	return nil
}

type subresource struct{ ctrl.SubResourceClient }

func (s subresource) Create(ctx context.Context, obj, sub ctrl.Object, opts ...ctrl.SubResourceCreateOption) error {
	return writeCopy(sub, func(own ctrl.Object) error { return s.SubResourceClient.Create(ctx, obj, own, opts...) })
}

func (s subresource) Update(ctx context.Context, obj ctrl.Object, opts ...ctrl.SubResourceUpdateOption) error {
	if body := (&ctrl.SubResourceUpdateOptions{}).ApplyOptions(opts).SubResourceBody; body != nil {
		return writeCopy(body, func(own ctrl.Object) error {
			return s.SubResourceClient.Update(ctx, obj, append(opts[:len(opts):len(opts)], ctrl.WithSubResourceBody(own))...)
		})
	}
	return writeCopy(obj, func(own ctrl.Object) error { return s.SubResourceClient.Update(ctx, own, opts...) })
}

func (s subresource) Patch(ctx context.Context, obj ctrl.Object, patch ctrl.Patch,
	opts ...ctrl.SubResourcePatchOption) error {
	if body := (&ctrl.SubResourcePatchOptions{}).ApplyOptions(opts).SubResourceBody; body != nil {
		return writeCopy(body, func(own ctrl.Object) error {
			return s.SubResourceClient.Patch(ctx, obj, patch,
				append(opts[:len(opts):len(opts)], ctrl.WithSubResourceBody(own))...)
		})
	}
	return writeCopy(obj, func(own ctrl.Object) error { return s.SubResourceClient.Patch(ctx, own, patch, opts...) })
}

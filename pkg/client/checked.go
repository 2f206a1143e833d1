package client

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// Checked returns a client whose writes fail with check's error, if any, before they reach the cluster. Reads are not
// checked.
func Checked(c Interface, check func() error) Interface { return checked{c, check} }

type checked struct {
	Interface
	check func() error
}

func (c checked) Create(ctx context.Context, obj ctrl.Object, opts ...ctrl.CreateOption) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.Interface.Create(ctx, obj, opts...)
}

func (c checked) Update(ctx context.Context, obj ctrl.Object, opts ...ctrl.UpdateOption) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.Interface.Update(ctx, obj, opts...)
}

func (c checked) Patch(ctx context.Context, obj ctrl.Object, patch ctrl.Patch, opts ...ctrl.PatchOption) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.Interface.Patch(ctx, obj, patch, opts...)
}

func (c checked) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...ctrl.ApplyOption) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.Interface.Apply(ctx, obj, opts...)
}

func (c checked) Delete(ctx context.Context, obj ctrl.Object, opts ...ctrl.DeleteOption) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.Interface.Delete(ctx, obj, opts...)
}

func (c checked) DeleteAllOf(ctx context.Context, obj ctrl.Object, opts ...ctrl.DeleteAllOfOption) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.Interface.DeleteAllOf(ctx, obj, opts...)
}

func (c checked) Status() ctrl.SubResourceWriter { return c.SubResource("status") }

func (c checked) SubResource(name string) ctrl.SubResourceClient {
	return checkedSub{c.Interface.SubResource(name), c.check}
}

type checkedSub struct {
	ctrl.SubResourceClient
	check func() error
}

func (s checkedSub) Create(ctx context.Context, obj, sub ctrl.Object, opts ...ctrl.SubResourceCreateOption) error {
	if err := s.check(); err != nil {
		return err
	}
	return s.SubResourceClient.Create(ctx, obj, sub, opts...)
}

func (s checkedSub) Update(ctx context.Context, obj ctrl.Object, opts ...ctrl.SubResourceUpdateOption) error {
	if err := s.check(); err != nil {
		return err
	}
	return s.SubResourceClient.Update(ctx, obj, opts...)
}

func (s checkedSub) Patch(ctx context.Context, obj ctrl.Object, patch ctrl.Patch,
	opts ...ctrl.SubResourcePatchOption) error {
	if err := s.check(); err != nil {
		return err
	}
	return s.SubResourceClient.Patch(ctx, obj, patch, opts...)
}

func (s checkedSub) Apply(ctx context.Context, obj runtime.ApplyConfiguration,
	opts ...ctrl.SubResourceApplyOption) error {
	if err := s.check(); err != nil {
		return err
	}
	return s.SubResourceClient.Apply(ctx, obj, opts...)
}

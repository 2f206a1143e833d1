package testcluster

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// ownedClient returns objects that the caller may modify. The in-process client's are shared with the cache.
type ownedClient struct{ ctrl.WithWatch }

// Get implements client.Reader.
func (c *ownedClient) Get(ctx context.Context, key ctrl.ObjectKey, obj ctrl.Object, opts ...ctrl.GetOption) error {
	err := c.WithWatch.Get(ctx, key, obj, opts...)
	if err == nil {
		own(obj)
	}
	return err
}

// List implements client.Reader.
func (c *ownedClient) List(ctx context.Context, list ctrl.ObjectList, opts ...ctrl.ListOption) error {
	err := c.WithWatch.List(ctx, list, opts...)
	if err == nil {
		own(list)
	}
	return err
}

// Watch implements client.WithWatch.
func (c *ownedClient) Watch(ctx context.Context, list ctrl.ObjectList,
	opts ...ctrl.ListOption) (watch.Interface, error) {
	w, err := c.WithWatch.Watch(ctx, list, opts...)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if e.Object != nil {
			e.Object = e.Object.DeepCopyObject()
		}
		return e, true
	}), nil
}

// own replaces the contents of obj by a deep copy.
func own(obj runtime.Object) {
	reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(obj.DeepCopyObject()).Elem())
}

package history

import (
	"bytes"
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// Writes declares the writes of this package's functions.
func Writes() engine.Write {
	return engine.Write{
		Object: &appsv1.ControllerRevision{},
		Parts:  []engine.Part{engine.Create, engine.Delete, engine.Metadata, engine.Spec},
	}
}

// List returns the revisions in a namespace that are controlled by uid, or without a controller if uid is
// engine.NoController.
func List(ctx context.Context, env engine.Env, namespace, uid string) ([]*appsv1.ControllerRevision, error) {
	var list appsv1.ControllerRevisionList
	if err := env.ByIndex(ctx, &list, namespace, engine.ControllerIndex, uid); err != nil {
		return nil, err
	}
	return engine.Pointers(list.Items), nil
}

// Own adopts and releases revisions. Before it adopts, it checks with the server that the owner is the one that the
// caller read.
func Own(ctx context.Context, c client.Client, owner client.Object, kind schema.GroupVersionKind,
	claimed Claimed) error {
	if len(claimed.Adopt) > 0 {
		if err := engine.Current(ctx, c, owner); err != nil {
			return err
		}
	}
	for _, r := range claimed.Adopt {
		next := r.DeepCopy()
		next.OwnerReferences = append(next.OwnerReferences, *metav1.NewControllerRef(owner, kind))
		if err := update(ctx, c, next); err != nil {
			return err
		}
	}
	for _, r := range claimed.Release {
		next := r.DeepCopy()
		next.OwnerReferences = slices.DeleteFunc(next.OwnerReferences, func(ref metav1.OwnerReference) bool {
			return ref.UID == owner.GetUID()
		})
		if err := update(ctx, c, next); err != nil {
			return err
		}
	}
	return nil
}

// Renumber makes a revision the latest.
func Renumber(ctx context.Context, c client.Client, r *appsv1.ControllerRevision, number int64) error {
	next := r.DeepCopy()
	next.Revision = number
	return update(ctx, c, next)
}

func update(ctx context.Context, c client.Client, r *appsv1.ControllerRevision) error {
	return client.IgnoreNotFound(c.Update(ctx, r))
}

// Create creates a revision. If another revision has its name, it increments the collision count in the owner's status
// at the address that collisions returns, which changes the next name.
func Create(ctx context.Context, c client.Client, owner client.Object, r *appsv1.ControllerRevision,
	collisions func(client.Object) **int32) error {
	err := c.Create(ctx, r.DeepCopy())
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	var there appsv1.ControllerRevision
	if err := c.Get(ctx, client.ObjectKeyFromObject(r), &there); err != nil {
		return err
	}
	want, is := metav1.GetControllerOfNoCopy(r), metav1.GetControllerOfNoCopy(&there)
	if is != nil && is.UID == want.UID && bytes.Equal(there.Data.Raw, r.Data.Raw) {
		return err // the cache was stale; the next call finds it
	}
	next, ok := owner.DeepCopyObject().(client.Object)
	if !ok {
		return err
	}
	count := collisions(next)
	if *count == nil {
		*count = new(int32)
	}
	**count++
	return c.Status().Update(ctx, next)
}

// Delete deletes revisions.
func Delete(ctx context.Context, c client.Client, all []*appsv1.ControllerRevision) error {
	for _, r := range all {
		if err := c.Delete(ctx, r, engine.Preconditions(r)); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

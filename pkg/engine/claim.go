package engine

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Claimed are the dependents of an owner: All that it controls or adopts, and the changes to make.
type Claimed[T client.Object] struct {
	All            []T
	Adopt, Release []T
}

// Claim decides which dependents belong to an owner: owned and orphaned ones that match the selector and fit. fit may
// be nil. An owner that is being deleted neither adopts nor releases.
func Claim[T client.Object](owner client.Object, owned, orphans []T, selector labels.Selector,
	fit func(T) bool) Claimed[T] {
	var c Claimed[T]
	living := owner.GetDeletionTimestamp() == nil
	mine := func(o T) bool { return selector.Matches(labels.Set(o.GetLabels())) && (fit == nil || fit(o)) }
	for _, o := range owned {
		if mine(o) {
			c.All = append(c.All, o)
		} else if living && o.GetDeletionTimestamp() == nil {
			c.Release = append(c.Release, o)
		}
	}
	for _, o := range orphans {
		if living && o.GetDeletionTimestamp() == nil && mine(o) {
			c.Adopt = append(c.Adopt, o)
			c.All = append(c.All, o)
		}
	}
	return c
}

// Own adopts and releases dependents. Before it adopts, it checks with the server that the owner still exists, because
// another object may have its name. A conflict is retried.
func Own[T client.Object](ctx context.Context, c client.Client, owner client.Object, kind schema.GroupVersionKind,
	claimed Claimed[T]) error {
	if len(claimed.Adopt) > 0 {
		if err := Current(ctx, c, owner); err != nil {
			return err
		}
	}
	for _, o := range claimed.Adopt {
		refs := append(slices.Clone(o.GetOwnerReferences()), *metav1.NewControllerRef(owner, kind))
		if err := patchOwners(ctx, c, o, refs); err != nil {
			return err
		}
	}
	for _, o := range claimed.Release {
		refs := slices.DeleteFunc(slices.Clone(o.GetOwnerReferences()), func(ref metav1.OwnerReference) bool {
			return ref.UID == owner.GetUID()
		})
		if err := patchOwners(ctx, c, o, refs); err != nil {
			return err
		}
	}
	return nil
}

func patchOwners(ctx context.Context, c client.Client, o client.Object, refs []metav1.OwnerReference) error {
	next, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", o)
	}
	next.SetOwnerReferences(refs)
	return client.IgnoreNotFound(c.Patch(ctx, next,
		client.MergeFromWithOptions(o, client.MergeFromWithOptimisticLock{})))
}

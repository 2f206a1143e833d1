package podstate

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// Claimed are the pods of an owner.
type Claimed struct {
	// Pods are the pods that the owner controls or adopts.
	Pods           []*corev1.Pod
	Adopt, Release []*corev1.Pod
}

// Claim decides which pods belong to an owner that is not being deleted: owned and orphaned pods that match the
// selector and fit. fit may be nil.
func Claim(owned, orphans []*corev1.Pod, selector labels.Selector, fit func(*corev1.Pod) bool) Claimed {
	var c Claimed
	mine := func(p *corev1.Pod) bool { return selector.Matches(labels.Set(p.Labels)) && (fit == nil || fit(p)) }
	for _, p := range owned {
		if mine(p) {
			c.Pods = append(c.Pods, p)
		} else if p.DeletionTimestamp == nil {
			c.Release = append(c.Release, p)
		}
	}
	for _, p := range orphans {
		if p.DeletionTimestamp == nil && mine(p) {
			c.Adopt = append(c.Adopt, p)
			c.Pods = append(c.Pods, p)
		}
	}
	return c
}

// Own adopts and releases pods. Before it adopts, it checks with the server that the owner still exists, because
// another object may have its name. A conflict is retried.
func Own(ctx context.Context, c client.Client, owner client.Object, kind schema.GroupVersionKind,
	claimed Claimed) error {
	if len(claimed.Adopt) > 0 {
		if err := engine.Current(ctx, c, owner); err != nil {
			return err
		}
	}
	for _, p := range claimed.Adopt {
		next := p.DeepCopy()
		next.OwnerReferences = append(next.OwnerReferences, *metav1.NewControllerRef(owner, kind))
		if err := patch(ctx, c, p, next); err != nil {
			return err
		}
	}
	for _, p := range claimed.Release {
		next := p.DeepCopy()
		next.OwnerReferences = slices.DeleteFunc(next.OwnerReferences, func(ref metav1.OwnerReference) bool {
			return ref.UID == owner.GetUID()
		})
		if err := patch(ctx, c, p, next); err != nil {
			return err
		}
	}
	return nil
}

func patch(ctx context.Context, c client.Client, was, next *corev1.Pod) error {
	return client.IgnoreNotFound(c.Patch(ctx, next,
		client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})))
}

// ControlledBy lists the pods in a namespace that uid controls, or the pods without a controller if uid is
// engine.NoController.
func ControlledBy(ctx context.Context, env engine.Env, namespace, uid string) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := env.ByIndex(ctx, &list, namespace, engine.ControllerIndex, uid); err != nil {
		return nil, err
	}
	return engine.Pointers(list.Items), nil
}

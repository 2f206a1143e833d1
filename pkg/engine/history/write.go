package history

import (
	"bytes"
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

func list(ctx context.Context, env engine.Env, namespace, uid string) ([]*appsv1.ControllerRevision, error) {
	var list appsv1.ControllerRevisionList
	if err := env.ByIndex(ctx, &list, namespace, engine.ControllerIndex, uid); err != nil {
		return nil, err
	}
	return engine.Pointers(list.Items), nil
}

// create creates a revision. If another revision has its name, it increments the collision count in the workload's
// status, which changes the next name.
func create(ctx context.Context, c client.Client, w Workload, r *appsv1.ControllerRevision) error {
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
	collisions := int32(1)
	if was := *w.Collisions; was != nil {
		collisions += *was
	}
	*w.Collisions = &collisions
	next, ok := w.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", w.Object)
	}
	return c.Status().Update(ctx, next)
}

func remove(ctx context.Context, c client.Client, all []*appsv1.ControllerRevision) error {
	for _, r := range all {
		if err := engine.Remove(ctx, c, r); err != nil {
			return err
		}
	}
	return nil
}

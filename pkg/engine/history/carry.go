package history

import (
	"context"
	"errors"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// Workload is an object with pods and revisions.
type Workload struct {
	client.Object
	Kind schema.GroupVersionKind
	// Collisions is the address of the collision count in the object's status.
	Collisions **int32
}

// Dependents are the pods and revisions that a workload controls, and the ones in its namespace without a controller.
type Dependents struct {
	Owned, Orphans                  []*corev1.Pod
	OwnedRevisions, OrphanRevisions []*appsv1.ControllerRevision
}

// Observe reads the dependents of a workload.
func Observe(ctx context.Context, env engine.Env, owner client.Object) (d Dependents, err error) {
	namespace, uid := owner.GetNamespace(), string(owner.GetUID())
	if d.Owned, err = podstate.ControlledBy(ctx, env, namespace, uid); err != nil {
		return d, err
	}
	if d.Orphans, err = podstate.ControlledBy(ctx, env, namespace, engine.NoController); err != nil {
		return d, err
	}
	if d.OwnedRevisions, err = list(ctx, env, namespace, uid); err != nil {
		return d, err
	}
	d.OrphanRevisions, err = list(ctx, env, namespace, engine.NoController)
	return d, err
}

// Actions is the part of a plan that all workloads with revisions have in common.
type Actions struct {
	Pods      engine.Claimed[*corev1.Pod]
	Revisions engine.Claimed[*appsv1.ControllerRevision]
	// Create is the template's revision if it does not exist yet. Renumber is an old revision to make the latest,
	// with Number as its revision. If either is set, the other parts of the plan are not.
	Create, Renumber *appsv1.ControllerRevision
	Number           int64
	// Forget are revisions to delete.
	Forget []*appsv1.ControllerRevision
	// More means that more must be done at once. Otherwise Again is the time until then; 0 means never.
	More  bool
	Again time.Duration
}

// Carry carries out the plan for a workload. pods creates and deletes its pods, status writes its status. Both are
// called only when the workload controls its dependents and its current revision is written.
func (a Actions) Carry(ctx context.Context, env engine.Env, w Workload,
	pods, status func() error) (engine.Result, error) {
	req := engine.RequestFor(w.GetNamespace(), w.GetName())
	switch settled, err := a.own(ctx, env.Client, w); {
	case err != nil:
		return engine.Result{}, err
	case !settled:
		env.Enqueue(req, 0)
		return engine.Result{}, nil
	}
	failed := pods()
	if failed == nil {
		failed = remove(ctx, env.Client, a.Forget)
	}
	failed = errors.Join(failed, status())
	if failed == nil && a.More {
		env.Enqueue(req, 0)
	}
	return engine.Result{RequeueAfter: a.Again}, failed
}

// own adopts and releases dependents, and writes the current revision. settled is false if that changed what the plan
// depends on, so that it must be computed again.
func (a Actions) own(ctx context.Context, c client.Client, w Workload) (settled bool, err error) {
	if err := engine.Own(ctx, c, w.Object, w.Kind, a.Pods); err != nil {
		return false, err
	}
	if err := engine.Own(ctx, c, w.Object, w.Kind, a.Revisions); err != nil {
		return false, err
	}
	switch {
	case len(a.Pods.Adopt)+len(a.Revisions.Adopt) > 0:
		return false, nil
	case a.Create != nil:
		return false, create(ctx, c, w, a.Create)
	case a.Renumber != nil:
		next := a.Renumber.DeepCopy()
		next.Revision = a.Number
		return false, client.IgnoreNotFound(c.Update(ctx, next))
	}
	return true, nil
}

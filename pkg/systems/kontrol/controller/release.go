package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/target"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/watch"
)

// unmark is the merge patch that removes Kontrol's annotations and label.
var unmark = fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null,%q:null,%q:null},"labels":{%q:null}}}`,
	kontrol.AnnotationID, kontrol.AnnotationGeneration, kontrol.AnnotationRevision, kontrol.LabelID)

// release handles a Resource that is deleted or no longer targets the cluster: it deletes or orphans the object by
// the deletion policy, then deletes the AppliedState. If the Resource no longer exists, its policy is unknown and
// the object is orphaned.
func (r *applied) release(ctx context.Context, pair watch.Pair, res *kontrol.Resource, c *kontrol.Cluster,
	a *kontrol.AppliedState) (engine.Result, error) {
	if a == nil {
		r.forget(pair)
		return engine.Result{}, nil
	}
	gone := res == nil || a.State.ResourceUID != string(res.UID)
	remove := !gone && res.Spec.DeletionPolicy != kontrol.DeletionOrphan
	asked := c != nil
	if c != nil && attempted(&a.State) {
		switch wait, err := r.leave(ctx, pair, &a.State, remove); {
		case errors.Is(err, target.ErrBusy):
			return engine.Result{}, nil
		case err != nil && remove:
			failure := explain(err, res.Spec.Mode)
			failure.Error = "the object cannot be deleted: " + failure.Error +
				": set spec.deletionPolicy to Orphan to leave it"
			return engine.Result{RequeueAfter: wait}, r.record(ctx, res, pair, a, failure)
		case err != nil:
			asked = false // orphan the object with its annotations, without waiting for late requests
		}
	}
	r.mu.Lock()
	wait := late(&a.State, r.tries[pair].Last, r.began, r.Now())
	r.mu.Unlock()
	if asked && wait > 0 {
		return engine.Result{RequeueAfter: wait}, nil
	}
	r.forget(pair)
	if err := engine.Remove(ctx, r.Client, a); err != nil {
		return engine.Result{}, err
	}
	r.wake(ctx, byWaitsFor, pair.Cluster+"/"+pair.Resource)
	return engine.Result{}, nil
}

func (r *applied) forget(pair watch.Pair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.tries, pair)
}

// lateness is how long a request may still take effect after its answer was lost.
const lateness = 5 * time.Second

// late returns how long to keep looking for a missing object. An unanswered request, or one from before this
// process began, may still create it, and no record would lead to its deletion.
func late(a *kontrol.Applied, lost, began, now time.Time) time.Duration {
	if !attempted(a) || a.Time == nil {
		return 0
	}
	var from time.Time
	switch {
	case a.Time.Time.Before(began):
		from = began
	case a.Status == kontrol.ApplyPending || a.Status == kontrol.ApplyWaiting && a.Reason == kontrol.ReasonUnreachable:
		from = a.Time.Time
	}
	if lost.After(from) {
		from = lost
	}
	return from.Add(lateness).Sub(now)
}

// leave deletes the object, or removes Kontrol's annotations and label from it, if it still belongs to the
// Resource.
func (r *applied) leave(ctx context.Context, pair watch.Pair, a *kontrol.Applied,
	remove bool) (wait time.Duration, err error) {
	t := r.pool.Get(pair.Cluster)
	if t == nil {
		return r.failed(pair, a.Generation, 0, nil, r.Now()), errors.New("the cluster is not connected")
	}
	outage := t.Status().Outage
	err = t.Do(ctx, pair.Resource, r.again(pair), func(ctx context.Context, c client.WithWatch) error {
		live, err := read(ctx, c, a.Target)
		if meta.IsNoMatchError(err) || live == nil && err == nil {
			return nil
		}
		if err != nil {
			return err
		}
		if claim(live, nil) != a.ResourceID || live.GetDeletionTimestamp() != nil {
			return nil
		}
		if remove {
			err := c.Delete(ctx, live, client.Preconditions{UID: new(live.GetUID())},
				client.PropagationPolicy(metav1.DeletePropagationBackground))
			if apierrors.IsConflict(err) {
				return nil // a new object with the same name
			}
			return client.IgnoreNotFound(err)
		}
		return client.IgnoreNotFound(c.Patch(ctx, live, client.RawPatch(types.MergePatchType, unmark),
			client.FieldOwner(kontrol.FieldManager)))
	})
	if err != nil && !errors.Is(err, target.ErrBusy) {
		wait = r.failed(pair, a.Generation, outage, nil, r.Now())
	}
	return wait, err
}

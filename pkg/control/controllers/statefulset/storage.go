package statefulset

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// errClaims means that a pod must wait for its claims.
var errClaims = errors.New("claims are not ready")

// ofClaim maps a deleted claim to the set whose pod may be waiting for its name.
func ofClaim(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	if is != nil {
		return nil
	}
	var list appsv1.StatefulSetList
	if err := env.Cache.List(ctx, &list, client.InNamespace(was.GetNamespace())); err != nil {
		env.Log.Warn("could not list the sets of a claim", "claim", was.GetNamespace()+"/"+was.GetName(), "error", err)
		return nil
	}
	return engine.Requests(list.Items, func(set *appsv1.StatefulSet) bool { return hasClaim(set, was.GetName()) })
}

func (r *reconciler) claim(ctx context.Context, set *appsv1.StatefulSet, pod *corev1.Pod) error {
	_, whenScaled := deletes(set)
	for _, c := range claims(set, Ordinal(set, pod.Name)) {
		var have corev1.PersistentVolumeClaim
		err := r.Cache.Get(ctx, client.ObjectKeyFromObject(c), &have)
		switch {
		case err == nil && have.DeletionTimestamp != nil:
			return fmt.Errorf("%w: pvc %s is being deleted", errClaims, c.Name)
		case err == nil && whenScaled && stale(&have, pod):
			return fmt.Errorf("%w: pvc %s is of an earlier pod", errClaims, c.Name)
		case err == nil:
			continue
		case !apierrors.IsNotFound(err):
			return err
		}
		c.OwnerReferences, _ = owners(c, set, pod, false)
		err = r.Client.Create(ctx, c)
		if apierrors.IsAlreadyExists(err) || engine.Terminating(err) {
			return err
		}
		if err != nil {
			r.Events.Event(set, corev1.EventTypeWarning, "FailedCreate",
				"Create Claim %s for Pod %s in StatefulSet %s failed error: %s", c.Name, pod.Name, set.Name, err)
			return fmt.Errorf("failed to create PVC %s: %w", c.Name, err)
		}
		r.Events.Event(set, corev1.EventTypeNormal, "SuccessfulCreate", "Create Claim %s Pod %s in StatefulSet %s success",
			c.Name, pod.Name, set.Name)
	}
	return nil
}

// retain sets the owners of the claims of a set's pods according to the retention policy.
func (r *reconciler) retain(ctx context.Context, set *appsv1.StatefulSet, pods []*corev1.Pod) error {
	for _, pod := range pods {
		ordinal := Ordinal(set, pod.Name)
		if ordinal < 0 {
			continue
		}
		for i := range set.Spec.VolumeClaimTemplates {
			key := client.ObjectKey{
				Namespace: set.Namespace, Name: claimName(set, set.Spec.VolumeClaimTemplates[i].Name, ordinal),
			}
			var have corev1.PersistentVolumeClaim
			if err := r.Cache.Get(ctx, key, &have); apierrors.IsNotFound(err) {
				continue
			} else if err != nil {
				return err
			}
			refs, conflict := owners(&have, set, pod, !within(set, ordinal))
			if conflict {
				r.Events.Event(set, corev1.EventTypeWarning, "ConflictingController",
					"PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a managing controller, the retention "+
						"policy is ignored for this claim", have.Name)
			}
			if len(refs) == len(have.OwnerReferences) &&
				(len(refs) == 0 || equality.Semantic.DeepEqual(refs, have.OwnerReferences)) {
				continue
			}
			next := have.DeepCopy()
			next.OwnerReferences = refs
			if err := r.Client.Update(ctx, next); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("could not update claim %s for delete policy ownerRefs: %w", have.Name, err)
			}
		}
	}
	return nil
}

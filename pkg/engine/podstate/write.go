package podstate

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// ControlledBy lists the pods in a namespace that uid controls, or the pods without a controller if uid is
// engine.NoController.
func ControlledBy(ctx context.Context, env engine.Env, namespace, uid string) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := env.ByIndex(ctx, &list, namespace, engine.ControllerIndex, uid); err != nil {
		return nil, err
	}
	return engine.Pointers(list.Items), nil
}

// Create creates a pod of owner and records the result with upstream's events.
func Create(ctx context.Context, env engine.Env, owner client.Object, p *corev1.Pod) error {
	err := env.Client.Create(ctx, p)
	switch {
	case err == nil:
		env.Events.Event(owner, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", p.Name)
	case !engine.Terminating(err):
		env.Events.Event(owner, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
	}
	return err
}

// Delete deletes pods of owner in parallel and records the results with upstream's events. A pod that was deleted or
// replaced meanwhile is no error.
func Delete(ctx context.Context, env engine.Env, owner client.Object, pods []*corev1.Pod) error {
	return engine.Parallel(len(pods), func(i int) error {
		p := pods[i]
		err := env.Client.Delete(ctx, p, engine.Preconditions(p))
		if err == nil {
			env.Events.Event(owner, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", p.Name)
		} else if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			env.Events.Event(owner, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
			return err
		}
		return nil
	})
}

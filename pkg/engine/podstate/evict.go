package podstate

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// Eviction is why a pod is deleted: the reason and message of its DisruptionTarget condition, and its event.
type Eviction struct {
	Reason, Message string
	Event, Note     string
}

// Evict sets a pod's DisruptionTarget condition, records the event, and deletes the pod. A pod that was deleted or
// replaced meanwhile is no error.
func Evict(ctx context.Context, env engine.Env, p *corev1.Pod, why Eviction) error {
	conditions, changed := WithCondition(p.Status.Conditions, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: why.Reason, Message: why.Message,
		ObservedGeneration: p.Generation,
	}, env.Now())
	if changed {
		next := p.DeepCopy()
		next.Status.Conditions = conditions
		if err := env.Client.Status().Update(ctx, next); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	env.Events.Event(p, corev1.EventTypeNormal, why.Event, "%s", why.Note)
	return engine.Remove(ctx, env.Client, p)
}

package podstate

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// Evict sets a pod's DisruptionTarget condition, calls record, which records an event, and deletes the pod. A pod that
// was deleted or replaced meanwhile is no error.
func Evict(ctx context.Context, env engine.Env, p *corev1.Pod, reason, message string, record func()) error {
	conditions, changed := WithCondition(p.Status.Conditions, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: message,
		ObservedGeneration: p.Generation,
	}, env.Now())
	if changed {
		next := p.DeepCopy()
		next.Status.Conditions = conditions
		if err := env.Client.Status().Update(ctx, next); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	record()
	return engine.Remove(ctx, env.Client, p)
}

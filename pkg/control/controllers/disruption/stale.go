package disruption

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// staleAfter is the age at which the DisruptionTarget condition of a pod that is not terminating is stale.
const staleAfter = 2 * time.Minute

// NewStale declares the reconciler that resets stale DisruptionTarget conditions.
func NewStale() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "staledisruption", Account: account, Workers: 1,
		Watches: []engine.Watch{
			{Object: &corev1.Pod{}, Map: func(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
				if p, ok := o.(*corev1.Pod); ok && marked(p) != nil {
					return []engine.Request{engine.RequestFor(p.Namespace, p.Name)}
				}
				return nil
			}},
		},
		Writes: []engine.Write{{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Status}}},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, func(ctx context.Context, p *corev1.Pod) (engine.Result, error) {
				stale, in := Stale(p, env.Now())
				if !stale {
					return engine.Result{RequeueAfter: in}, nil
				}
				next := p.DeepCopy()
				next.Status.Conditions, _ = podstate.WithCondition(p.Status.Conditions, corev1.PodCondition{
					Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, ObservedGeneration: p.Generation}, env.Now())
				return engine.Result{}, env.Client.Status().Update(ctx, next)
			})
		},
	}
}

// Stale reports whether a pod's DisruptionTarget condition must be reset. in is the time until then, 0 for now or
// never.
func Stale(p *corev1.Pod, now time.Time) (stale bool, in time.Duration) {
	c := marked(p)
	if c == nil {
		return false, 0
	}
	in = c.LastTransitionTime.Add(staleAfter).Sub(now)
	return in <= 0, max(in, 0)
}

// marked returns the DisruptionTarget condition of an active pod, or nil. It ignores conditions that the kubelet
// set: the kubelet may take any time to end the pod.
func marked(p *corev1.Pod) *corev1.PodCondition {
	c := podstate.Condition(p, corev1.DisruptionTarget)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason == corev1.PodReasonTerminationByKubelet ||
		!podstate.Active(p) {
		return nil
	}
	return c
}

// Package podgc deletes the pods that nobody else deletes: those of missing nodes, those that were deleted before they had a node, and
// terminated ones beyond a threshold.
//
// It may import engine. Its invariant: it deletes no pod that an existing node could still run.
package podgc

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
	"github.com/coracle-dev/coracle/pkg/reconcile/engine/podstate"
)

// Requests: a node, by name; a pod, by namespace and name; or terminated, for all terminated pods.
var terminated = engine.RequestFor("", "*")

// settle is the delay after which terminated pods are counted, in one pass for all.
const settle = 20 * time.Second

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "podgc", Account: "pod-garbage-collector", Workers: 1,
		Watches: []engine.Watch{
			{Object: &corev1.Node{}, Event: func(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
				if is == nil {
					return []engine.Request{engine.RequestFor("", was.GetName())}
				}
				return nil
			}},
			{Object: &corev1.Pod{}, Event: pods},
		},
		Writes: []engine.Write{{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Delete, engine.Status}}},
		Indexes: []engine.Index{podstate.ByNode(), {
			Object: &corev1.Pod{}, Name: "status.phase", Values: func(o client.Object) []string {
				if p, ok := o.(*corev1.Pod); ok {
					return []string{string(p.Status.Phase)}
				}
				return nil
			},
		}},
		New: func(env engine.Env) engine.Func {
			return newReconciler(env, env.ByIndex).reconcile
		},
	}
}

func pods(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	p, ok := is.(*corev1.Pod)
	if !ok {
		return nil
	}
	old, _ := was.(*corev1.Pod)
	c := classify(old, p)
	if c.terminated {
		env.Enqueue(terminated, settle)
	}
	if c.unscheduled {
		return []engine.Request{engine.RequestFor(p.Namespace, p.Name)}
	}
	var n corev1.Node
	if c.newOnNode && apierrors.IsNotFound(env.Cache.Get(ctx, client.ObjectKey{Name: p.Spec.NodeName}, &n)) {
		return []engine.Request{engine.RequestFor("", p.Spec.NodeName)}
	}
	return nil
}

type reconciler struct {
	engine.Env
	byIndex func(ctx context.Context, list client.ObjectList, namespace, index, value string) error

	mu      sync.Mutex
	missing map[string]time.Time // nodes, since when
}

func newReconciler(env engine.Env, byIndex func(context.Context, client.ObjectList, string, string, string) error) *reconciler {
	return &reconciler{Env: env, byIndex: byIndex, missing: map[string]time.Time{}}
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	switch {
	case req == terminated:
		return engine.Result{}, r.trim(ctx)
	case req.Namespace != "":
		var p corev1.Pod
		if err := r.Cache.Get(ctx, req.NamespacedName, &p); err != nil {
			return engine.Result{}, client.IgnoreNotFound(err)
		}
		if p.DeletionTimestamp == nil || p.Spec.NodeName != "" {
			return engine.Result{}, nil
		}
		return engine.Result{}, r.remove(ctx, &p, "")
	}
	var n corev1.Node
	err := r.Cache.Get(ctx, req.NamespacedName, &n)
	if err == nil {
		r.present(req.Name)
		return engine.Result{}, nil
	}
	if !apierrors.IsNotFound(err) {
		return engine.Result{}, err
	}
	now := r.Now()
	if in := PlanNode(r.missingSince(req.Name, now), now); in > 0 {
		return engine.Result{RequeueAfter: in}, nil
	}
	var pods corev1.PodList
	if err := r.byIndex(ctx, &pods, "", podstate.NodeIndex, req.Name); err != nil {
		return engine.Result{}, err
	}
	for i := range pods.Items {
		if err := r.remove(ctx, &pods.Items[i], "PodGC: node no longer exists"); err != nil {
			return engine.Result{}, err
		}
	}
	r.present(req.Name)
	return engine.Result{}, nil
}

func (r *reconciler) missingSince(node string, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.missing[node]
	if !ok {
		at = now
		r.missing[node] = at
	}
	return at
}

func (r *reconciler) present(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.missing, node)
}

// remove deletes a pod without a grace period. With a reason, a pod that has not terminated is marked as failed first.
func (r *reconciler) remove(ctx context.Context, p *corev1.Pod, why string) error {
	if why != "" && !podstate.Ended(p) {
		next := p.DeepCopy()
		next.Status.Phase = corev1.PodFailed
		next.Status.Conditions, _ = podstate.WithCondition(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC", Message: why, ObservedGeneration: p.Generation,
		}, r.Now())
		// A patch, as upstream's role allows nothing else.
		if err := r.Client.Status().Patch(ctx, next, client.MergeFromWithOptions(p, client.MergeFromWithOptimisticLock{})); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	err := r.Client.Delete(ctx, p, engine.Preconditions(p), client.GracePeriodSeconds(0))
	if apierrors.IsConflict(err) {
		return nil // replaced meanwhile
	}
	return client.IgnoreNotFound(err)
}

func (r *reconciler) trim(ctx context.Context) error {
	var all []*corev1.Pod
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		var list corev1.PodList
		if err := r.byIndex(ctx, &list, "", "status.phase", string(phase)); err != nil {
			return err
		}
		for i := range list.Items {
			all = append(all, &list.Items[i])
		}
	}
	for _, p := range PlanTerminated(all, TerminatedThreshold) {
		if err := r.remove(ctx, p, ""); err != nil {
			return err
		}
	}
	return nil
}

// Package tainteviction deletes pods from nodes with NoExecute taints that they do not tolerate, or no longer tolerate.
// Its invariant: a pod that tolerates a node's taints forever stays.
package tainteviction

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// New declares the reconciler.
func New() *engine.Reconciler {
	seen := &sightings{}
	return &engine.Reconciler{
		Name: "tainteviction", Account: "node-controller", Workers: 2,
		Watches: []engine.Watch{
			{Object: &corev1.Node{}, Event: seen.nodes},
			{Object: &corev1.Pod{}, Map: nodeOf, Changed: func(was, is client.Object) bool {
				a, ok1 := was.(*corev1.Pod)
				b, ok2 := is.(*corev1.Pod)
				return !ok1 || !ok2 || a.Spec.NodeName != b.Spec.NodeName ||
					!equality.Semantic.DeepEqual(a.Spec.Tolerations, b.Spec.Tolerations)
			}},
		},
		Writes: []engine.Write{
			{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Delete, engine.Status}},
		},
		Indexes: []engine.Index{podstate.ByNode()},
		New: func(env engine.Env) engine.Func {
			seen.reset()
			return (&reconciler{env, seen}).reconcile
		},
	}
}

// nodeOf maps a pod to its node if the node has NoExecute taints.
func nodeOf(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	p, ok := o.(*corev1.Pod)
	if !ok || p.Spec.NodeName == "" || p.DeletionTimestamp != nil {
		return nil
	}
	var n corev1.Node
	if env.Cache.Get(ctx, client.ObjectKey{Name: p.Spec.NodeName}, &n) != nil {
		return nil
	}
	for i := range n.Spec.Taints {
		if n.Spec.Taints[i].Effect == corev1.TaintEffectNoExecute {
			return []engine.Request{engine.RequestFor("", n.Name)}
		}
	}
	return nil
}

type reconciler struct {
	engine.Env
	seen *sightings
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var n corev1.Node
	err := r.Cache.Get(ctx, req.NamespacedName, &n)
	if client.IgnoreNotFound(err) != nil {
		return engine.Result{}, err
	}
	now := r.Now()
	since := r.seen.note(req.Name, n.Spec.Taints, now)
	if len(n.Spec.Taints) == 0 {
		return engine.Result{}, nil
	}
	var pods corev1.PodList
	if err := r.ByIndex(ctx, &pods, "", podstate.NodeIndex, n.Name); err != nil {
		return engine.Result{}, err
	}
	var again time.Duration
	var failed []error
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp != nil || podstate.Ended(p) {
			continue
		}
		leaves, in := Plan(p, n.Spec.Taints, since, now)
		switch {
		case !leaves:
		case in > 0:
			if again == 0 || in < again {
				again = in
			}
		default:
			failed = append(failed, podstate.Evict(ctx, r.Env, p, "DeletionByTaintManager",
				"Taint manager: deleting due to NoExecute taint", func() {
					r.Events.Event(p, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s/%s",
						p.Namespace, p.Name)
				}))
		}
	}
	return engine.Result{RequeueAfter: again}, errors.Join(failed...)
}

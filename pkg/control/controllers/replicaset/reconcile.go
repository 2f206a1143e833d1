// Package replicaset maintains the number of pods that a ReplicaSet or a ReplicationController specifies. A
// ReplicationController is converted to an equivalent ReplicaSet. Its invariant: it deletes only pods that the set
// controls.
package replicaset

import (
	"context"
	"errors"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// New returns the reconciler of ReplicaSets.
func New() *engine.Reconciler { return declare("replicaset", replicaSets) }

// NewReplication returns the reconciler of ReplicationControllers.
func NewReplication() *engine.Reconciler { return declare("replication", replicationControllers) }

func declare(name string, f family) *engine.Reconciler {
	return &engine.Reconciler{
		Name: name, Workers: 4,
		Watches: []engine.Watch{
			{Object: f.object()},
			{Object: &corev1.Pod{}, Map: f.sets()},
		},
		Writes: []engine.Write{
			{Object: f.object(), Parts: []engine.Part{engine.Status}},
			{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Metadata}},
		},
		Indexes: []engine.Index{engine.ByController(&corev1.Pod{}), engine.ByController(f.object())},
		New: func(env engine.Env) engine.Func {
			return engine.EachOf(env, f.object, (&reconciler{env, f}).reconcile)
		},
	}
}

type reconciler struct {
	engine.Env
	family
}

func (r *reconciler) reconcile(ctx context.Context, self client.Object) (engine.Result, error) {
	rs := r.view(self)
	o, err := r.observe(ctx, rs)
	if err != nil {
		return engine.Result{}, err
	}
	now := r.Now()
	a, err := Plan(o, now)
	if err != nil {
		return engine.Result{}, err
	}
	if err := engine.Own(ctx, r.Client, self, r.kind, a.Claimed); err != nil {
		return engine.Result{}, err
	}
	reason, failed := r.scale(ctx, self, rs, a)
	want := withFailure(a.Status, reason, failed, now)
	if next := r.withStatus(self, want); !equality.Semantic.DeepEqual(r.view(next).Status, rs.Status) {
		if err := r.Client.Status().Update(ctx, next); err != nil {
			return engine.Result{}, errors.Join(failed, err)
		}
	}
	if failed == nil && a.More {
		r.Enqueue(engine.RequestFor(rs.Namespace, rs.Name), 0)
	}
	return engine.Result{RequeueAfter: a.Again}, failed
}

func (r *reconciler) observe(ctx context.Context, rs *appsv1.ReplicaSet) (o Observed, err error) {
	o.Set = rs
	if o.Owned, err = podstate.ControlledBy(ctx, r.Env, rs.Namespace, string(rs.UID)); err != nil {
		return o, err
	}
	if o.Orphans, err = podstate.ControlledBy(ctx, r.Env, rs.Namespace, engine.NoController); err != nil {
		return o, err
	}
	if int(replicas(rs)) >= len(o.Owned)+len(o.Orphans) {
		return o, nil // nothing to delete or rank
	}
	o.OnNode = map[string]int{}
	siblings := []types.UID{rs.UID}
	if ref := metav1.GetControllerOfNoCopy(rs); ref != nil {
		all := r.list()
		if err := r.ByIndex(ctx, all, rs.Namespace, engine.ControllerIndex, string(ref.UID)); err != nil {
			return o, err
		}
		for s := range r.views(all) {
			if !slices.Contains(siblings, s.UID) {
				siblings = append(siblings, s.UID)
			}
		}
	}
	for _, uid := range siblings {
		pods, err := podstate.ControlledBy(ctx, r.Env, rs.Namespace, string(uid))
		if err != nil {
			return o, err
		}
		for _, p := range pods {
			if podstate.Active(p) {
				o.OnNode[p.Spec.NodeName]++
			}
		}
	}
	return o, nil
}

func (r *reconciler) scale(ctx context.Context, self client.Object, rs *appsv1.ReplicaSet,
	a Actions) (reason string, err error) {
	err = engine.SlowStart(a.Create, func(int) error {
		return podstate.Create(ctx, r.Env, self, podstate.FromTemplate(&rs.Spec.Template, self, r.kind))
	})
	if engine.Terminating(err) {
		return "", nil
	}
	if err != nil {
		return "FailedCreate", err
	}
	return "FailedDelete", podstate.Delete(ctx, r.Env, self, a.Delete)
}

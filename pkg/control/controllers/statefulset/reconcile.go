// Package statefulset maintains the pods of a StatefulSet and their identities. Its invariant: an ordinal never has
// more than one pod. With ordered pod management, no pod is created, deleted or updated while a pod that precedes it is
// unavailable.
package statefulset

import (
	"context"
	"errors"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/history"
)

var kind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "statefulset", Workers: 4,
		Watches: []engine.Watch{
			{Object: &appsv1.StatefulSet{}},
			{Object: &corev1.Pod{}, Map: sets, Batch: group},
			{Object: &appsv1.ControllerRevision{}, Map: engine.Controller(kind.GroupKind())},
			{Object: &corev1.PersistentVolumeClaim{}, Event: ofClaim},
		},
		Writes: []engine.Write{
			{Object: &appsv1.StatefulSet{}, Parts: []engine.Part{engine.Status}},
			{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Metadata}},
			{Object: &corev1.PersistentVolumeClaim{}, Parts: []engine.Part{engine.Create, engine.Metadata}},
			history.Writes(),
		},
		Indexes: []engine.Index{engine.ByController(&corev1.Pod{}), engine.ByController(&appsv1.ControllerRevision{})},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, (&reconciler{env}).reconcile)
		},
	}
}

// namesake returns the name of the set that the pod's name implies, or "".
func namesake(pod client.Object) string {
	i := strings.LastIndexByte(pod.GetName(), '-')
	if i <= 0 || strings.Trim(pod.GetName()[i+1:], "0123456789") != "" {
		return ""
	}
	return pod.GetName()[:i]
}

func controller(pod client.Object) string {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != kind.Kind || ref.APIVersion != kind.GroupVersion().String() {
		return ""
	}
	return ref.Name
}

// sets maps a pod to its controller, and to the set that its name implies, which may adopt the pod or wait for its
// name. Most pods with a number at the end belong to no set, for example the pods of Tasks.
func sets(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	var out []engine.Request
	a, b := namesake(o), controller(o)
	if a != "" && (a == b || exists(ctx, env, o.GetNamespace(), a)) {
		out = append(out, engine.RequestFor(o.GetNamespace(), a))
	}
	if b != "" && b != a {
		out = append(out, engine.RequestFor(o.GetNamespace(), b))
	}
	return out
}

func exists(ctx context.Context, env engine.Env, namespace, name string) bool {
	var set appsv1.StatefulSet
	return !apierrors.IsNotFound(env.Cache.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &set))
}

// group returns a key for the result of sets, so that a burst of changes is batched.
func group(o client.Object) string {
	return o.GetNamespace() + "/" + namesake(o) + "/" + controller(o)
}

type reconciler struct{ engine.Env }

func (r *reconciler) reconcile(ctx context.Context, set *appsv1.StatefulSet) (engine.Result, error) {
	dependents, err := history.Observe(ctx, r.Env, set)
	if err != nil {
		return engine.Result{}, err
	}
	a, err := Plan(Observed{set, dependents}, r.Now())
	if err != nil {
		return engine.Result{}, err
	}
	return a.Carry(ctx, r.Env, history.Workload{Object: set, Kind: kind, Collisions: &set.Status.CollisionCount},
		func() error { return r.pods(ctx, set, a) },
		func() error { return engine.SetStatus(ctx, r.Client, set, &set.Status, a.Status) })
}

func (r *reconciler) pods(ctx context.Context, set *appsv1.StatefulSet, a Actions) error {
	if err := r.retain(ctx, set, a.Pods.All); err != nil {
		return err
	}
	created := engine.SlowStart(len(a.Run), func(i int) error { return r.create(ctx, set, a.Run[i]) })
	for _, p := range a.Repair {
		next := p.DeepCopy()
		identify(set, next)
		if err := client.IgnoreNotFound(r.Client.Patch(ctx, next, client.MergeFrom(p))); err != nil {
			r.record(set, "update", p, err)
			return errors.Join(created, err)
		}
		r.record(set, "update", p, nil)
	}
	deleted := engine.Parallel(len(a.Delete), func(i int) error {
		p := a.Delete[i]
		err := r.Client.Delete(ctx, p, engine.Preconditions(p))
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil // it is deleted, or another pod has its name
		}
		r.record(set, "delete", p, err)
		return err
	})
	return errors.Join(created, deleted)
}

func (r *reconciler) create(ctx context.Context, set *appsv1.StatefulSet, p *corev1.Pod) error {
	err := r.claim(ctx, set, p)
	if errors.Is(err, errClaims) {
		return nil // the deletion of the claims enqueues the set
	}
	if err == nil {
		err = r.Client.Create(ctx, p)
	}
	if engine.Terminating(err) {
		return err
	}
	if apierrors.IsAlreadyExists(err) {
		var there corev1.Pod
		if get := r.Client.Get(ctx, client.ObjectKeyFromObject(p), &there); get != nil {
			return err
		}
		if there.DeletionTimestamp != nil {
			return nil // its deletion enqueues the set
		}
	}
	r.record(set, "create", p, err)
	return err
}

// record records an event about a pod, with upstream's messages.
func (r *reconciler) record(set *appsv1.StatefulSet, verb string, p *corev1.Pod, err error) {
	title := strings.ToUpper(verb[:1]) + verb[1:]
	if err == nil {
		r.Events.Event(set, corev1.EventTypeNormal, "Successful"+title, "%s Pod %s in StatefulSet %s successful", title,
			p.Name, set.Name)
	} else {
		r.Events.Event(set, corev1.EventTypeWarning, "Failed"+title, "%s Pod %s in StatefulSet %s failed error: %s", title,
			p.Name, set.Name, err)
	}
}

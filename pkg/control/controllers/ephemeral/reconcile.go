// Package ephemeral creates the claims of generic ephemeral volumes (KEP-1698). The pod owns them, so they are deleted
// with it. Its invariant: it never changes an existing claim.
package ephemeral

import (
	"context"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "ephemeral-volume", Workers: 2,
		Watches: []engine.Watch{
			{Object: &corev1.Pod{}, Event: ofPod},
			{Object: &corev1.PersistentVolumeClaim{}, Event: ofClaim},
		},
		Writes: []engine.Write{{Object: &corev1.PersistentVolumeClaim{}, Parts: []engine.Part{engine.Create}}},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, func(ctx context.Context, p *corev1.Pod) (engine.Result, error) {
				return engine.Result{}, reconcile(ctx, env, p)
			})
		},
	}
}

// ofPod maps a new pod with ephemeral volumes to itself.
func ofPod(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
	if p, ok := is.(*corev1.Pod); ok && was == nil &&
		slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Ephemeral != nil }) {
		return []engine.Request{engine.RequestFor(p.Namespace, p.Name)}
	}
	return nil
}

// ofClaim maps a deleted claim to the pods that need it again or waited for its name.
func ofClaim(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	if is != nil {
		return nil
	}
	var pods corev1.PodList
	if err := env.Cache.List(ctx, &pods, client.InNamespace(was.GetNamespace())); err != nil {
		env.Log.Warn("could not list pods", "namespace", was.GetNamespace(), "error", err)
		return nil
	}
	return engine.Requests(pods.Items, func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Ephemeral != nil && ephemeral.VolumeClaimName(p, &v) == was.GetName()
		})
	})
}

// Plan returns the claims to create for a pod. The error lists claims with the required name that belong to others.
func Plan(p *corev1.Pod,
	have func(name string) *corev1.PersistentVolumeClaim) (create []*corev1.PersistentVolumeClaim, err error) {
	if p.DeletionTimestamp != nil || podstate.Ended(p) {
		return nil, nil
	}
	var errs []error
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		name := ephemeral.VolumeClaimName(p, v)
		if c := have(name); c != nil {
			errs = append(errs, ephemeral.VolumeIsForPod(p, c))
			continue
		}
		t := v.Ephemeral.VolumeClaimTemplate
		create = append(create, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: p.Namespace, Name: name, Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations),
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))},
			},
			Spec: *t.Spec.DeepCopy(),
		})
	}
	return create, errors.Join(errs...)
}

func reconcile(ctx context.Context, env engine.Env, p *corev1.Pod) error {
	var read error
	create, err := Plan(p, func(name string) *corev1.PersistentVolumeClaim {
		var c corev1.PersistentVolumeClaim
		if err := env.Cache.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: name}, &c); err != nil {
			if !apierrors.IsNotFound(err) {
				read = err
			}
			return nil
		}
		return &c
	})
	if read != nil {
		return read
	}
	if err != nil {
		env.Events.Event(p, corev1.EventTypeWarning, "FailedBinding", "%s", err)
	}
	for _, c := range create {
		switch failed := env.Client.Create(ctx, c); {
		case failed == nil, apierrors.IsAlreadyExists(failed):
		case engine.Terminating(failed):
			return nil
		default:
			env.Events.Event(p, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume: create PVC %s: %s", c.Name, failed)
			return failed
		}
	}
	return nil // another owner's claim of that name is watched
}

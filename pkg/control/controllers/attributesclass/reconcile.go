// Package attributesclass protects VolumeAttributesClasses that are in use from deletion. Its invariant: a class that a
// claim or a volume names has the protection finalizer.
package attributesclass

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// index finds claims and volumes by the class that they name.
const index = "volumeAttributesClassName"

// New declares the reconciler. Its requests are classes.
func New() *engine.Reconciler {
	class, claim, volume := &storagev1.VolumeAttributesClass{}, &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	return &engine.Reconciler{
		Name: "volumeattributesclass-protection", Workers: 1, When: class,
		Watches: []engine.Watch{
			{Object: class},
			{Object: claim, Event: dropped},
			{Object: volume, Event: dropped},
		},
		Writes:  []engine.Write{{Object: class, Parts: []engine.Part{engine.Finalizers}}},
		Indexes: []engine.Index{{Object: claim, Name: index, Values: named}, {Object: volume, Name: index, Values: named}},
		New: func(env engine.Env) engine.Func {
			return engine.Each(env, (&reconciler{env}).reconcile)
		},
	}
}

// dropped maps a claim or a volume to the classes that it no longer names.
func dropped(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
	if was == nil {
		return nil
	}
	var left []string
	if is != nil {
		left = named(is)
	}
	var out []engine.Request
	for _, name := range named(was) {
		if !slices.Contains(left, name) {
			out = append(out, engine.RequestFor("", name))
		}
	}
	return out
}

type reconciler struct{ engine.Env }

func (r *reconciler) reconcile(ctx context.Context, c *storagev1.VolumeAttributesClass) (engine.Result, error) {
	used := false
	for _, list := range []client.ObjectList{&corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}} {
		if err := r.ByIndex(ctx, list, "", index, c.Name); err != nil {
			return engine.Result{}, err
		}
		used = used || meta.LenList(list) > 0
	}
	finalizers := Plan(c, used)
	if slices.Equal(finalizers, c.Finalizers) {
		return engine.Result{}, nil
	}
	next := c.DeepCopy()
	next.Finalizers = finalizers
	return engine.Result{}, r.Client.Update(ctx, next)
}

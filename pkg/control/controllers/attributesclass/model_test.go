package attributesclass

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine/model"
)

// TestModel: whatever happens to classes, claims and volumes, and wherever the process is killed, a class keeps
// its finalizer while the reconciler sees a reference to it. A class without references can be deleted.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := model.New(t, New())
		class, name := rapid.SampledFrom([]string{"gold", "silver"}), rapid.SampledFrom([]string{"x", "y"})
		maybe := func(t *rapid.T, label string) *string {
			if !rapid.Bool().Draw(t, label) {
				return nil
			}
			return new(class.Draw(t, label))
		}
		used := func(class string) bool {
			for _, c := range model.Cached[*corev1.PersistentVolumeClaim](w) {
				if slices.Contains(named(c), class) {
					return true
				}
			}
			for _, v := range model.Cached[*corev1.PersistentVolume](w) {
				if slices.Contains(named(v), class) {
					return true
				}
			}
			return false
		}
		w.OnUpdate = func(was, is client.Object) {
			if slices.Contains(was.GetFinalizers(), protection) && !slices.Contains(is.GetFinalizers(), protection) &&
				used(is.GetName()) {
				w.T.Fatalf("class %s, which is used, loses its protection", is.GetName())
			}
		}
		w.Live(map[string]func(*rapid.T){
			"class comes": func(t *rapid.T) {
				w.Create(&storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: class.Draw(t, "class")}})
			},
			"class goes": func(t *rapid.T) { model.Delete[*storagev1.VolumeAttributesClass](w, class.Draw(t, "class")) },
			"claim comes": func(t *rapid.T) {
				w.Create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name.Draw(t, "claim")},
					Spec: corev1.PersistentVolumeClaimSpec{VolumeAttributesClassName: maybe(t, "class")}})
			},
			"claim changes": func(t *rapid.T) {
				spec, current, target := maybe(t, "spec"), maybe(t, "current"), maybe(t, "target")
				model.Update(w, name.Draw(t, "claim"), func(c *corev1.PersistentVolumeClaim) {
					c.Spec.VolumeAttributesClassName, c.Status.CurrentVolumeAttributesClassName, c.Status.ModifyVolumeStatus = spec,
						current, nil
					if target != nil {
						c.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: *target}
					}
				})
			},
			"claim goes": func(t *rapid.T) { model.Delete[*corev1.PersistentVolumeClaim](w, name.Draw(t, "claim")) },
			"volume comes": func(t *rapid.T) {
				w.Create(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name.Draw(t, "volume")},
					Spec: corev1.PersistentVolumeSpec{VolumeAttributesClassName: maybe(t, "class")}})
			},
			"volume changes": func(t *rapid.T) {
				spec := maybe(t, "spec")
				model.Update(w, name.Draw(t, "volume"), func(v *corev1.PersistentVolume) {
					v.Spec.VolumeAttributesClassName = spec
				})
			},
			"volume goes": func(t *rapid.T) { model.Delete[*corev1.PersistentVolume](w, name.Draw(t, "volume")) },
		}, func() {})
		w.Settle(0)
		for name, c := range model.Stored[*storagev1.VolumeAttributesClass](w) {
			if !slices.Contains(c.Finalizers, protection) {
				t.Fatalf("class %s is not protected", name)
			}
			if c.DeletionTimestamp != nil && !used(name) {
				t.Fatalf("class %s, which nothing names, does not go", name)
			}
		}
	})
}

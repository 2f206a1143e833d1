package attributesclass

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// protection is upstream's finalizer. It keeps a class from being deleted while a claim or a volume names it.
const protection = "kubernetes.io/vac-protection"

// Plan returns the finalizers that a class should have.
func Plan(c *storagev1.VolumeAttributesClass, used bool) []string {
	has := slices.Contains(c.Finalizers, protection)
	switch {
	case c.DeletionTimestamp == nil && !has:
		return append(slices.Clone(c.Finalizers), protection)
	case c.DeletionTimestamp != nil && has && !used:
		return slices.DeleteFunc(slices.Clone(c.Finalizers), func(f string) bool { return f == protection })
	}
	return c.Finalizers
}

// named returns the classes that a claim or a volume names. While a claim changes its class it names the old and
// the new one.
func named(o client.Object) []string {
	var out []string
	add := func(name *string) {
		if name != nil && *name != "" && !slices.Contains(out, *name) {
			out = append(out, *name)
		}
	}
	switch o := o.(type) {
	case *corev1.PersistentVolume:
		add(o.Spec.VolumeAttributesClassName)
	case *corev1.PersistentVolumeClaim:
		add(o.Spec.VolumeAttributesClassName)
		add(o.Status.CurrentVolumeAttributesClassName)
		if s := o.Status.ModifyVolumeStatus; s != nil {
			add(&s.TargetVolumeAttributesClassName)
		}
	}
	return out
}

package volumebinding

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helpers "k8s.io/component-helpers/storage/volume"

	"github.com/coracle-dev/coracle/apis/storage"
)

// volumeProtection keeps a volume from being deleted while a claim is bound to it.
const volumeProtection = "kubernetes.io/pv-protection"

// PlanVolume returns the next step towards a volume's phase and its reclamation. claim is the claim that the
// claimRef names, possibly with another UID, nil if it does not exist.
func PlanVolume(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) Step {
	if ref := v.Spec.ClaimRef; ref != nil && claim != nil && ref.UID != "" && ref.UID != claim.UID {
		claim = nil // the claim was deleted, and another one has its name
	}
	if v.DeletionTimestamp == nil && !slices.Contains(v.Finalizers, volumeProtection) {
		return updateVolume(v, func(v *corev1.PersistentVolume) { v.Finalizers = append(v.Finalizers, volumeProtection) })
	}
	if step := planPhase(v, claim); step.Op != Nothing || step.Event != nil {
		return step
	}
	free := v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID == ""
	released := v.Status.Phase == corev1.VolumeReleased || v.Status.Phase == corev1.VolumeFailed
	if step := reclaim(v, free, released); step.Op != Nothing || step.Event != nil {
		return step
	}
	if v.DeletionTimestamp != nil && v.Status.Phase != corev1.VolumeBound &&
		slices.Contains(v.Finalizers, volumeProtection) {
		return updateVolume(v, func(v *corev1.PersistentVolume) { v.Finalizers = without(v.Finalizers, volumeProtection) })
	}
	return Step{}
}

func planPhase(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) Step {
	ref := v.Spec.ClaimRef
	switch {
	case ref == nil || ref.UID == "":
		return phase(v, corev1.VolumeAvailable, "")
	case claim == nil:
		if v.Status.Phase == corev1.VolumeReleased || v.Status.Phase == corev1.VolumeFailed {
			return Step{}
		}
		return phase(v, corev1.VolumeReleased, "")
	case claim.Spec.VolumeName == "":
		if helpers.CheckVolumeModeMismatches(&claim.Spec, &v.Spec) {
			return Step{}.because(v, corev1.EventTypeWarning, "VolumeMismatch",
				"Cannot bind PersistentVolume to requested PersistentVolumeClaim "+
					fmt.Sprintf("%q due to incompatible volumeMode.", claim.Name))
		}
		return Step{} // the claim's plan continues
	case claim.Spec.VolumeName == v.Name:
		return phase(v, corev1.VolumeBound, "")
	case metav1.HasAnnotation(v.ObjectMeta, helpers.AnnDynamicallyProvisioned) &&
		v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		if v.Status.Phase == corev1.VolumeReleased || v.Status.Phase == corev1.VolumeFailed {
			return Step{}
		}
		return phase(v, corev1.VolumeReleased, "") // the claim found another volume
	}
	return updateVolume(v, func(v *corev1.PersistentVolume) {
		if metav1.HasAnnotation(v.ObjectMeta, helpers.AnnBoundByController) {
			v.Spec.ClaimRef = nil
			delete(v.Annotations, helpers.AnnBoundByController)
			return
		}
		v.Spec.ClaimRef.UID, v.Spec.ClaimRef.ResourceVersion = "", "" // keep the user's choice
	})
}

// reclaim applies the reclaim policy to a volume without a claim. free means that it never had one: it is
// reclaimed only when a user deletes it.
func reclaim(v *corev1.PersistentVolume, free, released bool) Step {
	deleting := v.DeletionTimestamp != nil
	if !released && !(free && deleting) {
		return Step{}
	}
	directory := slices.Contains(v.Finalizers, storage.Finalizer)
	switch v.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRecycle:
		if released && v.Status.Phase != corev1.VolumeFailed {
			return phase(v, corev1.VolumeFailed, "No recycler plugin found for the volume!").
				because(v, corev1.EventTypeWarning, "VolumeFailedRecycle", "No recycler plugin found for the volume!")
		}
	case corev1.PersistentVolumeReclaimDelete:
		switch {
		case storage.Ours(v) && !deleting && released:
			return Step{Op: DeleteVolume, Volume: v}
		case storage.Ours(v) && deleting && directory:
			return Step{Op: RemoveDirectory, Volume: v}
		case !metav1.HasAnnotation(v.ObjectMeta, helpers.AnnDynamicallyProvisioned) && v.Spec.CSI == nil && released &&
			!deleting && v.Status.Phase != corev1.VolumeFailed:
			wrong := fmt.Sprintf("error getting deleter volume plugin for volume %q: no deletable volume plugin matched", v.Name)
			return phase(v, corev1.VolumeFailed, wrong).because(v, corev1.EventTypeWarning, "VolumeFailedDelete", wrong)
		}
	}
	if deleting && directory {
		// The data is kept, or is not local.
		return updateVolume(v, func(v *corev1.PersistentVolume) { v.Finalizers = without(v.Finalizers, storage.Finalizer) })
	}
	return Step{}
}

package volumebinding

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helpers "k8s.io/component-helpers/storage/volume"

	"github.com/coracle-dev/coracle/apis/storage"
)

// claimProtection keeps a claim from being deleted while a pod uses it.
const claimProtection = "kubernetes.io/pvc-protection"

// ClaimState is the input of PlanClaim.
type ClaimState struct {
	Claim *corev1.PersistentVolumeClaim
	// Volume is the volume that the claim names, nil if it does not exist. Candidates are the volumes of the
	// claim's class and the volumes that name the claim.
	Volume     *corev1.PersistentVolume
	Candidates []*corev1.PersistentVolume
	// Class is the claim's class, nil if it does not exist. Default is the default class, nil if there is none.
	Class, Default *storagev1.StorageClass
	Pods           []*corev1.Pod
	// Nodes are all nodes. They are set only if Coracle provisions the claim's class.
	Nodes []*corev1.Node
}

// PlanClaim returns the next step towards a bound claim, as upstream's controller does. Its invariant: a claim
// never takes a volume whose claimRef names another claim, and keeps the volume that it is bound to.
func PlanClaim(s ClaimState, now time.Time) Step {
	c := s.Claim
	protected := slices.Contains(c.Finalizers, claimProtection)
	if c.DeletionTimestamp != nil {
		if protected && !slices.ContainsFunc(s.Pods, scheduled) {
			return updateClaim(c, func(c *corev1.PersistentVolumeClaim) {
				c.Finalizers = without(c.Finalizers, claimProtection)
			})
		}
		return Step{}
	}
	if !protected {
		return updateClaim(c, func(c *corev1.PersistentVolumeClaim) { c.Finalizers = append(c.Finalizers, claimProtection) })
	}
	if metav1.HasAnnotation(c.ObjectMeta, helpers.AnnBindCompleted) {
		return s.bound(now)
	}
	if c.Spec.VolumeName == "" {
		return s.unbound()
	}
	return s.named()
}

// scheduled reports whether a pod may use its volumes. A node that sees the pod later refuses terminating claims.
func scheduled(p *corev1.Pod) bool { return p.Spec.NodeName != "" }

func (s ClaimState) unbound() Step {
	c := s.Claim
	delayed := s.Class != nil && s.Class.VolumeBindingMode != nil &&
		*s.Class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	match, err := helpers.FindMatchingVolume(c, s.fitting(), nil, nil, delayed, true)
	switch {
	case err != nil:
		return s.pending().because(c, corev1.EventTypeWarning, "FailedBinding", err.Error())
	case match != nil && match.Annotations[storage.ContentAnnotation] != "" &&
		match.Annotations[storage.CopiedAnnotation] == "":
		return s.pending() // its contents are being copied
	case match != nil:
		return bind(match, c)
	case !helpers.PersistentVolumeClaimHasClass(c) && s.Default != nil:
		return updateClaim(c, func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &s.Default.Name })
	case delayed && !helpers.IsDelayBindingProvisioning(c) && !s.copies():
		return s.waiting()
	case helpers.GetPersistentVolumeClaimClass(c) != "":
		return s.provision()
	}
	return s.pending().because(c, corev1.EventTypeNormal, "FailedBinding",
		"no persistent volumes available for this claim and no storage class is set")
}

// fitting returns the candidates with the claim's access modes, and volumes that name the claim. If the claim's
// volume is a copy, only the latter fit.
func (s ClaimState) fitting() []*corev1.PersistentVolume {
	out := make([]*corev1.PersistentVolume, 0, len(s.Candidates))
	for _, v := range s.Candidates {
		if !s.copies() && helpers.CheckAccessModes(s.Claim, v) || helpers.IsVolumeBoundToClaim(v, s.Claim) {
			out = append(out, v)
		}
	}
	return out
}

func (s ClaimState) waiting() Step {
	var pods []string
	for _, p := range s.Pods {
		if !scheduled(p) && p.DeletionTimestamp == nil {
			pods = append(pods, p.Name)
		}
	}
	slices.Sort(pods)
	switch len(pods) {
	case 0:
		return s.pending().because(s.Claim, corev1.EventTypeNormal, "WaitForFirstConsumer",
			"waiting for first consumer to be created before binding")
	case 1:
		return s.pending().because(s.Claim, corev1.EventTypeNormal, "WaitForPodScheduled",
			fmt.Sprintf("waiting for pod %s to be scheduled", pods[0]))
	}
	return s.pending().because(s.Claim, corev1.EventTypeNormal, "WaitForPodScheduled",
		fmt.Sprintf("waiting for pods %s to be scheduled", strings.Join(pods, ",")))
}

func (s ClaimState) pending() Step { return s.phase(corev1.ClaimPending) }

func (s ClaimState) phase(phase corev1.PersistentVolumeClaimPhase) Step {
	st := &s.Claim.Status
	if st.Phase == phase && len(st.AccessModes) == 0 && len(st.Capacity) == 0 {
		return Step{}
	}
	return updateClaimStatus(s.Claim, func(st *corev1.PersistentVolumeClaimStatus) {
		st.Phase, st.AccessModes, st.Capacity = phase, nil, nil
	})
}

// named plans for a claim that names a volume: the user's choice, or the result of an interrupted bind.
func (s ClaimState) named() Step {
	c, v := s.Claim, s.Volume
	switch {
	case v == nil:
		return s.pending()
	case v.Spec.ClaimRef == nil:
		if wrong := mismatch(c, v); wrong != "" {
			return s.pending().because(c, corev1.EventTypeWarning, "VolumeMismatch",
				fmt.Sprintf("Cannot bind to requested volume %q: %s", v.Name, wrong))
		}
		return bind(v, c)
	case helpers.IsVolumeBoundToClaim(v, c):
		return bind(v, c)
	}
	return s.pending().because(c, corev1.EventTypeWarning, "FailedBinding",
		fmt.Sprintf("volume %q already bound to a different claim.", v.Name))
}

// mismatch returns why a claim may not have the volume that it names, or "".
func mismatch(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) string {
	wants, has := c.Spec.Resources.Requests[corev1.ResourceStorage], v.Spec.Capacity[corev1.ResourceStorage]
	switch {
	case has.Cmp(wants) < 0:
		return "requested PV is too small"
	case helpers.GetPersistentVolumeClaimClass(c) != helpers.GetPersistentVolumeClass(v):
		return "storageClassName does not match"
	case attributes(c.Spec.VolumeAttributesClassName) != attributes(v.Spec.VolumeAttributesClassName):
		return "VolumeAttributesClassName does not match"
	case helpers.CheckVolumeModeMismatches(&c.Spec, &v.Spec):
		return "incompatible volumeMode"
	case !helpers.CheckAccessModes(c, v):
		return "incompatible accessMode"
	case v.DeletionTimestamp != nil:
		return "the volume is marked for deletion"
	}
	return ""
}

func attributes(class *string) string {
	if class == nil {
		return ""
	}
	return *class
}

// bind binds a claim and a volume to each other. First the volume names the claim, so that no other claim can take
// it. Then the claim names the volume. An interrupted bind continues with the next plan.
func bind(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) Step {
	next, changed, err := helpers.GetBindVolumeToClaim(v, c)
	if err != nil {
		return Step{}.because(c, corev1.EventTypeWarning, "FailedBinding", err.Error())
	}
	if changed {
		return Step{Op: UpdateVolume, Volume: next}
	}
	if step := phase(v, corev1.VolumeBound, ""); step.Op != Nothing {
		return step
	}
	if c.Spec.VolumeName != v.Name || !metav1.HasAnnotation(c.ObjectMeta, helpers.AnnBindCompleted) {
		return updateClaim(c, func(c *corev1.PersistentVolumeClaim) {
			if c.Spec.VolumeName != v.Name {
				c.Spec.VolumeName = v.Name
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, helpers.AnnBoundByController, "yes")
			}
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, helpers.AnnBindCompleted, "yes")
		})
	}
	if c.Status.Phase != corev1.ClaimBound || !slices.Equal(c.Status.AccessModes, v.Spec.AccessModes) {
		return updateClaimStatus(c, func(st *corev1.PersistentVolumeClaimStatus) {
			if st.Phase != corev1.ClaimBound || st.Capacity == nil {
				st.Capacity = v.Spec.Capacity.DeepCopy()
				st.CurrentVolumeAttributesClassName = v.Spec.VolumeAttributesClassName
			}
			st.Phase, st.AccessModes = corev1.ClaimBound, slices.Clone(v.Spec.AccessModes)
		})
	}
	return Step{}
}

// bound plans for a claim whose bind was completed.
func (s ClaimState) bound(now time.Time) Step {
	c, v := s.Claim, s.Volume
	lost := func(reason, message string) Step {
		step := s.phase(corev1.ClaimLost)
		if step.Op == Nothing {
			return step
		}
		return step.because(c, corev1.EventTypeWarning, reason, message)
	}
	switch {
	case c.Spec.VolumeName == "":
		return lost("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	case v == nil:
		return lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case v.Spec.ClaimRef != nil && !helpers.IsVolumeBoundToClaim(v, c):
		return lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
	}
	if step := bind(v, c); step.Op != Nothing {
		return step
	}
	if step := s.use(now); step.Op != Nothing {
		return step
	}
	return s.grow()
}

// grow expands a volume that Coracle provisioned. CSI drivers expand other volumes.
func (s ClaimState) grow() Step {
	c, v := s.Claim, s.Volume
	wants, has := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
	if v.DeletionTimestamp != nil {
		return Step{}
	}
	size := v.Spec.Capacity[corev1.ResourceStorage]
	grown := updateClaimStatus(c, func(st *corev1.PersistentVolumeClaimStatus) {
		st.Capacity = corev1.ResourceList{corev1.ResourceStorage: size.DeepCopy()}
	})
	// an expansion has not succeeded, and the request was reduced
	if storage.Ours(v) && !has.IsZero() && size.Cmp(has) > 0 && size.Cmp(wants) > 0 {
		step := updateVolume(v, func(v *corev1.PersistentVolume) {
			v.Spec.Capacity[corev1.ResourceStorage] = largest(wants, has)
		})
		step.Op, step.Claim = Withdrawn, grown.Claim
		return step
	}
	if wants.Cmp(has) <= 0 {
		return Step{}
	}
	if !storage.Ours(v) {
		return Step{}.because(c, corev1.EventTypeNormal, "ExternalExpanding",
			"waiting for an external controller to expand this PVC")
	}
	if size.Cmp(wants) < 0 {
		return updateVolume(v, func(v *corev1.PersistentVolume) {
			v.Spec.Capacity[corev1.ResourceStorage] = wants.DeepCopy()
		})
	}
	grown.Op, grown.Volume = Resized, v
	return grown.because(c, corev1.EventTypeNormal, "VolumeResizeSuccessful", "Resize volume succeeded")
}

func largest(a, b resource.Quantity) resource.Quantity {
	if a.Cmp(b) < 0 {
		a = b
	}
	return a.DeepCopy()
}

func without(list []string, s string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(x string) bool { return x == s })
}

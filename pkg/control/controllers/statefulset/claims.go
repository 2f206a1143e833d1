package statefulset

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// claimName returns the name of the claim of a set's pod for one of its templates.
func claimName(set *appsv1.StatefulSet, template string, ordinal int64) string {
	return template + "-" + set.Name + "-" + strconv.FormatInt(ordinal, 10)
}

// claims returns the claims of the pod with an ordinal, as they are created.
func claims(set *appsv1.StatefulSet, ordinal int64) []*corev1.PersistentVolumeClaim {
	out := make([]*corev1.PersistentVolumeClaim, len(set.Spec.VolumeClaimTemplates))
	for i := range out {
		t := &set.Spec.VolumeClaimTemplates[i]
		c := &corev1.PersistentVolumeClaim{Spec: *t.Spec.DeepCopy(), ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Name: claimName(set, t.Name, ordinal), Annotations: maps.Clone(t.Annotations),
			Labels:     maps.Clone(t.Labels),
			Finalizers: slices.Clone(t.Finalizers),
		}}
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		if set.Spec.Selector != nil {
			maps.Copy(c.Labels, set.Spec.Selector.MatchLabels)
		}
		out[i] = c
	}
	return out
}

// mountClaims makes the pod's volumes of the set's claims; volumes of the template with their names are replaced.
func mountClaims(set *appsv1.StatefulSet, pod *corev1.Pod, ordinal int64) {
	templates := set.Spec.VolumeClaimTemplates
	if len(templates) == 0 {
		return
	}
	var volumes []corev1.Volume
	for i := range templates {
		volumes = append(volumes, corev1.Volume{Name: templates[i].Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: claimName(set, templates[i].Name, ordinal),
			}}})
	}
	for _, v := range pod.Spec.Volumes {
		if !slices.ContainsFunc(templates, func(t corev1.PersistentVolumeClaim) bool { return t.Name == v.Name }) {
			volumes = append(volumes, v)
		}
	}
	pod.Spec.Volumes = volumes
}

// deletes reports which events delete claims: the deletion of the set, and scaling down.
func deletes(set *appsv1.StatefulSet) (whenDeleted, whenScaled bool) {
	p := set.Spec.PersistentVolumeClaimRetentionPolicy
	return p != nil && p.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
		p != nil && p.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// names reports whether a reference is to an object of that kind and name, whatever its UID.
func names(ref *metav1.OwnerReference, o metav1.Object, gvk schema.GroupVersionKind) bool {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && gv.Group == gvk.Group && ref.Kind == gvk.Kind && ref.Name == o.GetName()
}

// stale reports whether a claim belongs to an earlier pod of that name: it is about to be deleted with it.
func stale(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) bool {
	return slices.ContainsFunc(claim.OwnerReferences, func(r metav1.OwnerReference) bool {
		return names(&r, pod, podKind) && r.UID != pod.UID
	})
}

// owners returns the owners that a claim of a pod must have, so that it is deleted with the set, or with the pod that
// was scaled away, as the retention policy says. gone is set for such a pod. conflict is set if another controller owns
// the claim: the policy is ignored then.
func owners(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, pod *corev1.Pod,
	gone bool) (refs []metav1.OwnerReference, conflict bool) {
	withSet, withPod := deletes(set)
	foreign := false
	for i := range claim.OwnerReferences {
		ref := &claim.OwnerReferences[i]
		switch ofSet, ofPod := names(ref, set, kind), names(ref, pod, podKind); {
		case ofSet && ref.UID != set.UID || ofPod && ref.UID != pod.UID:
			return claim.OwnerReferences, false // the garbage collector's
		case ofSet || ofPod:
			continue
		case ref.Controller != nil && *ref.Controller:
			foreign = true
		}
		refs = append(refs, *ref)
	}
	switch {
	case foreign:
		return refs, withSet || withPod
	case withPod && gone:
		refs = append(refs, *metav1.NewControllerRef(pod, podKind))
	case withSet && (!withPod || !gone):
		refs = append(refs, *metav1.NewControllerRef(set, kind))
	}
	return refs, false
}

// within reports whether an ordinal is one that the set should have.
func within(set *appsv1.StatefulSet, ordinal int64) bool {
	first, end := (&plan{set: set}).bounds()
	return ordinal >= first && ordinal < end
}

// hasClaim reports whether a claim is, by its name, of a pod of the set.
func hasClaim(set *appsv1.StatefulSet, name string) bool {
	return slices.ContainsFunc(set.Spec.VolumeClaimTemplates, func(t corev1.PersistentVolumeClaim) bool {
		number, ok := strings.CutPrefix(name, t.Name+"-"+set.Name+"-")
		n, err := strconv.ParseInt(number, 10, 64)
		return ok && err == nil && strconv.FormatInt(n, 10) == number
	})
}

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

func claimName(set *appsv1.StatefulSet, template string, ordinal int64) string {
	return template + "-" + set.Name + "-" + strconv.FormatInt(ordinal, 10)
}

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

// mountClaims adds the claims' volumes to a pod. They replace volumes of the template with the same names.
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

// names reports whether a reference is to an object of this kind and name, with any UID.
func names(ref *metav1.OwnerReference, o metav1.Object, gvk schema.GroupVersionKind) bool {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && gv.Group == gvk.Group && ref.Kind == gvk.Kind && ref.Name == o.GetName()
}

// stale reports whether a claim belongs to an earlier pod of the same name. It will be deleted with that pod.
func stale(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) bool {
	return slices.ContainsFunc(claim.OwnerReferences, func(r metav1.OwnerReference) bool {
		return names(&r, pod, podKind) && r.UID != pod.UID
	})
}

// owners returns the owners that a pod's claim must have. According to the retention policy the garbage collector
// then deletes it with the set, or with a pod that was scaled down (gone). conflict means that another controller
// owns the claim, so that the policy is ignored.
func owners(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, pod *corev1.Pod,
	gone bool) (refs []metav1.OwnerReference, conflict bool) {
	withSet, withPod := deletes(set)
	foreign := false
	for i := range claim.OwnerReferences {
		ref := &claim.OwnerReferences[i]
		switch ofSet, ofPod := names(ref, set, kind), names(ref, pod, podKind); {
		case ofSet && ref.UID != set.UID || ofPod && ref.UID != pod.UID:
			return claim.OwnerReferences, false // the garbage collector deletes it
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

func within(set *appsv1.StatefulSet, ordinal int64) bool {
	first, end := (&plan{set: set}).bounds()
	return ordinal >= first && ordinal < end
}

// hasClaim reports whether a claim's name belongs to a pod of the set.
func hasClaim(set *appsv1.StatefulSet, name string) bool {
	return slices.ContainsFunc(set.Spec.VolumeClaimTemplates, func(t corev1.PersistentVolumeClaim) bool {
		number, ok := strings.CutPrefix(name, t.Name+"-"+set.Name+"-")
		n, err := strconv.ParseInt(number, 10, 64)
		return ok && err == nil && strconv.FormatInt(n, 10) == number
	})
}

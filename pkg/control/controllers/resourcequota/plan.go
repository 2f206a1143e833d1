package resourcequota

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// Plan returns the desired status of a quota, and whether it differs from the current one. A resource missing in
// used keeps its recorded usage.
func Plan(q *corev1.ResourceQuota, used corev1.ResourceList) (corev1.ResourceQuotaStatus, bool) {
	next := corev1.ResourceQuotaStatus{Hard: q.Spec.Hard.DeepCopy(), Used: corev1.ResourceList{}}
	for name := range q.Spec.Hard {
		if n, ok := used[name]; ok {
			next.Used[name] = n.DeepCopy()
		} else if n, ok := q.Status.Used[name]; ok {
			next.Used[name] = n.DeepCopy()
		}
	}
	return next, q.Status.Used == nil || !equality.Semantic.DeepEqual(q.Status, next)
}

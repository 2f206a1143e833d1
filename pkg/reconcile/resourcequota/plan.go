package resourcequota

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// Plan gives the status that a quota should have when used is what its scope uses, and whether that differs from the
// one it has. A resource whose use nobody counts keeps the use it had.
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

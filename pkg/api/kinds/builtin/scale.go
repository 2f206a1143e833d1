package builtin

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

var (
	deploymentScale = scaleOf(func(d *appsv1.Deployment) (**int32, int32, *metav1.LabelSelector) {
		return &d.Spec.Replicas, d.Status.Replicas, d.Spec.Selector
	})
	replicaSetScale = scaleOf(func(r *appsv1.ReplicaSet) (**int32, int32, *metav1.LabelSelector) {
		return &r.Spec.Replicas, r.Status.Replicas, r.Spec.Selector
	})
	statefulSetScale = scaleOf(func(s *appsv1.StatefulSet) (**int32, int32, *metav1.LabelSelector) {
		return &s.Spec.Replicas, s.Status.Replicas, s.Spec.Selector
	})
	replicationControllerScale = scaleOf(func(c *corev1.ReplicationController) (**int32, int32, *metav1.LabelSelector) {
		return &c.Spec.Replicas, c.Status.Replicas, &metav1.LabelSelector{MatchLabels: c.Spec.Selector}
	})
)

// scaleOf returns a Scale from a function that returns the fields of a type.
func scaleOf[P client.Object](parts func(P) (want **int32, have int32, selector *metav1.LabelSelector)) kind.Scale {
	return kind.Scale{
		Get: func(o client.Object) (*int32, int32, *metav1.LabelSelector) {
			want, have, selector := parts(o.(P))
			return *want, have, selector
		},
		Set: func(o client.Object, n int32) {
			want, _, _ := parts(o.(P))
			*want = &n
		},
	}
}

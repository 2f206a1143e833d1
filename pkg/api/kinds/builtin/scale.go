package builtin

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
)

var (
	deploymentScale = own.Scale(func(d *appsv1.Deployment) (**int32, int32, *metav1.LabelSelector) {
		return &d.Spec.Replicas, d.Status.Replicas, d.Spec.Selector
	})
	replicaSetScale = own.Scale(func(r *appsv1.ReplicaSet) (**int32, int32, *metav1.LabelSelector) {
		return &r.Spec.Replicas, r.Status.Replicas, r.Spec.Selector
	})
	statefulSetScale = own.Scale(func(s *appsv1.StatefulSet) (**int32, int32, *metav1.LabelSelector) {
		return &s.Spec.Replicas, s.Status.Replicas, s.Spec.Selector
	})
	replicationControllerScale = own.Scale(func(c *corev1.ReplicationController) (**int32, int32, *metav1.LabelSelector) {
		return &c.Spec.Replicas, c.Status.Replicas, &metav1.LabelSelector{MatchLabels: c.Spec.Selector}
	})
)

// printed gives a scale subresource upstream's columns.
func printed(s kind.Subresource) kind.Subresource {
	s.Table = scalePrinter{}
	return s
}

package replicaset

import (
	"context"
	"io"
	"iter"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// family is a kind with the semantics of ReplicaSet.
type family struct {
	kind   schema.GroupVersionKind
	object func() client.Object
	list   func() client.ObjectList
	// view converts an object to a ReplicaSet that shares its data. Neither may be modified.
	view func(client.Object) *appsv1.ReplicaSet
	// withStatus returns a copy of the object with another status.
	withStatus func(client.Object, appsv1.ReplicaSetStatus) client.Object
}

var replicaSets = family{
	kind:   appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
	object: func() client.Object { return &appsv1.ReplicaSet{} },
	list:   func() client.ObjectList { return &appsv1.ReplicaSetList{} },
	view:   func(o client.Object) *appsv1.ReplicaSet { return o.(*appsv1.ReplicaSet) },
	withStatus: func(o client.Object, s appsv1.ReplicaSetStatus) client.Object {
		next := o.(*appsv1.ReplicaSet).DeepCopy()
		next.Status = s
		return next
	},
}

var replicationControllers = family{
	kind:   corev1.SchemeGroupVersion.WithKind("ReplicationController"),
	object: func() client.Object { return &corev1.ReplicationController{} },
	list:   func() client.ObjectList { return &corev1.ReplicationControllerList{} },
	view:   func(o client.Object) *appsv1.ReplicaSet { return asSet(o.(*corev1.ReplicationController)) },
	withStatus: func(o client.Object, s appsv1.ReplicaSetStatus) client.Object {
		return withStatus(o.(*corev1.ReplicationController), s)
	},
}

func asSet(c *corev1.ReplicationController) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{
		ObjectMeta: c.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{
			Replicas: c.Spec.Replicas, MinReadySeconds: c.Spec.MinReadySeconds,
			Selector: &metav1.LabelSelector{MatchLabels: c.Spec.Selector},
		},
		Status: appsv1.ReplicaSetStatus{
			Replicas: c.Status.Replicas, FullyLabeledReplicas: c.Status.FullyLabeledReplicas,
			ReadyReplicas:     c.Status.ReadyReplicas,
			AvailableReplicas: c.Status.AvailableReplicas, ObservedGeneration: c.Status.ObservedGeneration,
		},
	}
	if c.Spec.Template != nil {
		rs.Spec.Template = *c.Spec.Template
	}
	for _, was := range c.Status.Conditions {
		rs.Status.Conditions = append(rs.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(was.Type), Status: was.Status, LastTransitionTime: was.LastTransitionTime,
			Reason: was.Reason, Message: was.Message,
		})
	}
	return rs
}

func withStatus(c *corev1.ReplicationController, s appsv1.ReplicaSetStatus) *corev1.ReplicationController {
	next := c.DeepCopy()
	next.Status = corev1.ReplicationControllerStatus{
		Replicas: s.Replicas, FullyLabeledReplicas: s.FullyLabeledReplicas, ReadyReplicas: s.ReadyReplicas,
		AvailableReplicas: s.AvailableReplicas, ObservedGeneration: s.ObservedGeneration,
	}
	for _, is := range s.Conditions {
		next.Status.Conditions = append(next.Status.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(is.Type), Status: is.Status,
			LastTransitionTime: is.LastTransitionTime, Reason: is.Reason, Message: is.Message,
		})
	}
	return next
}

// sets maps a pod to its controller or, without one, to the objects that could adopt it.
func (f family) sets() func(context.Context, engine.Env, client.Object) []engine.Request {
	return engine.ControllerOrAdopters(f.kind.GroupKind(), f.list, func(o client.Object) *metav1.LabelSelector {
		return f.view(o).Spec.Selector
	})
}

func (f family) views(all client.ObjectList) iter.Seq[*appsv1.ReplicaSet] {
	return func(yield func(*appsv1.ReplicaSet) bool) {
		_ = meta.EachListItem(all, func(item runtime.Object) error { // it fails only for objects that are not lists
			if !yield(f.view(item.(client.Object))) {
				return io.EOF
			}
			return nil
		})
	}
}

// Package podstate holds predicates on pods that several reconcilers share, and creates pods from templates. Its
// invariant: its functions are pure.
package podstate

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// Condition returns the pod's condition of a type, or nil.
func Condition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// Ready reports whether the pod's Ready condition is true.
func Ready(p *corev1.Pod) bool {
	c := Condition(p, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// Available reports whether the pod has been ready for minReady. If it has been ready for less, in is the remaining
// time.
func Available(p *corev1.Pod, minReady time.Duration, now time.Time) (ok bool, in time.Duration) {
	c := Condition(p, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return false, 0
	}
	if minReady == 0 {
		return true, 0
	}
	if c.LastTransitionTime.IsZero() {
		return false, 0
	}
	in = c.LastTransitionTime.Add(minReady).Sub(now)
	return in <= 0, max(in, 0)
}

// Ended reports whether the pod reached a terminal phase.
func Ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Active reports whether the pod counts as one of its controller's replicas.
func Active(p *corev1.Pod) bool { return !Ended(p) && p.DeletionTimestamp == nil }

// WithCondition returns the conditions with c set. changed is false if status, reason and message are unchanged. The
// transition time changes only with the status.
func WithCondition(conditions []corev1.PodCondition, c corev1.PodCondition,
	now time.Time) (out []corev1.PodCondition, changed bool) {
	c.LastTransitionTime = metav1.NewTime(now)
	for i, was := range conditions {
		if was.Type != c.Type {
			continue
		}
		if was.Status == c.Status {
			if was.Reason == c.Reason && was.Message == c.Message && was.ObservedGeneration == c.ObservedGeneration {
				return conditions, false
			}
			c.LastTransitionTime = was.LastTransitionTime
		}
		c.LastProbeTime = was.LastProbeTime
		out = slices.Clone(conditions)
		out[i] = c
		return out, true
	}
	return append(slices.Clone(conditions), c), true
}

// FromTemplate creates a pod from owner's template. The API server names it.
func FromTemplate(t *corev1.PodTemplateSpec, owner client.Object, gvk schema.GroupVersionKind) *corev1.Pod {
	prefix := owner.GetName() + "-"
	if len(apivalidation.NameIsDNSSubdomain(prefix, true)) > 0 {
		prefix = owner.GetName()
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.GetNamespace(), GenerateName: prefix,
			Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations), Finalizers: slices.Clone(t.Finalizers),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, gvk)},
		},
		Spec: *t.Spec.DeepCopy(),
	}
}

// NodeIndex finds pods by the node they are bound to.
const NodeIndex = "spec.nodeName"

// ByNode returns the index named NodeIndex.
func ByNode() engine.Index {
	return engine.Index{Object: &corev1.Pod{}, Name: NodeIndex, Values: func(o client.Object) []string {
		if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" {
			return []string{p.Spec.NodeName}
		}
		return nil
	}}
}

// Package services is shared by the reconcilers of endpoints: which services select a pod, which changes of a pod are
// relevant, and whether anything changed since the last reconcile.
package services

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// HasSelector reports whether the service gets its endpoints from pods.
func HasSelector(s *corev1.Service) bool {
	return len(s.Spec.Selector) > 0 && s.Spec.Type != corev1.ServiceTypeExternalName
}

// Selects reports whether the service gets its endpoints from pods with these labels.
func Selects(s *corev1.Service, pod map[string]string) bool {
	if !HasSelector(s) {
		return false
	}
	for k, v := range s.Spec.Selector {
		if has, ok := pod[k]; !ok || has != v {
			return false
		}
	}
	return true
}

// WatchPods enqueues the services that select a pod when it is created, deleted or changed in a relevant way. A burst
// of changes of pods with the same labels enqueues them once, since the cost of a reconcile does not depend on which
// pods changed.
func WatchPods() engine.Watch {
	return engine.Watch{Object: &corev1.Pod{}, Map: selecting, Batch: group, Changed: func(was, is client.Object) bool {
		a, ok1 := was.(*corev1.Pod)
		b, ok2 := is.(*corev1.Pod)
		return !ok1 || !ok2 || matters(a, b)
	}}
}

// group returns a name for pods that the same services select. To sort 44,000 labels at each change of a pod would take
// longer than to look for its services.
func group(o client.Object) string {
	if len(o.GetLabels()) > 100 {
		return o.GetNamespace() + "/" + o.GetName()
	}
	return o.GetNamespace() + "/" + labels.Set(o.GetLabels()).String()
}

func selecting(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	if len(o.GetLabels()) == 0 {
		return nil
	}
	var all corev1.ServiceList
	if env.Cache.List(ctx, &all, client.InNamespace(o.GetNamespace())) != nil {
		return nil
	}
	var out []engine.Request
	for i := range all.Items {
		if s := &all.Items[i]; Selects(s, o.GetLabels()) {
			out = append(out, engine.RequestFor(s.Namespace, s.Name))
		}
	}
	return out
}

func matters(was, is *corev1.Pod) bool {
	return was.Spec.NodeName != is.Spec.NodeName || was.Spec.Hostname != is.Spec.Hostname ||
		was.Spec.Subdomain != is.Spec.Subdomain ||
		(was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) || podstate.Ready(was) != podstate.Ready(is) ||
		podstate.Ended(was) !=
			podstate.Ended(is) || !slices.Equal(was.Status.PodIPs, is.Status.PodIPs) || !maps.Equal(was.Labels, is.Labels)
}

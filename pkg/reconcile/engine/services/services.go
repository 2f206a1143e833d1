// Package services is what the reconcilers of services' endpoints share: which services a pod belongs to, which of its changes matter
// to them, and whether anything changed at all since they last ran.
//
// It may import engine.
package services

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/reconcile/engine"
	"github.com/coracle-dev/coracle/pkg/reconcile/engine/podstate"
)

// HasSelector reports whether the service takes its endpoints from pods.
func HasSelector(s *corev1.Service) bool {
	return len(s.Spec.Selector) > 0 && s.Spec.Type != corev1.ServiceTypeExternalName
}

// Selects reports whether the service takes its endpoints from pods with these labels.
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

// WatchPods wakes the services that select a pod when it comes, goes or changes in what matters to them. Changes of pods with the
// same labels that come in a burst wake them once: a service's cost is that of all its pods, whichever of them changed.
func WatchPods() engine.Watch {
	return engine.Watch{Object: &corev1.Pod{}, Map: selecting, Batch: group, Changed: func(was, is client.Object) bool {
		a, ok1 := was.(*corev1.Pod)
		b, ok2 := is.(*corev1.Pod)
		return !ok1 || !ok2 || matters(a, b)
	}}
}

// group names the pods that the same services select.
func group(o client.Object) string {
	return o.GetNamespace() + "/" + labels.Set(o.GetLabels()).String()
}

// selecting maps a pod to the services that select it.
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
	return was.Spec.NodeName != is.Spec.NodeName || was.Spec.Hostname != is.Spec.Hostname || was.Spec.Subdomain != is.Spec.Subdomain ||
		(was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) || podstate.Ready(was) != podstate.Ready(is) ||
		podstate.Ended(was) != podstate.Ended(is) || !slices.Equal(was.Status.PodIPs, is.Status.PodIPs) || !maps.Equal(was.Labels, is.Labels)
}

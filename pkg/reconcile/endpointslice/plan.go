package endpointslice

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coracle-dev/coracle/pkg/reconcile/engine/podstate"
)

// Selects tells whether the service takes its endpoints from pods with these labels.
func Selects(s *corev1.Service, pod map[string]string) bool {
	return HasSelector(s) && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod))
}

// HasSelector tells whether the service takes its endpoints from pods at all.
func HasSelector(s *corev1.Service) bool {
	return len(s.Spec.Selector) > 0 && s.Spec.Type != corev1.ServiceTypeExternalName
}

// Matters tells whether an update of a pod changes what a service makes of it.
func Matters(was, is *corev1.Pod) bool {
	return was.Spec.NodeName != is.Spec.NodeName || was.Spec.Hostname != is.Spec.Hostname || was.Spec.Subdomain != is.Spec.Subdomain ||
		(was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) || podstate.Ready(was) != podstate.Ready(is) ||
		podstate.Ended(was) != podstate.Ended(is) || !slices.Equal(was.Status.PodIPs, is.Status.PodIPs) || !maps.Equal(was.Labels, is.Labels)
}

package builtin

import (
	"errors"
	"slices"

	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	scheduling "k8s.io/kubernetes/pkg/apis/scheduling/v1"
)

// permanentNamespace refuses to delete the system namespaces, as upstream's NamespaceLifecycle plugin.
func permanentNamespace(name string) error {
	if slices.Contains([]string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}, name) {
		return errors.New("this namespace may not be deleted")
	}
	return nil
}

func permanentPriority(name string) error {
	if slices.ContainsFunc(scheduling.SystemPriorityClasses(), func(s *schedulingv1.PriorityClass) bool {
		return s.Name == name
	}) {
		return errors.New("this is a system priority class and cannot be deleted")
	}
	return nil
}

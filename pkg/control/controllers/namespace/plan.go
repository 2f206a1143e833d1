package namespace

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

// Plan returns the namespace's desired conditions, and whether it is empty and can be finalized.
func Plan(ns *corev1.Namespace, left []aggregated.Remaining,
	now time.Time) (conditions []corev1.NamespaceCondition, empty bool) {
	var failures, content, waits []string
	finalizers := map[string]int{}
	for _, l := range left {
		if l.Err != nil {
			failures = append(failures, fmt.Sprintf("failed to delete %s: %v", l.Resource, l.Err))
		}
		if l.Count > 0 {
			content = append(content, fmt.Sprintf("%s has %d resource instances", l.Resource, l.Count))
		}
		for f, n := range l.Finalizers {
			finalizers[f] += n
		}
	}
	slices.Sort(content)
	slices.Sort(failures)
	for _, f := range slices.Sorted(maps.Keys(finalizers)) {
		waits = append(waits, fmt.Sprintf("%s in %d resource instances", f, finalizers[f]))
	}
	conditions = ns.Status.Conditions
	set := func(t corev1.NamespaceConditionType, bad []string, badReason, badPrefix, goodReason, good string) {
		c := corev1.NamespaceCondition{
			Type:               t,
			Status:             corev1.ConditionFalse,
			Reason:             goodReason,
			Message:            good,
			LastTransitionTime: metav1.NewTime(now),
		}
		if len(bad) > 0 {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, badReason, badPrefix+strings.Join(bad, ", ")
		}
		i := slices.IndexFunc(conditions, func(c corev1.NamespaceCondition) bool { return c.Type == t })
		if i < 0 {
			conditions = append(slices.Clone(conditions), c)
			return
		}
		was := conditions[i]
		if was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
		conditions = slices.Clone(conditions)
		conditions[i] = c
	}
	set(corev1.NamespaceDeletionDiscoveryFailure, nil, "", "", "ResourcesDiscovered",
		"All resources successfully discovered")
	set(corev1.NamespaceDeletionGVParsingFailure, nil, "", "", "ParsedGroupVersions",
		"All legacy kube types successfully parsed")
	set(corev1.NamespaceDeletionContentFailure, failures, "ContentDeletionFailed", "Failed to delete all resource types: ",
		"ContentDeleted", "All content successfully deleted, may be waiting on finalization")
	set(corev1.NamespaceContentRemaining, content, "SomeResourcesRemain", "Some resources are remaining: ",
		"ContentRemoved", "All content successfully removed")
	set(corev1.NamespaceFinalizersRemaining, waits, "SomeFinalizersRemain",
		"Some content in the namespace has finalizers remaining: ",
		"ContentHasNoFinalizers", "All content-preserving finalizers finished")
	return conditions, len(failures) == 0 && len(content) == 0
}

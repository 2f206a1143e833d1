package storage

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// InTopology reports whether labels satisfy all expressions of at least one term.
func InTopology(terms []corev1.TopologySelectorTerm, labels map[string]string) bool {
	return slices.ContainsFunc(terms, func(t corev1.TopologySelectorTerm) bool {
		for _, e := range t.MatchLabelExpressions {
			if v, ok := labels[e.Key]; !ok || !slices.Contains(e.Values, v) {
				return false
			}
		}
		return len(t.MatchLabelExpressions) > 0
	})
}

package builtin

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/registry/core/node"

	"github.com/coracle-dev/coracle/pkg/kind"
)

func componentStatuses() *kind.Resource {
	r := row[corev1.ComponentStatus, corev1.ComponentStatusList](gv("", "v1"), "componentstatuses", "componentstatus",
		node.Strategy, metaFields)
	r.Strategy = nil // only needed above, to make the row cluster-scoped
	r.Namespaced, r.ShortNames, r.Verbs = false, []string{"cs"}, []string{"get", "list"}
	r.Computed = true
	return r
}

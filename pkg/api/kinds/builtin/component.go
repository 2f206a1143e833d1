package builtin

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/registry/core/node"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// ComponentStatuses is the row of ComponentStatus. It is in no Table, because it is read only and not stored.
var ComponentStatuses = sync.OnceValue(func() *kind.Resource {
	r := row[corev1.ComponentStatus, corev1.ComponentStatusList](gv("", "v1"), "componentstatuses", "componentstatus",
		node.Strategy, metaFields)
	r.Strategy = nil // it was only needed to make the row cluster-scoped
	r.Namespaced, r.ShortNames, r.Verbs = false, []string{"cs"}, []string{"get", "list"}
	return r
})

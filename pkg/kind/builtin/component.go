package builtin

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/registry/core/node"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// ComponentStatuses is the row of ComponentStatus, which is in no table: it is read, never written, and stored nowhere.
var ComponentStatuses = sync.OnceValue(func() *kind.Resource {
	r := row[corev1.ComponentStatus, corev1.ComponentStatusList](gv("", "v1"), "componentstatuses", "componentstatus", node.Strategy, metaFields)
	r.Strategy = nil // that was to say that it is cluster-scoped
	r.Namespaced, r.ShortNames, r.Verbs = false, []string{"cs"}, []string{"get", "list"}
	return r
})

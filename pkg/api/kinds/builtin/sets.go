package builtin

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// sets returns the rows of DaemonSet and StatefulSet.
func sets() []*kind.Resource {
	apps := gv("apps", "v1")
	daemons := row[appsv1.DaemonSet, appsv1.DaemonSetList](apps, "daemonsets", "daemonset", daemonset.Strategy, metaFields)
	daemons.ShortNames, daemons.Categories = []string{"ds"}, []string{"all"}
	daemons.Status = daemonset.StatusStrategy

	stateful := row[appsv1.StatefulSet, appsv1.StatefulSetList](apps, "statefulsets", "statefulset", statefulset.Strategy,
		metaFields)
	stateful.ShortNames, stateful.Categories = []string{"sts"}, []string{"all"}
	stateful.Status, stateful.Subresources = statefulset.StatusStrategy, []kind.Subresource{printed(statefulSetScale)}
	return []*kind.Resource{daemons, stateful}
}

package builtin

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// sets is the rows of the workloads with a revision history.
func sets() []*kind.Resource {
	apps := gv("apps", "v1")
	daemons := row[appsv1.DaemonSet, appsv1.DaemonSetList](apps, "daemonsets", "daemonset", daemonset.Strategy, metaFields)
	daemons.ShortNames, daemons.Categories = []string{"ds"}, []string{"all"}
	daemons.Status = daemonset.StatusStrategy

	stateful := row[appsv1.StatefulSet, appsv1.StatefulSetList](apps, "statefulsets", "statefulset", withoutClaims{statefulset.Strategy, statefulset.Strategy}, metaFields)
	stateful.ShortNames, stateful.Categories = []string{"sts"}, []string{"all"}
	stateful.Status, stateful.Subresources = statefulset.StatusStrategy, []kind.Subresource{scale(statefulSetScale)}
	return []*kind.Resource{daemons, stateful}
}

// withoutClaims refuses StatefulSets whose pods would wait forever for their volumes. The templates cannot be changed later.
type withoutClaims struct {
	kind.Strategy
	rest.ResetFieldsStrategy
}

func (s withoutClaims) Validate(ctx context.Context, o runtime.Object) field.ErrorList {
	errs := s.Strategy.Validate(ctx, o)
	if set, ok := o.(*apps.StatefulSet); ok && len(set.Spec.VolumeClaimTemplates) > 0 {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "volumeClaimTemplates"), "PersistentVolumeClaims are not supported by this server"))
	}
	return errs
}

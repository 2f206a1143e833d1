package builtin

import (
	"context"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	"k8s.io/kubernetes/pkg/registry/scheduling/podgroup"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// podGroupRows returns the row of PodGroup (gang scheduling, KEP-4671).
func podGroupRows() []*kind.Resource {
	strategy := podgroup.NewStrategy()
	groups := row[schedulingv1beta1.PodGroup, schedulingv1beta1.PodGroupList](gv("scheduling.k8s.io", "v1beta1"),
		"podgroups", "podgroup", podGroupStrategy{strategy}, metaFields)
	groups.Status = podgroup.NewStatusStrategy(strategy)
	return []*kind.Resource{groups}
}

// podGroups is the interface of upstream's PodGroup strategy.
type podGroups interface {
	kind.Strategy
	rest.DeclarativeValidationStrategy
	rest.ResetFieldsStrategy
}

// podGroupStrategy is upstream's strategy, but keeps the fields that the scheduler does not honour, so that
// validation refuses them instead of dropping them silently.
type podGroupStrategy struct{ podGroups }

func (s podGroupStrategy) PrepareForCreate(ctx context.Context, o runtime.Object) {
	g, ok := o.(*scheduling.PodGroup)
	if !ok {
		return
	}
	asked := g.Spec
	s.podGroups.PrepareForCreate(ctx, o)
	g.Spec.SchedulingConstraints, g.Spec.ResourceClaims = asked.SchedulingConstraints, asked.ResourceClaims
	g.Spec.PreemptionPolicy, g.Spec.ParentCompositePodGroupName = asked.PreemptionPolicy, asked.ParentCompositePodGroupName
}

func (s podGroupStrategy) Validate(ctx context.Context, o runtime.Object) field.ErrorList {
	all := s.podGroups.Validate(ctx, o)
	g, ok := o.(*scheduling.PodGroup)
	if !ok {
		return all
	}
	spec := field.NewPath("spec")
	for _, f := range []struct {
		name string
		set  bool
		why  string
	}{
		{
			"schedulingConstraints", g.Spec.SchedulingConstraints != nil,
			"pods of a group are not kept in one topology domain here; use podAffinity in the pods",
		},
		{
			"resourceClaims", len(g.Spec.ResourceClaims) > 0,
			"claims of a group are not supported here; name a ResourceClaim in the pods",
		},
		{
			"preemptionPolicy", g.Spec.PreemptionPolicy != nil,
			"it is not supported here: pods of a group with a minimum evict no others",
		},
		{
			"priorityClassName", g.Spec.PriorityClassName != "",
			"pods of a group have the priority of their own priorityClassName here",
		},
		{"priority", g.Spec.Priority != nil, "pods of a group have the priority of their own priorityClassName here"},
		{"parentCompositePodGroupName", g.Spec.ParentCompositePodGroupName != nil, "groups of groups are not supported here"},
		{
			"disruptionMode", g.Spec.DisruptionMode != nil && g.Spec.DisruptionMode.All != nil,
			"pods of a group are disrupted one by one here",
		},
	} {
		if f.set {
			all = append(all, field.Forbidden(spec.Child(f.name), f.why))
		}
	}
	return all
}

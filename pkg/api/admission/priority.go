package admission

import (
	"context"
	"io"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
)

// podPriority is upstream's plugin, but it skips pod groups. Upstream gives them the default PriorityClass; here
// they have no priority.
type podPriority struct{ *priority.Plugin }

var podGroups = schema.GroupResource{Group: schedulingv1beta1.GroupName, Resource: "podgroups"}

func (p podPriority) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() == podGroups {
		return nil
	}
	return p.Plugin.Admit(ctx, a, o)
}

func registerPriority(all *admission.Plugins) {
	all.Register(priority.PluginName, func(io.Reader) (admission.Interface, error) {
		return podPriority{priority.NewPlugin()}, nil
	})
}

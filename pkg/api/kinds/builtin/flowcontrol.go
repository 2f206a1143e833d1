package builtin

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// flowControlRows returns the rows of API Priority and Fairness.
func flowControlRows() []*kind.Resource {
	group := gv("flowcontrol.apiserver.k8s.io", "v1")
	schemas := row[flowcontrolv1.FlowSchema, flowcontrolv1.FlowSchemaList](group, "flowschemas", "flowschema",
		flowschema.Strategy, metaFields)
	schemas.Status = flowschema.StatusStrategy
	levels := row[flowcontrolv1.PriorityLevelConfiguration, flowcontrolv1.PriorityLevelConfigurationList](group,
		"prioritylevelconfigurations", "prioritylevelconfiguration",
		prioritylevelconfiguration.Strategy, metaFields)
	levels.Status = prioritylevelconfiguration.StatusStrategy
	return []*kind.Resource{schemas, levels}
}

// RevisedFlowSchema returns the update that resets a bootstrap object to want, or nil if none is needed. As
// upstream, mandatory objects are always reset. Suggested ones are reset while no client has changed their spec, or
// if their annotation apf.kubernetes.io/autoupdate-spec is true.
func RevisedFlowSchema(have, want *flowcontrolv1.FlowSchema, mandatory bool) (*flowcontrolv1.FlowSchema, error) {
	strategy := ensurer.NewSuggestedEnsureStrategy[*flowcontrolv1.FlowSchema]()
	if mandatory {
		strategy = ensurer.NewMandatoryEnsureStrategy[*flowcontrolv1.FlowSchema]()
	}
	next, _, err := strategy.ReviseIfNeeded(ensurer.NewFlowSchemaOps(nil, nil), have, want)
	return next, err
}

// RevisedPriorityLevel is RevisedFlowSchema for priority levels.
func RevisedPriorityLevel(have, want *flowcontrolv1.PriorityLevelConfiguration,
	mandatory bool) (*flowcontrolv1.PriorityLevelConfiguration, error) {
	strategy := ensurer.NewSuggestedEnsureStrategy[*flowcontrolv1.PriorityLevelConfiguration]()
	if mandatory {
		strategy = ensurer.NewMandatoryEnsureStrategy[*flowcontrolv1.PriorityLevelConfiguration]()
	}
	next, _, err := strategy.ReviseIfNeeded(ensurer.NewPriorityLevelConfigurationOps(nil, nil), have, want)
	return next, err
}

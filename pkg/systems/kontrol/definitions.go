package kontrol

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
)

// dnsLabel is the pattern of a DNS label.
const dnsLabel = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

// Definitions returns CustomResourceDefinitions of Kontrol's kinds for other API servers than Coracle's. Their schemas
// have the defaults and the cheap part of the validation. The operator does the rest and reports errors in the status.
func Definitions() (list []*apiextensionsv1.CustomResourceDefinition) {
	oneTarget := own.WithRule("has(self.clusterName) != has(self.clusterSelector)",
		"exactly one of clusterName and clusterSelector")
	for _, o := range kinds(nil) {
		var columns []apiextensionsv1.CustomResourceColumnDefinition
		for _, c := range kontrol.Printed(o.Row.Kind) {
			columns = append(columns, apiextensionsv1.CustomResourceColumnDefinition{
				Name:        c.Name,
				Type:        c.Type,
				Description: c.Description,
				Priority:    c.Priority,
				JSONPath:    c.Path,
			})
		}
		d := own.CustomResource(o.Row, columns, "")
		version := &d.Spec.Versions[0]
		s := version.Schema.OpenAPIV3Schema
		switch o.Row.Kind {
		case "Cluster":
			own.Adjust(s, "metadata", own.WithNames(63, dnsLabel))
			own.Adjust(s, "spec",
				own.WithRule("(has(self.local) && self.local) != has(self.kubeconfigSecret)",
					"exactly one of local and kubeconfigSecret"))
			own.Adjust(s, "spec.kubeconfigSecret.key", own.WithDefault(kontrol.DefaultKey))
			own.Adjust(s, "spec.pull",
				own.WithRule("self == false",
					"agents connect to the API servers of Coracle alone: give kubeconfigSecret, or run the hub as coracle server "+
						"--no-node"))
		case "Resource":
			own.Adjust(s, "metadata", own.WithNames(150, ""))
			own.Adjust(s, "spec", oneTarget)
			own.Adjust(s, "spec.revision", func(s *own.Schema) { s.Minimum = new(1.0) })
			own.Adjust(s, "spec.template", identified)
			own.Adjust(s, "spec.approval", own.OneOf(kontrol.ApprovalNone, kontrol.ApprovalManual))
			common(s)
			version.SelectableFields = selectable(kontrol.FieldID)
		case "Bundle":
			own.Adjust(s, "metadata", own.WithNames(63, dnsLabel))
			own.Adjust(s, "spec", oneTarget)
			own.Adjust(s, "spec.source",
				own.WithRule("[has(self.inline), has(self.configMap), has(self.artifact)].exists_one(x, x)",
					"exactly one of inline, configMap and artifact"))
			own.Adjust(s, "spec.source.artifact.pullSecret.key", own.WithDefault(kontrol.DockerConfigKey))
			own.Adjust(s, "spec.rollout", own.WithDefault(struct{}{}))
			own.Adjust(s, "spec.rollout.onFailure", own.OneOf(kontrol.FailureStop, kontrol.FailureContinue),
				own.WithDefault(kontrol.FailureStop))
			own.Adjust(s, "spec.rollout.approval", own.OneOf(kontrol.ApprovalNone, kontrol.ApprovalManual),
				own.WithDefault(kontrol.ApprovalNone))
			own.Adjust(s, "spec.rollout.maxUnavailable", own.WithDefault(1))
			own.Adjust(s, "spec.rollout.healthTimeout", own.WithDefault(metav1.Duration{Duration: kontrol.DefaultHealthTimeout}))
			common(s)
		default: // AppliedState and CurrentState, each with one writer
			own.Adjust(s, "state", func(s *own.Schema) { s.XMapType = new("atomic") })
			version.SelectableFields = selectable(kontrol.FieldResource, kontrol.FieldCluster)
		}
		list = append(list, d)
	}
	return list
}

// common adjusts the fields that the specs of Resources and Bundles share.
func common(s *own.Schema) {
	own.Adjust(s, "spec.mode", own.OneOf(kontrol.ModeReport, kontrol.ModeCorrect, kontrol.ModeEnforce),
		own.WithDefault(kontrol.ModeCorrect))
	own.Adjust(s, "spec.deletionPolicy", own.OneOf(kontrol.DeletionOrphan, kontrol.DeletionDelete),
		own.WithDefault(kontrol.DeletionDelete))
	own.Adjust(s, "spec.windows.[].kind", own.OneOf(kontrol.WindowAllow, kontrol.WindowDeny))
}

func selectable(fields ...string) (list []apiextensionsv1.SelectableField) {
	for _, f := range fields {
		list = append(list, apiextensionsv1.SelectableField{JSONPath: "." + f})
	}
	return list
}

// identified requires a template's identifying fields and forbids to change them. The operator checks changes of the
// group and namespace, since comparing them exceeds the cost limit of a CEL rule.
func identified(s *own.Schema) {
	yes, least, most := true, int64(1), int64(253)
	needed := own.Schema{Type: "string", MinLength: &least, MaxLength: &most}
	s.Properties = map[string]own.Schema{
		"apiVersion": needed, "kind": needed, "status": {Type: "object", XPreserveUnknownFields: &yes},
		"metadata": {
			Type:                   "object",
			XPreserveUnknownFields: &yes,
			Required:               []string{"name"},
			Properties:             map[string]own.Schema{"name": needed, "namespace": {Type: "string", MaxLength: &most}},
		},
	}
	s.Required = []string{"apiVersion", "kind", "metadata"}
	own.WithRule("!has(self.status)", "the cluster writes the status")(s)
	for _, field := range []string{"kind", "metadata.name"} {
		own.WithRule(fmt.Sprintf("self.%[1]s == oldSelf.%[1]s", field),
			field+" cannot be changed: the object of that name would stay behind; make another Resource")(s)
	}
}

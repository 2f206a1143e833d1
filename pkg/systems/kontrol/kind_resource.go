package kontrol

import (
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
)

// resourceKind returns the kind Resource. Deletion adds a finalizer, which stays until the deletion policy is carried
// out on all clusters.
func resourceKind() own.Kind {
	k := own.Declare(own.Definition[*kontrol.Resource]{
		Kind: kontrol.GroupVersion.WithKind("Resource"), Plural: "resources", ShortNames: []string{"kres"},
		Categories: categories, Cluster: true, Source: kontrol.ResourceSource,
		New:     func() *kontrol.Resource { return &kontrol.Resource{} },
		NewList: func() client.ObjectList { return &kontrol.ResourceList{} },
		Default: kontrol.DefaultWritten, Validate: kontrol.Validate, ValidateUpdate: kontrol.ValidateUpdate,
		Prepare: kontrol.Prepare, Changed: kontrol.Changed, PrepareStatus: kontrol.PrepareStatus,
		Fields: []own.Field[*kontrol.Resource]{{
			Name: kontrol.FieldID, Indexed: true,
			Value: func(r *kontrol.Resource) string { return strconv.FormatInt(r.Status.ID, 10) },
		}},
		Whole:   "status", // has one frequent writer
		Columns: resourceColumns(),
		Schema: func(s *own.Schema) {
			own.Adjust(s, "metadata", own.WithNames(150, ""))
			commonSchema(s)
			own.Adjust(s, "spec.revision", func(s *own.Schema) { s.Minimum = new(1.0) })
			own.Adjust(s, "spec.template", identified)
			own.Adjust(s, "spec.approval", own.OneOf(kontrol.ApprovalNone, kontrol.ApprovalManual))
		},
	}, func(r *kontrol.Resource) *kontrol.ResourceStatus { return &r.Status })
	k.Row.BeginDelete = func(o runtime.Object) {
		if m, ok := o.(*kontrol.Resource); ok && !slices.Contains(m.Finalizers, kontrol.FinalizerTargets) {
			m.Finalizers = append(m.Finalizers, kontrol.FinalizerTargets)
		}
	}
	return k
}

func resourceColumns() []own.Column[*kontrol.Resource] {
	return []own.Column[*kontrol.Resource]{
		elsewhere[*kontrol.Resource]("Kind", "The kind of the object", ".spec.template.kind", "string"),
		elsewhere[*kontrol.Resource]("Object", "The name of the object", ".spec.template.metadata.name", "string"),
		text("Object", "The kind and name of the object", "",
			func(r *kontrol.Resource) any { return kontrol.TargetOf(r) }),
		elsewhere[*kontrol.Resource]("Synced", "The clusters in sync", ".status.clusters.synced", "integer"),
		elsewhere[*kontrol.Resource]("Clusters", "The clusters that should have it", ".status.clusters.total", "integer"),
		text("Clusters", "The clusters in sync, of those that should have it", "",
			func(r *kontrol.Resource) any {
				return fmt.Sprintf("%d/%d", r.Status.Clusters.Synced, r.Status.Clusters.Total)
			}),
		text("State", "The worst state on any cluster", ".status.state",
			func(r *kontrol.Resource) any { return r.State() }),
		number("Revision", "The revision of its content", ".spec.revision",
			func(r *kontrol.Resource) any { return kontrol.RevisionOf(r) }),
		text("Mode", "What is done about drift", ".spec.mode", func(r *kontrol.Resource) any { return r.Spec.Mode }),
		own.AgeColumn[*kontrol.Resource](),
		wide(text("ID", "Its number", "", func(r *kontrol.Resource) any { return r.Status.ID })),
		wide(text("Generation", "How often it was changed", "", func(r *kontrol.Resource) any { return r.Generation })),
		messageColumn(".status.message", func(r *kontrol.Resource) any { return r.Status.Message }),
	}
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

package kontrol

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
)

func appliedKind() own.Kind {
	type state = *kontrol.AppliedState
	return own.Declare[kontrol.AppliedState, struct{}](own.Definition[state]{
		Kind: kontrol.GroupVersion.WithKind("AppliedState"), Plural: "appliedstates", ShortNames: []string{"kas"},
		Categories: categories, Cluster: true, Source: kontrol.StateSource,
		New:      func() state { return &kontrol.AppliedState{} },
		NewList:  func() client.ObjectList { return &kontrol.AppliedStateList{} },
		Validate: kontrol.ValidateApplied, Whole: "state", Schema: stateSchema,
		Fields: stateFields(func(a state) *kontrol.Subject { return &a.State.Subject }),
		Columns: append(stateColumns(func(a state) *kontrol.Subject { return &a.State.Subject }),
			number("Generation", "The Resource's generation that was applied", ".state.generation",
				func(a state) any { return a.State.Generation }),
			number("Revision", "The Resource's revision that was applied", ".state.revision",
				func(a state) any { return a.State.Revision }),
			text("Status", "The result of the last attempt", ".state.status", func(a state) any {
				if a.State.Reason != "" {
					return string(a.State.Status) + ": " + a.State.Reason
				}
				return a.State.Status
			}),
			agoColumn("Applied", "Time since it was applied last", ".state.appliedAt",
				func(a state) *metav1.MicroTime { return a.State.AppliedAt }),
			wide(text("Corrections", "How often drift was corrected", "", func(a state) any { return a.State.Corrections })),
			messageColumn(".state.error", func(a state) any { return a.State.Error })),
	}, nil)
}

func currentKind() own.Kind {
	type state = *kontrol.CurrentState
	return own.Declare[kontrol.CurrentState, struct{}](own.Definition[state]{
		Kind: kontrol.GroupVersion.WithKind("CurrentState"), Plural: "currentstates", ShortNames: []string{"kcs"},
		Categories: categories, Cluster: true, Source: kontrol.StateSource,
		New:      func() state { return &kontrol.CurrentState{} },
		NewList:  func() client.ObjectList { return &kontrol.CurrentStateList{} },
		Validate: kontrol.ValidateCurrent, Whole: "state", Schema: stateSchema,
		Fields: stateFields(func(c state) *kontrol.Subject { return &c.State.Subject }),
		Columns: append(stateColumns(func(c state) *kontrol.Subject { return &c.State.Subject }),
			number("Generation", "The Resource's generation that is there", ".state.generation",
				func(c state) any { return c.State.Generation }),
			number("Revision", "The Resource's revision that is there", ".state.revision",
				func(c state) any { return c.State.Revision }),
			text("Health", "Whether it works", ".state.health",
				func(c state) any { return cmp.Or(c.State.Reason, string(c.State.Health)) }),
			number("Drift", "How many fields others changed", ".state.driftCount",
				func(c state) any { return c.State.DriftCount }),
			agoColumn("Seen", "Time since anything changed", ".state.time",
				func(c state) *metav1.MicroTime { return c.State.Time }),
			wide(text("Version", "The object's resourceVersion on the cluster", "",
				func(c state) any { return c.State.ResourceVersion })),
			wide(text("First Drift", "The field that others changed, and who", "", func(c state) any {
				if len(c.State.Drift) == 0 {
					return ""
				}
				d := c.State.Drift[0]
				first := d.Path + " " + string(d.Type)
				if d.Manager != "" {
					first += " by " + d.Manager
				}
				return first
			})),
			messageColumn(".state.error", func(c state) any { return cmp.Or(c.State.Error, c.State.HealthMessage) })),
	}, nil)
}

// stateSchema makes the state atomic: it has one writer.
func stateSchema(s *own.Schema) {
	own.Adjust(s, "state", func(s *own.Schema) { s.XMapType = new("atomic") })
}

func stateFields[P client.Object](subject func(P) *kontrol.Subject) []own.Field[P] {
	return []own.Field[P]{
		{Name: kontrol.FieldResource, Indexed: true, Value: func(o P) string { return subject(o).Resource }},
		{Name: kontrol.FieldCluster, Indexed: true, Value: func(o P) string { return subject(o).Cluster }},
	}
}

func stateColumns[P client.Object](subject func(P) *kontrol.Subject) []own.Column[P] {
	return []own.Column[P]{
		elsewhere[P]("Kind", "The kind of the object", ".state.target.kind", "string"),
		elsewhere[P]("Object", "The name of the object", ".state.target.name", "string"),
		text("Object", "The kind and name of the object", "", func(o P) any { return subject(o).Target }),
		text("Cluster", "The cluster", ".state.cluster", func(o P) any { return subject(o).Cluster }),
	}
}

func agoColumn[P client.Object](name, about, path string, at func(P) *metav1.MicroTime) own.Column[P] {
	return own.Column[P]{
		Name: name, About: about, Path: path, PathType: "date",
		Cell: func(o P) any {
			if t := at(o); t != nil {
				return own.Ago(&metav1.Time{Time: t.Time}, "never")
			}
			return "never"
		},
	}
}

package kontrol

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/pull"
)

// kinds returns Kontrol's kinds. tunnels is nil if no agents can connect.
func kinds(tunnels *pull.Hub) []own.Kind {
	return []own.Kind{
		{Row: tunnelled(tunnels, own.Row(own.Definition[*kontrol.Cluster]{
			Kind: kontrol.GroupVersion.WithKind("Cluster"), Plural: "clusters", ShortNames: []string{"kcl"},
			Categories: []string{"coracle", "kontrol"}, Cluster: true,
			New:     func() *kontrol.Cluster { return &kontrol.Cluster{} },
			NewList: func() client.ObjectList { return &kontrol.ClusterList{} },
			Default: kontrol.DefaultCluster, Validate: kontrol.ValidateCluster, Columns: kontrol.ClusterColumns,
			Cells: kontrol.ClusterCells, Source: kontrol.Source,
		}, func(c *kontrol.Cluster) *kontrol.ClusterStatus { return &c.Status })), Rights: kontrol.ClusterRights},
		{Row: resourceRow(), Rights: kontrol.ResourceRights},
		{Row: own.Row(own.Definition[*kontrol.Bundle]{
			Kind: kontrol.GroupVersion.WithKind("Bundle"), Plural: "bundles", ShortNames: []string{"kbu"},
			Categories: []string{"coracle", "kontrol"}, Cluster: true,
			New:     func() *kontrol.Bundle { return &kontrol.Bundle{} },
			NewList: func() client.ObjectList { return &kontrol.BundleList{} },
			Default: kontrol.DefaultBundle, Validate: kontrol.ValidateBundle, Columns: kontrol.BundleColumns,
			Cells:  kontrol.BundleCells,
			Source: kontrol.BundleSourceText,
		}, func(b *kontrol.Bundle) *kontrol.BundleStatus { return &b.Status }), Rights: kontrol.BundleRights},
		{Row: stateRow(own.Row[kontrol.AppliedState, struct{}](own.Definition[*kontrol.AppliedState]{
			Kind: kontrol.GroupVersion.WithKind("AppliedState"), Plural: "appliedstates", ShortNames: []string{"kas"},
			Categories: []string{"coracle", "kontrol"}, Cluster: true,
			New:      func() *kontrol.AppliedState { return &kontrol.AppliedState{} },
			NewList:  func() client.ObjectList { return &kontrol.AppliedStateList{} },
			Validate: kontrol.ValidateApplied, Columns: kontrol.AppliedColumns, Cells: kontrol.AppliedCells,
			Source: kontrol.StateSource,
			Fields: kontrol.AppliedFields,
		}, nil)), Rights: kontrol.AppliedRights},
		{Row: stateRow(own.Row[kontrol.CurrentState, struct{}](own.Definition[*kontrol.CurrentState]{
			Kind: kontrol.GroupVersion.WithKind("CurrentState"), Plural: "currentstates", ShortNames: []string{"kcs"},
			Categories: []string{"coracle", "kontrol"}, Cluster: true,
			New:      func() *kontrol.CurrentState { return &kontrol.CurrentState{} },
			NewList:  func() client.ObjectList { return &kontrol.CurrentStateList{} },
			Validate: kontrol.ValidateCurrent, Columns: kontrol.CurrentColumns, Cells: kontrol.CurrentCells,
			Source: kontrol.StateSource,
			Fields: kontrol.CurrentFields,
		}, nil)), Rights: kontrol.CurrentRights},
	}
}

// resourceRow returns the kind Resource. Deletion adds a finalizer, which stays until the deletion policy is carried
// out on all clusters.
func resourceRow() *kind.Resource {
	r := own.Row(own.Definition[*kontrol.Resource]{
		Kind: kontrol.GroupVersion.WithKind("Resource"), Plural: "resources", ShortNames: []string{"kres"},
		Categories: []string{"coracle", "kontrol"}, Cluster: true,
		New:     func() *kontrol.Resource { return &kontrol.Resource{} },
		NewList: func() client.ObjectList { return &kontrol.ResourceList{} },
		Default: kontrol.DefaultWritten, Validate: kontrol.Validate, ValidateUpdate: kontrol.ValidateUpdate,
		Prepare: kontrol.Prepare, Changed: kontrol.Changed, PrepareStatus: kontrol.PrepareStatus,
		Columns: kontrol.Columns, Cells: kontrol.Cells, Source: kontrol.ResourceSource,
		Fields: kontrol.ResourceFields,
	}, func(r *kontrol.Resource) *kontrol.ResourceStatus { return &r.Status })
	own.Index(r, kontrol.FieldID, func(o client.Object) string { return r.Fields(o)[kontrol.FieldID] })
	own.WholeField(r, "status") // has one frequent writer
	r.BeginDelete = func(o runtime.Object) {
		if m, ok := o.(*kontrol.Resource); ok && !slices.Contains(m.Finalizers, kontrol.FinalizerTargets) {
			m.Finalizers = append(m.Finalizers, kontrol.FinalizerTargets)
		}
	}
	return r
}

// stateRow adds indexes to a kind of states and makes the field state atomic: it has one writer.
func stateRow(r *kind.Resource) *kind.Resource {
	own.WholeField(r, "state")
	own.Index(r, kontrol.FieldResource, func(o client.Object) string {
		resource, _ := kontrol.SubjectOf(o)
		return resource
	})
	own.Index(r, kontrol.FieldCluster, func(o client.Object) string { _, cluster := kontrol.SubjectOf(o); return cluster })
	return r
}

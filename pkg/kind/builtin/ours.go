package builtin

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/kind/own"
)

// ours is the rows of our own kinds: one each.
func ours() []*kind.Resource {
	return []*kind.Resource{
		own.Row(own.Definition[*tasks.Task]{
			Kind: tasks.GroupVersion.WithKind("Task"), Plural: "tasks", Categories: []string{"coracle"},
			New: func() *tasks.Task { return &tasks.Task{} }, NewList: func() client.ObjectList { return &tasks.TaskList{} },
			Default: tasks.Default, Validate: tasks.Validate, ValidateUpdate: tasks.ValidateUpdate, ValidateStatus: tasks.ValidateStatusUpdate,
			Columns: tasks.Columns, Cells: tasks.Cells, Source: tasks.Source,
		}, func(t *tasks.Task) *tasks.TaskStatus { return &t.Status }),
	}
}

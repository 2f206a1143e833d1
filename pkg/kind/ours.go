package kind

import (
	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ours is the rows of our own kinds: one each.
func ours() []*Resource {
	return []*Resource{
		Own(Definition[*tasks.Task]{
			Kind: tasks.GroupVersion.WithKind("Task"), Plural: "tasks", Categories: []string{"coracle"},
			New: func() *tasks.Task { return &tasks.Task{} }, NewList: func() client.ObjectList { return &tasks.TaskList{} },
			Default: tasks.Default, Validate: tasks.Validate, ValidateUpdate: tasks.ValidateUpdate, ValidateStatus: tasks.ValidateStatusUpdate,
			Columns: tasks.Columns, Cells: tasks.Cells, Source: tasks.Source,
		}, func(t *tasks.Task) *tasks.TaskStatus { return &t.Status }),
	}
}

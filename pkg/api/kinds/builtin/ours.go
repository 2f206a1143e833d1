package builtin

import (
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/custom"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// ourKind is one of Coracle's own kinds: its row, and RBAC rules for its reconciler, editors and viewers.
type ourKind struct {
	row    *kind.Resource
	rights rights
}

// ours returns Coracle's own kinds.
func ours() []ourKind {
	return append(slices.Concat(kontrolKinds(), buildbarnKinds(), snapshotKinds()), []ourKind{
		{own.Row(own.Definition[*tasks.Task]{
			Kind: tasks.GroupVersion.WithKind("Task"), Plural: "tasks", Categories: []string{"coracle"},
			New: func() *tasks.Task { return &tasks.Task{} }, NewList: func() client.ObjectList { return &tasks.TaskList{} },
			Default: tasks.Default, Validate: validateTask, ValidateUpdate: tasks.ValidateUpdate, ValidateStatus: tasks.ValidateStatusUpdate,
			Fields: tasks.Fields, Columns: tasks.Columns, Cells: tasks.Cells, Source: tasks.Source,
		}, func(t *tasks.Task) *tasks.TaskStatus { return &t.Status }), tasks.Rights},
		{own.Row(own.Definition[*tasks.TaskSchedule]{
			Kind: tasks.GroupVersion.WithKind("TaskSchedule"), Plural: "taskschedules", Categories: []string{"coracle"},
			New: func() *tasks.TaskSchedule { return &tasks.TaskSchedule{} }, NewList: func() client.ObjectList { return &tasks.TaskScheduleList{} },
			Default: tasks.DefaultSchedule, Validate: validateTaskSchedule, Columns: tasks.ScheduleColumns, Cells: tasks.ScheduleCells, Source: tasks.ScheduleSource,
		}, func(s *tasks.TaskSchedule) *tasks.TaskScheduleStatus { return &s.Status }), tasks.ScheduleRights},
		{own.Row(own.Definition[*workers.Worker]{
			Kind: workers.GroupVersion.WithKind("Worker"), Plural: "workers", Categories: []string{"coracle"},
			New: func() *workers.Worker { return &workers.Worker{} }, NewList: func() client.ObjectList { return &workers.WorkerList{} },
			Default: workers.Default, Validate: workers.Validate, ValidateUpdate: workers.ValidateUpdate,
			Columns: workers.Columns, Cells: workers.Cells, Source: workers.Source,
		}, func(w *workers.Worker) *workers.WorkerStatus { return &w.Status }), workers.Rights},
	}...)
}

// ourRows returns the rows of Coracle's own kinds.
func ourRows() []*kind.Resource {
	rows := []*kind.Resource{custom.Definitions()} // a kind that makes kinds
	for _, o := range ours() {
		switch o.row.Kind {
		case "Task":
			owned(o.row, "status") // one reconciler writes it, several times within moments
			o.row.Subresources = []kind.Subresource{{Name: "log", GroupVersionKind: o.row.GroupVersionKind, Verbs: []string{"get"}, Connect: taskLog, Methods: []string{http.MethodGet}}}
		case "Worker": // one that follows its queues refuses to have a number of replicas
			o.row.Subresources = append(o.row.Subresources, scale(scaleOf(func(w *workers.Worker) (**int32, int32, *metav1.LabelSelector) {
				return &w.Spec.Replicas, w.Status.Replicas, &metav1.LabelSelector{MatchLabels: map[string]string{workers.LabelWorker: w.Name}}
			})))
		}
		rows = append(rows, o.row)
	}
	return rows
}

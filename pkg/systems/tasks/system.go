// Package tasks is the system of tasks (Podling): containers that run to completion, once or by a schedule, on the
// cluster's nodes or on external workers. Its invariant: a task reaches exactly one of the terminal phases, once.
package tasks

import (
	"context"
	"embed"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems/system"
	"github.com/coracle-dev/coracle/pkg/systems/tasks/commands"
	"github.com/coracle-dev/coracle/pkg/systems/tasks/externalworker"
	"github.com/coracle-dev/coracle/pkg/systems/tasks/task"
	"github.com/coracle-dev/coracle/pkg/systems/tasks/tasklogs"
	"github.com/coracle-dev/coracle/pkg/systems/tasks/taskschedule"
)

//go:embed manual
var pages embed.FS

// New returns the system.
func New() system.System {
	rows := kinds()
	return system.System{
		Name:      "tasks",
		Extension: own.Extension{Kinds: rows},
		Node:      tasklogs.Part,
		Commands:  commands.New(own.Resources(rows)),
		Manual:    pages,
		Reconcilers: func(c system.Controllers) []*engine.Reconciler {
			return []*engine.Reconciler{task.New(c.TaskPatience, forget(c)), taskschedule.New(), externalworker.New()}
		},
	}
}

func kinds() []own.Kind { return []own.Kind{taskKind(), scheduleKind()} }

func taskKind() own.Kind {
	k := own.Declare(own.Definition[*tasks.Task]{
		Kind: tasks.GroupVersion.WithKind("Task"), Plural: "tasks", Categories: []string{"coracle"},
		New:     func() *tasks.Task { return &tasks.Task{} },
		NewList: func() client.ObjectList { return &tasks.TaskList{} },
		Default: tasks.Default, Validate: validate, ValidateUpdate: tasks.ValidateUpdate,
		ValidateStatus: tasks.ValidateStatusUpdate,
		Fields: []own.Field[*tasks.Task]{
			{Name: "status.phase", Value: func(t *tasks.Task) string { return string(t.Status.Phase) }},
		},
		Columns: taskColumns(), Source: tasks.Source, View: true, Edit: true,
		Whole: "status", // one reconciler writes it, often several times within milliseconds
	}, func(t *tasks.Task) *tasks.TaskStatus { return &t.Status })
	k.Row.Subresources = []kind.Subresource{{
		Name: "log", GroupVersionKind: k.Row.GroupVersionKind, Verbs: []string{"get"}, Connect: taskLog,
		Methods: []string{http.MethodGet},
	}, {
		Name: "output", GroupVersionKind: k.Row.GroupVersionKind, Verbs: []string{"get"}, Connect: taskOutput,
		Methods: []string{http.MethodGet},
	}}
	k.Row.Requires = func(o, old client.Object) []kind.Permission {
		if old != nil { // the fields that need a permission do not change
			return nil
		}
		return required(&o.(*tasks.Task).Spec)
	}
	return k
}

func scheduleKind() own.Kind {
	k := own.Declare(own.Definition[*tasks.TaskSchedule]{
		Kind: tasks.GroupVersion.WithKind("TaskSchedule"), Plural: "taskschedules", Categories: []string{"coracle"},
		New:     func() *tasks.TaskSchedule { return &tasks.TaskSchedule{} },
		NewList: func() client.ObjectList { return &tasks.TaskScheduleList{} },
		Default: tasks.DefaultSchedule, Validate: validateSchedule,
		Columns: scheduleColumns(), Source: tasks.ScheduleSource, View: true, Edit: true,
	}, func(s *tasks.TaskSchedule) *tasks.TaskScheduleStatus { return &s.Status })
	k.Row.Requires = func(o, old client.Object) []kind.Permission {
		s := o.(*tasks.TaskSchedule)
		if was, ok := old.(*tasks.TaskSchedule); ok && equality.Semantic.DeepEqual(was.Spec, s.Spec) {
			return nil
		}
		return required(&s.Spec.TaskTemplate.Spec)
	}
	return k
}

// required returns the permission for fields with which a task can do what otherwise only pods can.
func required(s *tasks.TaskSpec) []kind.Permission {
	if !tasks.NeedsPods(s) {
		return nil
	}
	return []kind.Permission{{
		Verb: "create", Resource: "pods",
		Why: "initContainers, serviceAccountName and volumes of persistentVolumeClaim and hostPath are for users who may " +
			"create pods",
	}}
}

// forget returns a function that asks a node's agent to remove the logs of a deleted task, or nil if there is no way
// to reach nodes.
func forget(c system.Controllers) func(ctx context.Context, node, namespace string, task types.UID) error {
	if c.Connect == nil {
		return nil
	}
	return func(ctx context.Context, node, namespace string, task types.UID) error {
		base, transport, err := c.Connect(ctx, node)
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodDelete,
			base.JoinPath("taskLogs", string(task), namespace).String(), nil)
		if err != nil {
			return err
		}
		res, err := transport.RoundTrip(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("node %s: %s", node, res.Status)
		}
		return nil
	}
}

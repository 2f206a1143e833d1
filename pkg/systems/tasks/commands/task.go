package commands

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine/indexes"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// interruptedCode is the exit code of an interrupted wait: 128 and the number of SIGINT, as in shells.
const interruptedCode = 130

// failed returns the error of a task that failed or was cancelled. The command exits with the container's exit code, or
// 1 if there is none. kept means that the task still exists.
func failed(t *tasks.Task, kept bool) error {
	code, s := 1, t.Status
	if c := s.ExitCode; c != nil && *c != 0 {
		code = int(*c)
	}
	if s.Reason == tasks.ReasonCancelled {
		return cancelled(t.Name, code)
	}
	reason := s.Error
	if i := failedIndex(t); i >= 0 && kept {
		reason += fmt.Sprintf("; `coracle logs %s --index %d` prints its output", t.Name, i)
	}
	return &command.Exit{Code: code, Err: fmt.Errorf("task %s failed: %s", t.Name, reason)}
}

func cancelled(name string, code int) error {
	return &command.Exit{Code: code, Err: fmt.Errorf("task %s was cancelled", name)}
}

// failedIndex returns the first of the listed failed indexes if its container has started, so that it may have output.
// Otherwise, and without an array, it returns -1.
func failedIndex(t *tasks.Task) int {
	if t.Status.Array == nil {
		return -1
	}
	all := indexes.Parse(t.Status.Array.FailedIndexes, int(t.Size()))
	for _, a := range t.Status.Attempts {
		if a.Phase == tasks.TaskFailed && a.StartedAt != nil && a.Index != nil && all.Has(int(*a.Index)) {
			return int(*a.Index)
		}
	}
	return -1
}

var unfinished = fields.AndSelectors(fields.OneTermNotEqualSelector("status.phase", string(tasks.TaskCompleted)),
	fields.OneTermNotEqualSelector("status.phase", string(tasks.TaskFailed)))

var errNoTask = errors.New("there is no task")

func (c cluster) getTask(ctx context.Context, name string) (*tasks.Task, error) {
	t := &tasks.Task{}
	err := c.Client.Get(ctx, ctrl.ObjectKey{Namespace: c.Namespace, Name: name}, t)
	if apierrors.IsNotFound(err) {
		if err := c.CheckNamespace(ctx); err != nil {
			return nil, err
		}
		if c.Client.Get(ctx, ctrl.ObjectKey{Namespace: c.Namespace, Name: name}, &tasks.TaskSchedule{}) == nil {
			return nil, fmt.Errorf("%s in namespace %s is no task, but a schedule or template: `coracle ps -a` lists its "+
				"tasks, `coracle ctl delete taskschedule %[1]s` deletes it, `coracle run --from %[1]s` runs one now", name,
				c.Namespace)
		}
		return nil, fmt.Errorf("%w %s in namespace %s: `coracle ps -a` lists tasks", errNoTask, name, c.Namespace)
	}
	return t, err
}

// refuseSchedules returns an error if a task would wait for a task that has the name of a schedule.
func (c cluster) refuseSchedules(ctx context.Context, t *tasks.Task) error {
	for _, a := range t.Spec.After {
		key := ctrl.ObjectKey{Namespace: c.Namespace, Name: a.Name}
		if apierrors.IsNotFound(c.Client.Get(ctx, key, &tasks.Task{})) &&
			c.Client.Get(ctx, key, &tasks.TaskSchedule{}) == nil {
			return fmt.Errorf("--after %[1]s: %[1]s is a schedule, and --after waits once for one task: name one of "+
				"the tasks that `coracle ps -a` lists, or see `coracle help batch` for an alarm each time a task "+
				"fails", a.Name)
		}
	}
	return nil
}

func (c cluster) eachTask(ctx context.Context, match fields.Selector, f func([]tasks.Task) error) error {
	o := &ctrl.ListOptions{Namespace: c.Namespace, Limit: command.Page, FieldSelector: match}
	for {
		var list tasks.TaskList
		if err := c.Client.List(ctx, &list, o); err != nil {
			return err
		}
		if err := f(list.Items); err != nil {
			return err
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return nil
		}
	}
}

// Cancel cancels tasks. It reports each task through say.
func (c cluster) Cancel(ctx context.Context, names []string, say func(format string, args ...any)) error {
	for _, name := range names {
		t, err := c.getTask(ctx, name)
		if err != nil {
			return err
		}
		if t.Status.Phase.Ended() {
			say("task %s has ended already: %s\n", name, strings.ToLower(tasks.Outcome(t.Status.Phase, t.Status.Reason)))
			continue
		}
		if err := c.Client.Patch(ctx, t, ctrl.RawPatch("application/merge-patch+json", []byte(`{"spec":{"cancel":true}}`))); err != nil {
			return err
		}
		say("task %s is cancelled\n", name)
	}
	return nil
}

// Prune deletes the ended tasks of the namespace with their logs, and returns their number.
func (c cluster) Prune(ctx context.Context) (int, error) {
	count := 0
	for _, phase := range []tasks.TaskPhase{tasks.TaskCompleted, tasks.TaskFailed} {
		match := fields.OneTermEqualSelector("status.phase", string(phase))
		err := c.eachTask(ctx, match, func(list []tasks.Task) error {
			count += len(list)
			return nil
		})
		if err != nil {
			return 0, err
		}
		if err := c.Client.DeleteAllOf(ctx, &tasks.Task{}, ctrl.InNamespace(c.Namespace),
			ctrl.MatchingFieldsSelector{Selector: match}); err != nil {
			return 0, err
		}
	}
	if count == 0 {
		return 0, c.CheckNamespace(ctx)
	}
	return count, nil
}

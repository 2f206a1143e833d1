package commands

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

const taskHeader = "TASK\tIMAGE?\tSTATUS\tNODE\tEXIT\tATTEMPTS?\tINDEXES\tCREATED?\tTOOK?\tERROR"

func taskLine(t *tasks.Task, now time.Time) []any {
	s := t.Status
	return []any{
		t.Name, t.Spec.Image, tasks.Outcome(s.Phase, s.Reason), s.Node, exit(s.ExitCode), tasks.Attempts(t),
		tasks.Indexes(t), command.Ago(&t.CreationTimestamp, now), ran(s.StartedAt, s.FinishedAt, now),
		command.Shorten(s.Error),
	}
}

// ran returns how long a task or attempt ran, or has run if it has not ended.
func ran(start, end *metav1.Time, now time.Time) string {
	if start == nil || end == nil {
		return command.Ago(start, now)
	}
	return max(end.Sub(start.Time), 0).Round(100 * time.Millisecond).String()
}

// Tasks prints the unfinished tasks of the namespace, or all. One page is sorted by age, more pages by name.
func (c cluster) Tasks(ctx context.Context, all bool, t command.Terminal) error {
	match := unfinished
	if all {
		match = fields.Everything()
	}
	found := false
	err := c.eachTask(ctx, match, func(list []tasks.Task) error {
		if len(list) == 0 {
			return nil
		}
		found = true
		if len(list) < command.Page { // there is only one page
			slices.SortStableFunc(list, func(a, b tasks.Task) int {
				return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
			})
		}
		now := time.Now()
		return command.Table(t.Out, taskHeader, func(line func(...any)) {
			for i := range list {
				line(taskLine(&list[i], now)...)
			}
		})
	})
	if err != nil || found {
		return err
	}
	if err := c.CheckNamespace(ctx); err != nil {
		return err
	}
	if all {
		_, err = fmt.Fprintf(t.Err, "No tasks in namespace %s. Run one: coracle run hi --image busybox:1.36 -- echo hello\n",
			c.Namespace)
	} else {
		_, err = fmt.Fprintf(t.Err, "No unfinished tasks in namespace %s: coracle ps -a also lists ended ones.\n",
			c.Namespace)
	}
	return err
}

// WatchTasks prints a line for each change of a task until ctx is done.
func (c cluster) WatchTasks(ctx context.Context, all bool, t command.Terminal) error {
	const format = "%-30s  %-10s  %-20s  %4s  %8v  %-7s  %s\n"
	if err := c.CheckNamespace(ctx); err != nil {
		return err
	}
	fmt.Fprintf(t.Out, format, "TASK", "STATUS", "NODE", "EXIT", "ATTEMPTS", "INDEXES", "ERROR")
	first := true
	for ctx.Err() == nil {
		w, err := c.Client.Watch(ctx, &tasks.TaskList{}, ctrl.InNamespace(c.Namespace))
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		began := time.Now()
		for event := range w.ResultChan() {
			task, ok := event.Object.(*tasks.Task)
			if !ok ||
				first && !all && task.Status.Phase.Ended() && task.Status.FinishedAt != nil &&
					task.Status.FinishedAt.Time.Before(began) {
				continue
			}
			line := taskLine(task, time.Now())
			if event.Type == "DELETED" {
				line[2] = "Deleted"
			}
			for i := range line {
				if line[i] == "" {
					line[i] = "-"
				}
			}
			fmt.Fprintf(t.Out, format, line[0], fmt.Sprint(line[2]), line[3], line[4], line[5], line[6], line[9])
		}
		first = false
	}
	return nil
}

func exit(code *int32) string {
	if code == nil {
		return ""
	}
	return fmt.Sprint(*code)
}

// Task prints one task in detail.
func (c cluster) Task(ctx context.Context, name string, out io.Writer) error {
	t, err := c.getTask(ctx, name)
	if err != nil {
		return err
	}
	rows := [][2]string{
		{"Task", t.Name}, {"Image", t.Spec.Image},
		{"Command", strings.Join(append(slices.Clone(t.Spec.Command), t.Spec.Args...), " ")},
		{"Status", tasks.Outcome(t.Status.Phase, t.Status.Reason)}, {"Reason", t.Status.Reason}, {"Error", t.Status.Error},
		{"Node", t.Status.Node}, {"Pod", t.Status.PodName}, {"Container", t.Status.ContainerID},
		{"Exit code", exit(t.Status.ExitCode)},
		{"Created", command.Stamp(&t.CreationTimestamp)}, {"Scheduled", command.Stamp(t.Status.ScheduledAt)},
		{"Started", command.Stamp(t.Status.StartedAt)}, {"Finished", command.Stamp(t.Status.FinishedAt)},
	}
	if a := t.Status.Array; a != nil {
		line := fmt.Sprintf("%d of %d completed, %d failed, %d running, %d pending", a.Completed, t.Size(), a.Failed,
			a.Running, a.Pending)
		if n := starting(t.Status.Attempts); n > 0 {
			line += fmt.Sprintf(", of which %d start now", n)
		}
		failed := "Failed"
		if t.Status.Reason == tasks.ReasonCancelled {
			failed = "Stopped" // or failed before
			line = fmt.Sprintf("%d of %d completed, %d failed or stopped, %d not begun", a.Completed, t.Size(), a.Failed,
				a.Pending)
		}
		rows = append(rows, [2]string{"Indexes", line}, [2]string{failed, a.FailedIndexes})
	}
	for _, p := range t.Spec.Ports {
		rows = append(rows, [2]string{
			"Port", fmt.Sprintf("%d:%d/%s", p.HostPort, p.ContainerPort, strings.ToLower(string(p.Protocol))),
		})
	}
	for _, e := range t.Spec.Env {
		rows = append(rows, [2]string{"Env", e.Name + "=" + e.Value})
	}
	for _, row := range rows {
		if row[1] != "" {
			fmt.Fprintf(out, "%-10s  %s\n", row[0], row[1])
		}
	}
	if len(t.Status.Attempts) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	return listAttempts(t, time.Now(), out)
}

// listAttempts prints the attempts of a task: the failed ones first, then those that have not ended, by their indexes.
func listAttempts(t *tasks.Task, now time.Time, out io.Writer) error {
	place := map[tasks.TaskPhase]int{tasks.TaskFailed: -1, tasks.TaskCompleted: 1}
	list := slices.SortedStableFunc(slices.Values(t.Status.Attempts), func(a, b tasks.TaskAttempt) int {
		byIndex := 0
		if a.Index != nil && b.Index != nil {
			byIndex = cmp.Compare(*a.Index, *b.Index)
		}
		return cmp.Or(cmp.Compare(place[a.Phase], place[b.Phase]), byIndex, cmp.Compare(a.Number, b.Number))
	})
	const header = "ATTEMPT\tINDEX\tSTATUS\tNODE\tEXIT\tSTARTED\tTOOK?\tMEMORY?\tCPU?\tMESSAGE"
	return command.Table(out, header, func(line func(...any)) {
		for _, a := range list {
			index, memory, cpu := "", "", ""
			if u := a.Usage; u != nil {
				memory = fmt.Sprintf("%dMi", (u.PeakMemoryBytes+1<<20-1)>>20)
				cpu = (time.Duration(u.CPUMilliseconds) * time.Millisecond).String()
			}
			if a.Index != nil {
				index = fmt.Sprint(*a.Index)
			}
			line(a.Number, index, tasks.Outcome(a.Phase, a.Reason), a.Node, exit(a.ExitCode),
				clock(a.StartedAt, t.CreationTimestamp), ran(a.StartedAt, a.FinishedAt, now), memory, cpu, a.Message)
		}
	})
}

// clock formats a local time of day, with its date if that is another than the day's.
func clock(t *metav1.Time, day metav1.Time) string {
	switch {
	case t == nil:
		return ""
	case t.Local().Format(time.DateOnly) == day.Local().Format(time.DateOnly):
		return t.Local().Format(time.TimeOnly)
	}
	return t.Local().Format("01-02 " + time.TimeOnly)
}

package commands

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

const taskHeader = "TASK\tIMAGE?\tSTATUS\tNODE\tEXIT\tATTEMPTS?\tINDEXES\tCREATED?\tTOOK?\tERROR"

func taskLine(t *tasks.Task, now time.Time) []any {
	s := t.Status
	status := string(s.Phase)
	if s.Reason == tasks.ReasonCancelled {
		status = "Cancelled"
	}
	run := ""
	switch {
	case s.StartedAt != nil && s.FinishedAt != nil:
		run = max(took(s), 0).Round(100 * time.Millisecond).String()
	case s.StartedAt != nil:
		run = command.Ago(s.StartedAt, now)
	}
	return []any{
		t.Name, t.Spec.Image, status, s.Node, exit(s), tasks.Attempts(t), tasks.Indexes(t),
		command.Ago(&t.CreationTimestamp, now), run,
		command.Shorten(s.Error),
	}
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

func exit(s tasks.TaskStatus) string {
	if s.ExitCode == nil {
		return ""
	}
	return fmt.Sprint(*s.ExitCode)
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
		{"Status", string(t.Status.Phase)}, {"Reason", t.Status.Reason}, {"Error", t.Status.Error},
		{"Node", t.Status.Node}, {"Pod", t.Status.PodName}, {"Container", t.Status.ContainerID},
		{"Exit code", exit(t.Status)},
		{"Created", command.Stamp(&t.CreationTimestamp)}, {"Scheduled", command.Stamp(t.Status.ScheduledAt)},
		{"Started", command.Stamp(t.Status.StartedAt)}, {"Finished", command.Stamp(t.Status.FinishedAt)},
	}
	if a := t.Status.Array; a != nil {
		line := fmt.Sprintf("%d of %d completed, %d failed, %d running, %d pending", a.Completed, t.Size(), a.Failed,
			a.Running, a.Pending)
		if n := starting(t.Status.Attempts); n > 0 {
			line += fmt.Sprintf(", of which %d start now", n)
		}
		rows = append(rows, [2]string{"Indexes", line}, [2]string{"Failed", a.FailedIndexes})
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
	now := time.Now()
	const header = "ATTEMPT\tINDEX\tSTATUS\tNODE\tEXIT\tSTARTED?\tFINISHED?\tMEMORY?\tCPU?\tMESSAGE"
	return command.Table(out, header, func(line func(...any)) {
		for _, a := range t.Status.Attempts {
			index, code, memory, cpu := "", "", "", ""
			if u := a.Usage; u != nil {
				memory = fmt.Sprintf("%dMi", (u.PeakMemoryBytes+1<<20-1)>>20)
				cpu = (time.Duration(u.CPUMilliseconds) * time.Millisecond).String()
			}
			if a.Index != nil {
				index = fmt.Sprint(*a.Index)
			}
			if a.ExitCode != nil {
				code = fmt.Sprint(*a.ExitCode)
			}
			line(a.Number, index, a.Phase, a.Node, code, command.Ago(a.StartedAt, now), command.Ago(a.FinishedAt, now),
				memory, cpu, a.Message)
		}
	})
}

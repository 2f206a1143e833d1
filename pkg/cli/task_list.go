package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

const taskHeader = "TASK\tIMAGE\tSTATUS\tNODE\tEXIT\tATTEMPTS\tCREATED\tTOOK\tERROR"

// longestError is the number of bytes of an error in a table.
const longestError = 60

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
		run = ago(s.StartedAt, now)
	}
	why := strings.ReplaceAll(s.Error, "\n", " ")
	if len(why) > longestError {
		why = strings.ToValidUTF8(why[:longestError], "") + "..."
	}
	return []any{t.Name, t.Spec.Image, status, s.Node, exit(s), tasks.Progress(t), ago(&t.CreationTimestamp, now), run, why}
}

// Tasks prints the tasks of the namespace that have not ended, or all. They are in the order of the API, by name.
func (c *Cluster) Tasks(ctx context.Context, all bool, t Terminal) error {
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
		if len(list) < page { // the usual case: one page
			slices.SortStableFunc(list, func(a, b tasks.Task) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
		}
		now := time.Now()
		return table(t.Out, taskHeader, func(line func(...any)) {
			for i := range list {
				line(taskLine(&list[i], now)...)
			}
		})
	})
	if err != nil || found {
		return err
	}
	if all {
		_, err = fmt.Fprintf(t.Err, "No tasks in namespace %s. Run one: coracle run hello --image busybox -- echo hello\n", c.Namespace)
	} else {
		_, err = fmt.Fprintf(t.Err, "No task is under way in namespace %s: coracle ps -a lists those that have ended, too.\n", c.Namespace)
	}
	return err
}

// WatchTasks prints a line for each change of a task, until ctx is done.
func (c *Cluster) WatchTasks(ctx context.Context, all bool, t Terminal) error {
	const format = "%-30s  %-10s  %-20s  %4s  %-8s  %s\n"
	fmt.Fprintf(t.Out, format, "TASK", "STATUS", "NODE", "EXIT", "ATTEMPTS", "ERROR")
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
			if !ok || first && !all && task.Status.Phase.Ended() && task.Status.FinishedAt != nil && task.Status.FinishedAt.Time.Before(began) {
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
			fmt.Fprintf(t.Out, format, line[0], fmt.Sprint(line[2]), line[3], line[4], line[5], line[8])
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
func (c *Cluster) Task(ctx context.Context, name string, out io.Writer) error {
	t, err := c.getTask(ctx, name)
	if err != nil {
		return err
	}
	rows := [][2]string{
		{"Task", t.Name}, {"Image", t.Spec.Image}, {"Command", strings.Join(append(slices.Clone(t.Spec.Command), t.Spec.Args...), " ")},
		{"Status", string(t.Status.Phase)}, {"Reason", t.Status.Reason}, {"Error", t.Status.Error},
		{"Node", t.Status.Node}, {"Pod", t.Status.PodName}, {"Container", t.Status.ContainerID}, {"Exit code", exit(t.Status)},
		{"Created", stamp(&t.CreationTimestamp)}, {"Scheduled", stamp(t.Status.ScheduledAt)}, {"Started", stamp(t.Status.StartedAt)}, {"Finished", stamp(t.Status.FinishedAt)},
	}
	if a := t.Status.Array; a != nil {
		rows = append(rows, [2]string{"Indexes", fmt.Sprintf("%d of %d completed, %d failed, %d running, %d pending", a.Completed, t.Spec.Array.Size, a.Failed, a.Running, a.Pending)},
			[2]string{"Failed", a.FailedIndexes})
	}
	for _, p := range t.Spec.Ports {
		rows = append(rows, [2]string{"Port", fmt.Sprintf("%d:%d/%s", p.HostPort, p.ContainerPort, strings.ToLower(string(p.Protocol)))})
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
	return table(out, "ATTEMPT\tINDEX\tSTATUS\tNODE\tEXIT\tSTARTED\tFINISHED\tMESSAGE", func(line func(...any)) {
		for _, a := range t.Status.Attempts {
			index, code := "", ""
			if a.Index != nil {
				index = fmt.Sprint(*a.Index)
			}
			if a.ExitCode != nil {
				code = fmt.Sprint(*a.ExitCode)
			}
			line(a.Number, index, a.Phase, a.Node, code, ago(a.StartedAt, now), ago(a.FinishedAt, now), a.Message)
		}
	})
}

// Nodes prints the cluster's nodes with capacity and usage.
func (c *Cluster) Nodes(ctx context.Context, out io.Writer) error {
	var nodes corev1.NodeList
	var pods corev1.PodList
	if err := c.Client.List(ctx, &nodes); err != nil {
		return err
	}
	if err := c.Client.List(ctx, &pods); err != nil {
		return err
	}
	running, carried := map[string]int{}, map[string]int{}
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		carried[p.Spec.NodeName]++
		if p.Labels[tasks.LabelTask] != "" {
			running[p.Spec.NodeName]++
		}
	}
	// A node renews its Lease every few seconds, and its status every few minutes. A user may see nodes and no Leases.
	var leases coordinationv1.LeaseList
	if err := c.Client.List(ctx, &leases, ctrl.InNamespace(corev1.NamespaceNodeLease)); err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	renewed := map[string]metav1.Time{}
	for i := range leases.Items {
		if at := leases.Items[i].Spec.RenewTime; at != nil {
			renewed[leases.Items[i].Name] = metav1.NewTime(at.Time)
		}
	}
	now := time.Now()
	return table(out, "NODE\tSTATUS\tADDRESS\tCPU\tMEMORY\tPODS\tTASKS\tHEARTBEAT", func(line func(...any)) {
		for _, n := range nodes.Items {
			status := "Offline"
			var beat *metav1.Time
			for _, cond := range n.Status.Conditions {
				if cond.Type == corev1.NodeReady {
					beat = &cond.LastHeartbeatTime
					if cond.Status == corev1.ConditionTrue {
						status = "Online"
					}
				}
			}
			if at, ok := renewed[n.Name]; ok && (beat == nil || beat.Before(&at)) {
				beat = &at
			}
			address := ""
			for _, a := range n.Status.Addresses {
				if a.Type == corev1.NodeInternalIP {
					address = a.Address
				}
			}
			capacity := n.Status.Capacity
			line(n.Name, status, address, capacity.Cpu(), socket.Bytes(capacity.Memory().Value()),
				fmt.Sprintf("%d/%s", carried[n.Name], capacity.Pods()), running[n.Name], ago(beat, now))
		}
	})
}

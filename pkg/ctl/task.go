package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// TaskFailed is the error of a task that failed while it was waited for. ExitCode is the container's, or 1 if it has
// none.
type TaskFailed struct {
	Name, Reason string
	ExitCode     int
}

func (e *TaskFailed) Error() string { return fmt.Sprintf("task %s failed: %s", e.Name, e.Reason) }

// RunOptions are the options of `coracle run`.
type RunOptions struct {
	Name, Image string
	// Command is the arguments after "--". It replaces the image's command.
	Command []string
	// Env is a list of NAME=value.
	Env []string
	// Wait waits for the task to end; a failed task is returned as a *TaskFailed.
	Wait bool
}

// Run creates a task and prints its name to out.
func (c *Cluster) Run(ctx context.Context, o RunOptions, out, progress io.Writer) error {
	task := &tasks.Task{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: o.Name}}
	task.Spec.Image, task.Spec.Args = o.Image, o.Command
	for _, pair := range o.Env {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return fmt.Errorf("--env %q is not of the form NAME=value", pair)
		}
		task.Spec.Env = append(task.Spec.Env, corev1.EnvVar{Name: name, Value: value})
	}
	if err := c.Client.Create(ctx, task); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("task %s already exists: choose another name, or delete it with `coracle ctl delete task %s`", o.Name, o.Name)
		}
		return err
	}
	fmt.Fprintf(out, "task %s created\n", task.Name)
	if !o.Wait {
		return nil
	}
	ended, err := c.follow(ctx, task, progress)
	if err != nil {
		return err
	}
	if ended.Status.Phase == tasks.TaskFailed {
		failed := &TaskFailed{Name: task.Name, Reason: ended.Status.Error, ExitCode: 1}
		if code := ended.Status.ExitCode; code != nil && *code != 0 {
			failed.ExitCode = int(*code)
		}
		return failed
	}
	return nil
}

// follow watches the task until it ends, and reports each phase once.
func (c *Cluster) follow(ctx context.Context, task *tasks.Task, progress io.Writer) (*tasks.Task, error) {
	var last tasks.TaskPhase
	only := &ctrl.ListOptions{Namespace: task.Namespace, FieldSelector: fields.OneTermEqualSelector("metadata.name", task.Name)}
	for {
		w, err := c.Client.Watch(ctx, &tasks.TaskList{}, only)
		if err != nil {
			return nil, err
		}
		for event := range w.ResultChan() {
			now, ok := event.Object.(*tasks.Task)
			if !ok {
				continue
			}
			if now.UID != task.UID || event.Type == "DELETED" {
				w.Stop()
				return nil, fmt.Errorf("task %s was deleted before it ended", task.Name)
			}
			if now.Status.Phase != last {
				last = now.Status.Phase
				fmt.Fprintln(progress, describePhase(now))
			}
			if last.Ended() {
				w.Stop()
				return now, nil
			}
		}
		// The server ends a watch now and then; start again with the current state.
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

func describePhase(t *tasks.Task) string {
	switch s := t.Status; s.Phase {
	case tasks.TaskScheduled, tasks.TaskRunning:
		return fmt.Sprintf("%s on %s", strings.ToLower(string(s.Phase)), s.Node)
	case tasks.TaskCompleted:
		return fmt.Sprintf("completed in %s", took(s))
	default:
		return strings.ToLower(string(s.Phase))
	}
}

func took(s tasks.TaskStatus) time.Duration {
	if s.StartedAt == nil || s.FinishedAt == nil {
		return 0
	}
	return s.FinishedAt.Sub(s.StartedAt.Time)
}

// Tasks prints the tasks of the namespace, oldest first, or one of them in detail.
func (c *Cluster) Tasks(ctx context.Context, name string, out io.Writer) error {
	if name != "" {
		return c.task(ctx, name, out)
	}
	var list tasks.TaskList
	if err := c.Client.List(ctx, &list, ctrl.InNamespace(c.Namespace)); err != nil {
		return err
	}
	if len(list.Items) == 0 {
		_, err := fmt.Fprintf(out, "No tasks in namespace %s. Run one: coracle run hello --image busybox -- echo hello\n", c.Namespace)
		return err
	}
	slices.SortStableFunc(list.Items, func(a, b tasks.Task) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	now := time.Now()
	return table(out, "TASK\tIMAGE\tSTATUS\tNODE\tEXIT\tCREATED\tSTARTED\tFINISHED", func(line func(...any)) {
		for _, t := range list.Items {
			line(t.Name, t.Spec.Image, t.Status.Phase, t.Status.Node, exit(t.Status), ago(&t.CreationTimestamp, now),
				ago(t.Status.StartedAt, now), ago(t.Status.FinishedAt, now))
		}
	})
}

func exit(s tasks.TaskStatus) string {
	if s.ExitCode == nil {
		return ""
	}
	return fmt.Sprint(*s.ExitCode)
}

func (c *Cluster) task(ctx context.Context, name string, out io.Writer) error {
	t, err := c.getTask(ctx, name)
	if err != nil {
		return err
	}
	rows := [][2]string{
		{"Task", t.Name}, {"Image", t.Spec.Image}, {"Command", strings.Join(append(t.Spec.Command, t.Spec.Args...), " ")},
		{"Status", string(t.Status.Phase)}, {"Node", t.Status.Node}, {"Pod", t.Status.PodName},
		{"Container", t.Status.ContainerID}, {"Created", stamp(&t.CreationTimestamp)},
		{"Started", stamp(t.Status.StartedAt)}, {"Finished", stamp(t.Status.FinishedAt)},
		{"Exit code", exit(t.Status)}, {"Error", t.Status.Error},
	}
	for _, e := range t.Spec.Env {
		rows = append(rows, [2]string{"Env", e.Name + "=" + e.Value})
	}
	for _, row := range rows {
		if row[1] != "" {
			fmt.Fprintf(out, "%-10s  %s\n", row[0], row[1])
		}
	}
	return nil
}

func stamp(t *metav1.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.Local().Format(time.DateTime)
}

func (c *Cluster) getTask(ctx context.Context, name string) (*tasks.Task, error) {
	t := &tasks.Task{}
	err := c.Client.Get(ctx, ctrl.ObjectKey{Namespace: c.Namespace, Name: name}, t)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no task %s in namespace %s: `coracle ps` lists them", name, c.Namespace)
	}
	return t, err
}

// Logs copies the output of a task's container to out.
func (c *Cluster) Logs(ctx context.Context, name string, follow bool, out io.Writer) error {
	t, err := c.getTask(ctx, name)
	if err != nil {
		return err
	}
	if t.Status.PodName == "" {
		return fmt.Errorf("task %s has not started yet: it is %s", name, strings.ToLower(string(t.Status.Phase)))
	}
	set, err := kubernetes.NewForConfig(c.REST)
	if err != nil {
		return err
	}
	stream, err := set.CoreV1().Pods(c.Namespace).GetLogs(t.Status.PodName, &corev1.PodLogOptions{Follow: follow}).Stream(ctx)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the pod of task %s is gone, and its output with it", name)
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(out, stream)
	return errors.Join(err, stream.Close())
}

// Nodes prints the cluster's nodes with capacity and usage.
func (c *Cluster) Nodes(ctx context.Context, out io.Writer) error {
	var nodes corev1.NodeList
	var pods corev1.PodList
	var list tasks.TaskList
	if err := errors.Join(c.Client.List(ctx, &nodes), c.Client.List(ctx, &pods), c.Client.List(ctx, &list)); err != nil {
		return err
	}
	running, carried := map[string]int{}, map[string]int{}
	for _, t := range list.Items {
		if t.Status.Phase == tasks.TaskRunning {
			running[t.Status.Node]++
		}
	}
	for _, p := range pods.Items {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			carried[p.Spec.NodeName]++
		}
	}
	now := time.Now()
	return table(out, "NODE\tSTATUS\tADDRESS\tCPU\tMEMORY\tPODS\tTASKS\tHEARTBEAT", func(line func(...any)) {
		for _, n := range nodes.Items {
			status, beat := "Offline", ""
			for _, cond := range n.Status.Conditions {
				if cond.Type == corev1.NodeReady {
					beat = ago(&cond.LastHeartbeatTime, now)
					if cond.Status == corev1.ConditionTrue {
						status = "Online"
					}
				}
			}
			address := ""
			for _, a := range n.Status.Addresses {
				if a.Type == corev1.NodeInternalIP {
					address = a.Address
				}
			}
			capacity := n.Status.Capacity
			line(n.Name, status, address, capacity.Cpu(), size(capacity.Memory().Value()),
				fmt.Sprintf("%d/%s", carried[n.Name], capacity.Pods()), running[n.Name], beat)
		}
	})
}

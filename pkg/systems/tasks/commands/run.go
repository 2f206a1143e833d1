package commands

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// RunOptions are the options of `coracle run`.
type RunOptions struct {
	Name, Image string
	// Command is the arguments after "--". It replaces the image's command.
	Command []string
	// Env holds NAME=value, Ports HOST:CONTAINER with an optional /tcp or /udp.
	Env, Ports []string
	// CPU and Memory are quantities, used as both request and limit.
	CPU, Memory string
	WorkingDir  string
	Node        string
	Priority    string
	Retries     int32
	// Backoff is the pause before the first retry; negative means the default.
	Backoff time.Duration
	// Timeout bounds each attempt, ScheduleTimeout the wait for a node; 0 means unbounded. TTL is how long the task
	// exists after its end; negative means forever.
	Timeout, ScheduleTimeout, TTL time.Duration
	// StartTimeout bounds how long creating the container may fail, StopTimeout the time from SIGTERM to SIGKILL; 0
	// means the default.
	StartTimeout, StopTimeout time.Duration
	// Array is the number of indexes; 0 means no array. Parallelism bounds the running indexes; 0 means the default.
	Array, Parallelism int32
	// Key is the idempotency key, from which the name is derived.
	Key string
	// Schedule makes it a schedule of tasks, in TimeZone.
	Schedule, TimeZone string
	// Template makes it a template. Parameters are NAME or NAME=DEFAULT.
	Template   bool
	Parameters []string
	// From is the template or schedule to run, with Arguments of the form NAME=value.
	From      string
	Arguments []string
	// Volumes are CLAIM:PATH, /NODE/PATH:PATH, both with an optional :ro, or PATH. After are TASK, TASK:failed or
	// TASK:ended.
	Volumes, After []string
	// Output is the directory whose files are kept, Account the ServiceAccount.
	Output, Account string
	EveryNode       bool
	// Wait waits for the task's end and streams its output. A failed task is returned as a *command.Exit.
	Wait bool
	// Remove deletes the task after it has ended.
	Remove bool
}

// Task returns the task that the options describe.
func (o *RunOptions) Task(namespace string) (*tasks.Task, error) {
	t := &tasks.Task{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: o.Name}}
	s := &t.Spec
	s.Image, s.Args, s.WorkingDir, s.NodeName, s.PriorityClassName = o.Image, o.Command, o.WorkingDir, o.Node, o.Priority
	s.Retries, s.IdempotencyKey = o.Retries, o.Key
	s.OutputPath, s.ServiceAccountName = o.Output, o.Account
	if o.Key != "" {
		if o.Name != "" {
			return nil, errors.New("the name of a task with --idempotency-key is derived from the key: leave NAME out")
		}
		t.Name = tasks.NameForKey(o.Key)
	}
	if err := o.lists(s); err != nil {
		return nil, err
	}
	for name, text := range map[corev1.ResourceName]string{corev1.ResourceCPU: o.CPU, corev1.ResourceMemory: o.Memory} {
		if text == "" {
			continue
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("--%s %q is not a quantity, such as 500m of a processor or 64Mi of memory", name, text)
		}
		if s.Resources == nil {
			s.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
		}
		s.Resources.Requests[name], s.Resources.Limits[name] = q, q
	}
	for option, d := range map[string]time.Duration{
		"timeout": o.Timeout, "schedule-timeout": o.ScheduleTimeout, "start-timeout": o.StartTimeout,
		"stop-timeout": o.StopTimeout,
	} {
		if d != 0 && d < time.Second {
			return nil, fmt.Errorf("--%s %s is shorter than a second", option, d)
		}
	}
	s.RunTimeoutSeconds, s.ScheduleTimeoutSeconds = seconds(o.Timeout), seconds(o.ScheduleTimeout)
	s.StartTimeoutSeconds, s.StopTimeoutSeconds = seconds(o.StartTimeout), seconds(o.StopTimeout)
	if o.Backoff >= 0 {
		s.BackoffSeconds = new(int32(min((o.Backoff+time.Second-1)/time.Second, 1<<31-1)))
	}
	if o.TTL >= 0 || o.Remove && !o.Wait {
		s.TTLSecondsAfterFinished = new(int32(max(min(o.TTL/time.Second, 1<<31-1), 0)))
	}
	if o.Array > 0 || o.EveryNode {
		s.Array = &tasks.TaskArray{Size: o.Array, EveryNode: o.EveryNode}
		if o.Parallelism > 0 {
			s.Array.Parallelism = &o.Parallelism
		}
	} else if o.Parallelism > 0 {
		return nil, errors.New("--parallelism is for arrays: add --array SIZE")
	}
	if o.TimeZone != "" && o.Schedule == "" {
		return nil, errors.New("--time-zone is for schedules: leave it out, or add --schedule")
	}
	if o.Template && o.Schedule != "" {
		return nil, errors.New("a schedule is a template as well: leave out --template")
	}
	if len(o.Parameters) > 0 && o.Schedule == "" && !o.Template {
		return nil, errors.New("--param is for templates and schedules: add --template or --schedule")
	}
	return t, nil
}

// lists sets the fields of options that may be repeated.
func (o *RunOptions) lists(s *tasks.TaskSpec) error {
	for _, text := range o.Volumes {
		v, err := volume(text)
		if err != nil {
			return err
		}
		s.Volumes = append(s.Volumes, v)
	}
	for _, text := range o.After {
		name, how, _ := strings.Cut(text, ":")
		condition, known := afterConditions[how]
		if !known {
			return fmt.Errorf("--after %q is not of the form TASK, TASK:failed or TASK:ended", text)
		}
		s.After = append(s.After, tasks.TaskAfter{Name: name, Condition: condition})
	}
	for _, pair := range o.Env {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return fmt.Errorf("--env %q is not of the form NAME=value", pair)
		}
		s.Env = append(s.Env, corev1.EnvVar{Name: name, Value: value})
	}
	for _, text := range o.Ports {
		p, err := port(text)
		if err != nil {
			return err
		}
		s.Ports = append(s.Ports, p)
	}
	return nil
}

var afterConditions = map[string]tasks.AfterCondition{
	"": tasks.AfterSucceeded, "succeeded": tasks.AfterSucceeded, "failed": tasks.AfterFailed, "ended": tasks.AfterEnded,
}

func volume(text string) (tasks.TaskVolume, error) {
	source, path, mapped := strings.Cut(text, ":")
	if !mapped {
		return tasks.TaskVolume{MountPath: source, EmptyDir: &corev1.EmptyDirVolumeSource{}}, nil
	}
	path, mode, has := strings.Cut(path, ":")
	if source == "" || path == "" || has && mode != "ro" {
		return tasks.TaskVolume{},
			fmt.Errorf("--volume %q is not of the form CLAIM:PATH[:ro], /NODE/PATH:PATH[:ro] or PATH", text)
	}
	v := tasks.TaskVolume{MountPath: path, ReadOnly: has}
	if strings.HasPrefix(source, "/") {
		v.HostPath = &corev1.HostPathVolumeSource{Path: source}
	} else {
		v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: source}
	}
	return v, nil
}

// seconds returns d in seconds, rounded up; nil for 0.
func seconds(d time.Duration) *int64 {
	if d <= 0 {
		return nil
	}
	return new(int64((d + time.Second - 1) / time.Second))
}

func port(text string) (tasks.TaskPort, error) {
	bad := fmt.Errorf("--publish %q is not of the form HOST:CONTAINER, such as 8080:80 or 5353:53/udp", text)
	ports, protocol, _ := strings.Cut(text, "/")
	host, container, ok := strings.Cut(ports, ":")
	if !ok {
		return tasks.TaskPort{}, bad
	}
	h, err1 := strconv.ParseUint(host, 10, 16)
	c, err2 := strconv.ParseUint(container, 10, 16)
	if err1 != nil || err2 != nil || h == 0 || c == 0 {
		return tasks.TaskPort{}, bad
	}
	return tasks.TaskPort{
		HostPort:      int32(h),
		ContainerPort: int32(c),
		Protocol:      corev1.Protocol(strings.ToUpper(protocol)),
	}, nil
}

// Run creates a task, or a schedule of tasks, and prints its name to t.Out. With Wait it waits for the task.
func (c cluster) Run(ctx context.Context, o RunOptions, t command.Terminal) error {
	create := o.Task
	if o.From != "" {
		create = func(string) (*tasks.Task, error) { return c.from(ctx, o) }
	}
	task, err := create(c.Namespace)
	if err != nil {
		return err
	}
	if err := c.refuseSchedules(ctx, task); err != nil {
		return err
	}
	if o.Schedule != "" || o.Template {
		return c.schedule(ctx, o, task, t)
	}
	err = c.Client.Create(ctx, task)
	switch {
	case apierrors.IsAlreadyExists(err) && o.Key != "":
		first, err := c.getTask(ctx, task.Name)
		if err != nil {
			return err
		}
		if !tasks.SameRequest(first, task) {
			return fmt.Errorf("the idempotency key was used for another request, task %s: choose another key, or look at it "+
				"with `coracle ps --task %s`", first.Name, first.Name)
		}
		task = first
		fmt.Fprintf(t.Err, "task %s was created before: %s\n", task.Name, describePhase(task))
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("task %s already exists: choose another name, or delete it with `coracle ctl delete task %s`",
			o.Name, o.Name)
	case err != nil:
		return err
	case o.Wait:
		fmt.Fprintf(t.Err, "task %s created\n", task.Name)
	default:
		fmt.Fprintf(t.Out, "task %s created\n", task.Name)
	}
	if !o.Wait {
		return nil
	}
	ended, err := c.follow(ctx, task, t)
	if err != nil && ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx) // the rest is short
		ended, err = c.interrupted(task, t)
	}
	if err != nil {
		return err
	}
	if o.Remove {
		if err := c.Client.Delete(ctx, ended); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if ended.Status.Phase == tasks.TaskFailed {
		return failed(ended, !o.Remove)
	}
	return nil
}

func (c cluster) schedule(ctx context.Context, o RunOptions, task *tasks.Task, t command.Terminal) error {
	if o.Wait || o.Key != "" {
		return errors.New("--schedule and --template run a task again and again: leave out --wait and --idempotency-key")
	}
	s := &tasks.TaskSchedule{ObjectMeta: task.ObjectMeta}
	s.Spec.Schedule, s.Spec.TaskTemplate.Spec = o.Schedule, task.Spec
	for _, text := range o.Parameters {
		name, value, has := strings.Cut(text, "=")
		p := tasks.TaskParameter{Name: name}
		if has {
			p.Value = &value
		}
		s.Spec.Parameters = append(s.Spec.Parameters, p)
	}
	if o.TimeZone != "" {
		s.Spec.TimeZone = &o.TimeZone
	}
	err := c.Client.Create(ctx, s)
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("schedule %s already exists: choose another name, or delete it with `coracle ctl delete "+
			"taskschedule %s`", o.Name, o.Name)
	}
	if err == nil && o.Schedule == "" {
		fmt.Fprintf(t.Out, "template %s created; `coracle run --from %s` runs it\n", s.Name, s.Name)
	} else if err == nil {
		fmt.Fprintf(t.Out, "schedule %s created; `coracle ctl get taskschedules` shows when it runs next, `coracle ps -a` "+
			"lists its tasks, `coracle run --from %[1]s` runs it now\n", s.Name)
	}
	return err
}

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// TestProgressOfAnArray checks that a wait for a large array prints few lines where no terminal shows them.
func TestProgressOfAnArray(t *testing.T) {
	var out strings.Builder
	f := &follower{t: command.Terminal{Err: &out}, tenth: -2}
	task := &tasks.Task{Spec: tasks.TaskSpec{Array: &tasks.TaskArray{Size: 100}}}
	task.Status.Phase, task.Status.Array = tasks.TaskRunning, &tasks.TaskArrayStatus{}
	for i := range int32(100) {
		task.Status.Array.Completed = i
		f.show(t.Context(), task)
	}
	require.Equal(t, 10, strings.Count(out.String(), "\n"), out.String())
	require.Contains(t, out.String(), "\n90 of 100 completed, 0 failed, 0 running\n")
	task.Status.Attempts = []tasks.TaskAttempt{
		{Phase: tasks.TaskCompleted}, {Phase: tasks.TaskScheduled}, {Phase: tasks.TaskScheduled}, {Phase: tasks.TaskPending},
	}
	require.Equal(t, "99 of 100 completed, 0 failed, 0 running, 2 starting", describePhase(task))
}

func TestRunOptions(t *testing.T) {
	o := RunOptions{
		Name: "a", Image: "i", Command: []string{"x"}, Env: []string{"A=b=c"}, Ports: []string{"80:8080", "53:5353/udp"},
		CPU: "500m", Memory: "64Mi",
		Retries: 3, Backoff: 1500 * time.Millisecond, StartTimeout: time.Minute, StopTimeout: time.Second,
		Timeout: 90 * time.Second, TTL: time.Minute, Array: 5, Parallelism: 2,
	}
	task, err := o.Task("ns")
	require.NoError(t, err)
	tasks.Default(task)
	require.Empty(t, tasks.Validate(task))
	require.Equal(t, []corev1.EnvVar{{Name: "A", Value: "b=c"}}, task.Spec.Env)
	require.Equal(t,
		[]tasks.TaskPort{
			{HostPort: 80, ContainerPort: 8080, Protocol: "TCP"}, {HostPort: 53, ContainerPort: 5353, Protocol: "UDP"},
		}, task.Spec.Ports)
	require.Equal(t, "500m", task.Spec.Resources.Limits.Cpu().String())
	require.EqualValues(t, 90, *task.Spec.RunTimeoutSeconds)
	require.EqualValues(t, 2, *task.Spec.BackoffSeconds, "rounded up")
	require.EqualValues(t, 60, *task.Spec.StartTimeoutSeconds)
	require.EqualValues(t, 1, *task.Spec.StopTimeoutSeconds)
	require.EqualValues(t, 60, *task.Spec.TTLSecondsAfterFinished)
	require.EqualValues(t, 2, *task.Spec.Array.Parallelism)

	key := RunOptions{Image: "i", Key: "k", TTL: -1, Backoff: -1}
	task, err = key.Task("ns")
	require.NoError(t, err)
	require.Equal(t, tasks.NameForKey("k"), task.Name)
	require.Nil(t, task.Spec.BackoffSeconds)
	require.Nil(t, task.Spec.TTLSecondsAfterFinished)
	removed := RunOptions{Name: "a", Image: "i", TTL: -1, Remove: true}
	task, err = removed.Task("ns")
	require.NoError(t, err)
	require.Zero(t, *task.Spec.TTLSecondsAfterFinished)
}

func TestRunOptionsSayWhatIsWrong(t *testing.T) {
	for want, o := range map[string]RunOptions{
		`--env "A" is not of the form NAME=value`:                           {Env: []string{"A"}},
		`--publish "80" is not of the form HOST:CONTAINER`:                  {Ports: []string{"80"}},
		`--publish "0:1" is not of the form`:                                {Ports: []string{"0:1"}},
		`--publish "70000:1" is not of the form`:                            {Ports: []string{"70000:1"}},
		`--memory "much" is not a quantity`:                                 {Memory: "much"},
		`--timeout 1ms is shorter than a second`:                            {Timeout: time.Millisecond},
		`--stop-timeout 1ms is shorter than a second`:                       {StopTimeout: time.Millisecond},
		`--time-zone is for schedules: leave it out, or add`:                {TimeZone: "UTC"},
		`--parallelism is for arrays: add --array SIZE`:                     {Parallelism: 3},
		`the name of a task with --idempotency-key is derived from the key`: {Name: "a", Key: "k"},
	} {
		_, err := o.Task("ns")
		require.ErrorContains(t, err, want)
	}
}

// TestWaitOutlastsARestart checks that waiting for a task continues over a server restart, and ends when the server
// refuses the request.
func TestWaitOutlastsARestart(t *testing.T) {
	scheme, err := command.Scheme()
	require.NoError(t, err)
	task := &tasks.Task{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "t", UID: "u"}}
	failures := []error{
		&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		fmt.Errorf("watch: %w", io.ErrUnexpectedEOF), apierrors.NewServiceUnavailable("it starts"),
	}
	follow := func() (*tasks.Task, string, error) {
		c := cluster{
			&command.Cluster{
				Namespace: "default",
				Client: interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
					Watch: func(context.Context, ctrl.WithWatch, ctrl.ObjectList, ...ctrl.ListOption) (watch.Interface, error) {
						if len(failures) > 0 {
							err := failures[0]
							failures = failures[1:]
							return nil, err
						}
						ended := task.DeepCopy()
						ended.Status.Phase = tasks.TaskFailed
						w := watch.NewFakeWithChanSize(1, false)
						w.Modify(ended)
						return w, nil
					},
				}),
			},
		}
		var told strings.Builder
		ended, err := c.follow(t.Context(), task, command.Terminal{Err: &told})
		return ended, told.String(), err
	}
	ended, told, err := follow()
	require.NoError(t, err)
	require.Equal(t, tasks.TaskFailed, ended.Status.Phase)
	require.Equal(t, 1, strings.Count(told, "cannot be reached"), told)

	failures = []error{apierrors.NewForbidden(tasks.GroupVersion.WithResource("tasks").GroupResource(), "t", nil)}
	_, _, err = follow()
	require.True(t, apierrors.IsForbidden(err), err)
}

// TestOutputIsResumed checks that interrupted output is read again from the beginning and printed once.
func TestOutputIsResumed(t *testing.T) {
	var out strings.Builder
	reads := []string{"one\ntw", "", "one\n", "one\ntwo\nthree\n"}
	err := resume(t.Context(), &out, func(w io.Writer) error {
		text := reads[0]
		reads = reads[1:]
		for _, part := range strings.SplitAfter(text, "n") {
			n, err := io.WriteString(w, part)
			require.NoError(t, err)
			require.Equal(t, len(part), n)
		}
		if len(reads) > 0 {
			return io.ErrUnexpectedEOF
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\nthree\n", out.String())
	gone := errors.New("its log is not kept any more")
	require.ErrorIs(t, resume(t.Context(), &out, func(io.Writer) error { return gone }), gone)
}

// TestAttemptsOfATask checks that the failed attempts of an array are first, with the time of their start, and that a
// cancelled task and its attempts are called so.
func TestAttemptsOfATask(t *testing.T) {
	scheme, err := command.Scheme()
	require.NoError(t, err)
	day := time.Date(2026, 11, 28, 23, 59, 0, 0, time.Local)
	at := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(day.Add(d))) }
	attempt := func(i int32, phase tasks.TaskPhase, start, end *metav1.Time) tasks.TaskAttempt {
		return tasks.TaskAttempt{Number: 1, Index: &i, Phase: phase, Node: "n", StartedAt: start, FinishedAt: end}
	}
	task := &tasks.Task{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "t", CreationTimestamp: metav1.NewTime(day)},
		Spec:       tasks.TaskSpec{Array: &tasks.TaskArray{Size: 9}},
	}
	task.Status.Phase, task.Status.Error = tasks.TaskFailed, "2 of 9 indexes failed: 2,5"
	task.Status.Array = &tasks.TaskArrayStatus{FailedIndexes: "2,5", Failed: 2, Completed: 2, Pending: 5}
	task.Status.Attempts = []tasks.TaskAttempt{
		attempt(1, tasks.TaskCompleted, at(0), at(time.Second)),
		attempt(5, tasks.TaskFailed, at(time.Minute), at(time.Hour)),
		attempt(0, tasks.TaskCompleted, at(0), at(time.Second)), attempt(2, tasks.TaskFailed, nil, at(time.Second)),
	}
	print := func() string {
		c := cluster{&command.Cluster{
			Namespace: "default", Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(task).Build(),
		}}
		var out strings.Builder
		require.NoError(t, c.Task(t.Context(), "t", &out))
		return out.String()
	}
	_, table, _ := strings.Cut(print(), "\n\n")
	require.Equal(t, [][]string{
		strings.Fields("ATTEMPT INDEX STATUS NODE EXIT STARTED TOOK MEMORY CPU MESSAGE"),
		strings.Fields("1 2 Failed n - - - - - -"), strings.Fields("1 5 Failed n - 11-29 00:00:00 59m0s - - -"),
		strings.Fields("1 0 Completed n - 23:59:00 1s - - -"), strings.Fields("1 1 Completed n - 23:59:00 1s - - -"),
	}, rowsOf(table))

	require.EqualError(t, failed(task, true),
		"task t failed: 2 of 9 indexes failed: 2,5; `coracle logs t --index 5` prints its output")
	require.EqualError(t, failed(task, false), "task t failed: 2 of 9 indexes failed: 2,5", "it is deleted")
	task.Status.Attempts[1].StartedAt = nil
	require.EqualError(t, failed(task, true), "task t failed: 2 of 9 indexes failed: 2,5", "there is no output")

	task.Status.Reason, task.Status.Attempts[1].Reason = tasks.ReasonCancelled, tasks.ReasonCancelled
	require.Regexp(t, `(?s)Status +Cancelled\n.* 2 of 9 completed, 2 failed or stopped, 5 not begun\n.*5 +Cancelled`,
		print())
	require.EqualError(t, failed(task, true), "task t was cancelled")
	require.Equal(t, "cancelled", describePhase(task))
	require.Equal(t, "Cancelled", taskLine(task, day)[2])
}

func rowsOf(table string) (all [][]string) {
	for line := range strings.Lines(table) {
		all = append(all, strings.Fields(line))
	}
	return all
}

package ctl

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

func TestRunOptions(t *testing.T) {
	o := RunOptions{Name: "a", Image: "i", Command: []string{"x"}, Env: []string{"A=b=c"}, Ports: []string{"80:8080", "53:5353/udp"}, CPU: "500m", Memory: "64Mi",
		Retries: 3, Backoff: 1500 * time.Millisecond, StartTimeout: time.Minute, StopTimeout: time.Second, Timeout: 90 * time.Second, TTL: time.Minute, Array: 5, Parallelism: 2}
	task, err := o.Task("ns")
	require.NoError(t, err)
	tasks.Default(task)
	require.Empty(t, tasks.Validate(task))
	require.Equal(t, []corev1.EnvVar{{Name: "A", Value: "b=c"}}, task.Spec.Env)
	require.Equal(t, []tasks.TaskPort{{HostPort: 80, ContainerPort: 8080, Protocol: "TCP"}, {HostPort: 53, ContainerPort: 5353, Protocol: "UDP"}}, task.Spec.Ports)
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
		`--time-zone is for schedules: add --schedule`:                      {TimeZone: "UTC"},
		`--parallelism is for arrays: add --array SIZE`:                     {Parallelism: 3},
		`the name of a task with --idempotency-key is derived from the key`: {Name: "a", Key: "k"},
	} {
		_, err := o.Task("ns")
		require.ErrorContains(t, err, want)
	}
}

// The heartbeat of a node is its Lease's: its status says when it was heard of minutes ago.
func TestNodes(t *testing.T) {
	scheme, err := newScheme()
	require.NoError(t, err)
	now := time.Now()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(now.Add(-4 * time.Minute))},
	}}}
	renewed := metav1.NewMicroTime(now.Add(-7 * time.Second))
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "n"}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", Labels: map[string]string{tasks.LabelTask: "t"}}, Spec: corev1.PodSpec{NodeName: "n"}}
	c := &Cluster{Client: fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(newMapper()).WithObjects(n, l, p).Build()}
	require.Regexp(t, `(?m)^n +Online .* 1/0 +1 +([7-9]|\d\d)s$`, output(t, func(out io.Writer) error { return c.Nodes(t.Context(), out) }))
}

package api

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/pod/logs"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

func TestLogOptions(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for query, want := range map[string]logs.Options{
		"":                                   {Tail: -1},
		"follow=true&timestamps=1":           {Tail: -1, Follow: true, Timestamps: true},
		"tailLines=0&limitBytes=7":           {Limit: 7},
		"sinceSeconds=60&stream=All":         {Tail: -1, Since: now.Add(-time.Minute)},
		"sinceTime=2026-01-02T03:04:05.006Z": {Tail: -1, Since: now.Add(6 * time.Millisecond)},
		"stream=Stdout":                      {Tail: -1, Stream: "stdout"},
		"stream=Stderr":                      {Tail: -1, Stream: "stderr"},
	} {
		o, previous, err := logOptions(httptest.NewRequest("GET", "/?"+query, nil), now)
		require.NoError(t, err, query)
		require.False(t, previous)
		require.Equal(t, want, o, query)
	}
	_, previous, err := logOptions(httptest.NewRequest("GET", "/?previous=true", nil), now)
	require.NoError(t, err)
	require.True(t, previous)
	for _, query := range []string{
		"follow=maybe", "tailLines=-1", "tailLines=x", "limitBytes=1.5", "sinceSeconds=-1", "sinceTime=yesterday",
		"stream=Both",
	} {
		_, _, err := logOptions(httptest.NewRequest("GET", "/?"+query, nil), now)
		require.Error(t, err, query)
	}
}

// TestPick checks the choice of the instance whose log is shown, and the kubelet's messages if there is none.
func TestPick(t *testing.T) {
	instance := func(attempt int, s runtime.State) pod.Instance {
		return pod.Instance{Container: runtime.Container{State: s}, Name: "c", Attempt: attempt}
	}
	waiting := func(reason string) *corev1.ContainerStatus {
		return &corev1.ContainerStatus{
			Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
		}
	}
	running := &corev1.ContainerStatus{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	terminated := &corev1.ContainerStatus{
		Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "containerd://x"}},
	}
	for name, tt := range map[string]struct {
		container string
		status    *corev1.ContainerStatus
		instances []pod.Instance
		previous  bool
		want      int
		err       string
	}{
		"running": {
			"c", running, []pod.Instance{instance(1, runtime.Running), instance(0, runtime.Exited)}, false, 1, "",
		},
		"previous": {
			"c", running, []pod.Instance{instance(1, runtime.Running), instance(0, runtime.Exited)}, true, 0, "",
		},
		"the next is not started yet": {
			"c", running, []pod.Instance{instance(1, runtime.Created), instance(0, runtime.Exited)}, false, 0, "",
		},
		"previous in a crash loop": {
			"c", waiting("CrashLoopBackOff"), []pod.Instance{instance(3, runtime.Exited)}, true, 3, "",
		},
		"no previous": {
			"c",
			running,
			[]pod.Instance{instance(0, runtime.Running)},
			true,
			0,
			`previous terminated container "c" in pod "p" not found`,
		},
		"unknown": {"x", nil, nil, false, 0, `container "x" not found in pod "p"`},
		"being created": {
			"c", nil, nil, false, 0, `container "c" in pod "p" is waiting to start: ContainerCreating`,
		},
		"no image": {
			"c", waiting("ImagePullBackOff"), nil, false, 0, "waiting to start: trying and failing to pull image",
		},
		"other reason": {
			"c", waiting("CreateContainerConfigError"), nil, false, 0, "waiting to start: CreateContainerConfigError",
		},
		"evicted": {
			"c", terminated, nil, false, 0, "unable to retrieve container logs for containerd://x",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
			}
			if tt.status != nil {
				p.Status.ContainerStatuses = []corev1.ContainerStatus{*tt.status}
			}
			got, err := pick(p, tt.container, tt.instances, tt.previous)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got.Attempt)
		})
	}
}

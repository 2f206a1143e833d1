package pod

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestPhase checks that the phase follows from the containers' states as in the kubelet (getPhase).
func TestPhase(t *testing.T) {
	type list = []corev1.ContainerStatus
	running := corev1.ContainerStatus{
		ContainerID: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}
	waiting := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}
	ended := func(code int32) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			ContainerID: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}},
		}
	}
	restarting := waiting
	restarting.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1}
	lost := waiting // the machine rebooted before it ended
	lost.ContainerID = "c"
	for name, c := range map[string]struct {
		before     corev1.PodPhase
		init       list
		containers list
		terminal   bool
		want       corev1.PodPhase
	}{
		"nothing has started":                    {"", nil, list{waiting, waiting}, false, corev1.PodPending},
		"one of two has started":                 {"", nil, list{running, waiting}, false, corev1.PodPending},
		"one of two has ended":                   {"", nil, list{ended(0), waiting}, false, corev1.PodPending},
		"both have started":                      {"", nil, list{running, running}, false, corev1.PodRunning},
		"one restarts":                           {"", nil, list{running, restarting}, false, corev1.PodRunning},
		"all restart":                            {"", nil, list{restarting, restarting}, false, corev1.PodRunning},
		"one has ended":                          {"", nil, list{running, ended(1)}, false, corev1.PodRunning},
		"the machine has rebooted":               {corev1.PodRunning, nil, list{lost, lost}, false, corev1.PodRunning},
		"an init container runs":                 {"", list{running}, list{waiting}, false, corev1.PodPending},
		"all have succeeded":                     {"", nil, list{ended(0), ended(0)}, true, corev1.PodSucceeded},
		"one has failed":                         {"", nil, list{ended(0), ended(1)}, true, corev1.PodFailed},
		"ended before its containers started":    {"", nil, list{waiting}, true, corev1.PodFailed},
		"ended while one had not started at all": {"", nil, list{ended(0), waiting}, true, corev1.PodFailed},
	} {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: c.before}}
		p.Spec.InitContainers = make([]corev1.Container, len(c.init))
		s := &corev1.PodStatus{InitContainerStatuses: c.init, ContainerStatuses: c.containers}
		require.Equal(t, c.want, phase(p, Observed{}, s, c.terminal), name)
	}
}

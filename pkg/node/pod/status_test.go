package pod

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// A container that restarts with another image is reported once the new instance runs: the pod stays ready.
func TestAChangedContainerIsReportedOnceItRuns(t *testing.T) {
	j := &journal{}
	with(t, fake.Config{Programs: j.programs()}, func(r *rig) {
		p := podOf("web")
		p.Spec.Containers = []corev1.Container{containerNamed("c", "server", "web")}
		r.create(p)
		r.pass(time.Second)
		ready := func() bool {
			return slices.ContainsFunc(r.pod("web").Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
		}
		require.True(t, ready())
		unready := false
		r.api.refusing(func(string) error { unready = unready || !ready(); return nil }) // as before
		r.change("web", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "elsewhere" })
		r.pass(10 * time.Second)
		require.EqualValues(t, 1, r.status("web", "c").RestartCount)
		require.Contains(t, r.status("web", "c").Image, "elsewhere")
		require.True(t, ready())
		require.False(t, unready)
	})
}

// TestLostContainers checks the status and the next start of containers that the runtime does not know any more.
func TestLostContainers(t *testing.T) {
	was := func(restarts int32, state, last string) *corev1.ContainerStatus {
		s := &corev1.ContainerStatus{Name: "m0", ContainerID: "containerd://old", RestartCount: restarts}
		read := func(text string) (c corev1.ContainerState) {
			switch text {
			case "":
			case "running":
				c.Running = &corev1.ContainerStateRunning{}
			case "waiting":
				c.Waiting = &corev1.ContainerStateWaiting{}
			default:
				c.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: text}
			}
			return c
		}
		s.State, s.LastTerminationState = read(state), read(last)
		return s
	}
	const lost = "terminated: ContainerStatusUnknown 137"
	for _, c := range []struct {
		was         *corev1.ContainerStatus
		main        string
		deleted     bool
		state, last string
		restarts    int32
		next        string
	}{
		{nil, "-", false, "waiting: ContainerCreating", "none", 0, "start m0 0"},
		{was(0, "waiting", ""), "-", false, "waiting: ContainerCreating", "none", 0, "start m0 0"},
		{was(0, "running", ""), "-", false, "waiting: ContainerCreating", lost, 0, "start m0 1"},
		{was(2, "running", "Error"), "-", false, "waiting: ContainerCreating", lost, 2, "start m0 3"},
		{was(2, "running", ""), "-", true, lost, "none", 2, "release release"},
		{was(5, "Error", ""), "-", false, "terminated: Error 1", "none", 5, "start m0 6"},
		{was(5, "waiting", "Error"), "-", false, "waiting: ContainerCreating", "terminated: Error 1", 5, "start m0 6"},
		{was(5, "Error", ""), "R", false, "running", "terminated: Error 1", 6, ""},
		{was(5, "Error", "Error"), "c", false, "terminated: Error 1", "terminated: Error 1", 5, "start m0 6"},
	} {
		p, o := scenario(always, "", c.main)
		for i := range o.Containers["m0"] { // the instance after the lost one
			o.Containers["m0"][i].Attempt = 6
		}
		if c.was != nil {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{*c.was}
		}
		if c.deleted {
			p.DeletionTimestamp = &metav1.Time{Time: now}
		}
		d := Plan(p, o, now)
		s := Status(p, o, d, Facts{}, now).ContainerStatuses[0]
		last := s
		last.State = s.LastTerminationState
		require.Equal(t, []string{c.state, c.last, c.next},
			[]string{state(s), state(last), strings.Join(short(d), ", ")}, "%+v", c)
		require.Equal(t, c.restarts, s.RestartCount, "%+v", c)
	}
	p, o := scenario(always, "- s:-", "R")
	s := Status(p, o, Plan(p, o, now), Facts{}, now).InitContainerStatuses
	require.Equal(t, []string{"terminated: Completed 0", "waiting: PodInitializing"}, []string{state(s[0]), state(s[1])})
}

// TestReadyAndStarted checks both fields of each kind of container, as in the kubelet (UpdatePodStatus).
func TestReadyAndStarted(t *testing.T) {
	for _, c := range []struct {
		init, main     string
		ready, started []bool
	}{
		{"R", "-", []bool{false, false}, []bool{true, false}},
		{"0", "-", []bool{true, false}, []bool{false, false}},
		{"1", "-", []bool{false, false}, []bool{false, false}},
		{"s:R", "R", []bool{true, true}, []bool{true, true}},
		{"s:r", "r", []bool{false, false}, []bool{false, false}},
		{"s:0", "0", []bool{false, false}, []bool{false, false}},
	} {
		p, o := scenario(always, c.init, c.main)
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon(o.add("e0", "R")),
		}}
		s := Status(p, o, Plan(p, o, now), Facts{}, now)
		for i, got := range []corev1.ContainerStatus{s.InitContainerStatuses[0], s.ContainerStatuses[0]} {
			require.Equal(t, c.ready[i], got.Ready, "%+v", c)
			require.Equal(t, c.started[i], *got.Started, "%+v", c)
		}
		require.False(t, s.EphemeralContainerStatuses[0].Ready)
		require.Nil(t, s.EphemeralContainerStatuses[0].Started)
	}
}

// An exited container is shown with its allocated resources, not with those that its cgroup had.
func TestResourcesOfExitedContainers(t *testing.T) {
	p, o := scenario(never, "", "0 R")
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Resources = needs("1", "1Gi")
	}
	o.Amounts = map[string]amounts{}
	for _, l := range o.Containers {
		o.Amounts[l[0].ID] = amounts{CPURequest: 100, CPULimit: 100, MemoryRequest: 1, MemoryLimit: 1}
	}
	s := Status(p, o, Plan(p, o, now), Facts{}, now).ContainerStatuses
	require.Equal(t, "1", s[0].Resources.Requests.Cpu().String())
	require.Equal(t, "100m", s[1].Resources.Requests.Cpu().String())
	require.Equal(t, p.Spec.Containers[0].Resources.Requests, s[0].AllocatedResources)
}

// The user that a container began as is shown (KEP-3619).
func TestContainerUser(t *testing.T) {
	p, o := scenario(always, "", "R R")
	o.Containers["m0"][0].User = &runtime.User{UID: 7, GID: 8, Groups: []int64{8, 9}}
	s := Status(p, o, Plan(p, o, now), Facts{}, now).ContainerStatuses
	require.Equal(t, &corev1.LinuxContainerUser{UID: 7, GID: 8, SupplementalGroups: []int64{8, 9}}, s[0].User.Linux)
	require.Nil(t, s[1].User, "its shim does not tell")
}

// A terminal phase is final. Reason and message stay as long as the phase.
func TestPhaseReasonAndMessage(t *testing.T) {
	for _, c := range []struct {
		before        corev1.PodPhase
		policy        corev1.RestartPolicy
		main          string
		phase, reason string
	}{
		{corev1.PodSucceeded, always, "-", "Succeeded", "Test"},
		{corev1.PodFailed, never, "0", "Failed", "Test"},
		{corev1.PodSucceeded, always, "R", "Succeeded", "Test"},
		{corev1.PodPending, always, "- R", "Pending", "Test"},
		{corev1.PodPending, always, "R R", "Running", ""},
		{corev1.PodRunning, never, "0 0", "Succeeded", ""},
		{corev1.PodRunning, always, "- R", "Pending", ""},
	} {
		p, o := scenario(c.policy, "", c.main)
		p.Status.Phase, p.Status.Reason, p.Status.Message = c.before, "Test", "test"
		s := Status(p, o, Plan(p, o, now), Facts{}, now)
		require.Equal(t, []string{c.phase, c.reason, strings.ToLower(c.reason)},
			[]string{string(s.Phase), s.Reason, s.Message}, "%+v", c)
	}
}

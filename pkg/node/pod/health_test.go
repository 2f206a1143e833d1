package pod

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// checked returns programs: "check", which fails while sick is set, and "deaf".
func checked(sick *atomic.Bool) fake.Config {
	return fake.Config{Programs: map[string]fake.Program{"deaf": deaf, "check": func(context.Context, *fake.Process) int {
		if sick.Load() {
			return 1
		}
		return 0
	}}}
}

func probeEvery(seconds, failures int32) *corev1.Probe {
	return &corev1.Probe{PeriodSeconds: seconds, FailureThreshold: failures,
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check"}}}}
}

// A failing liveness probe restarts only its container, within the probe's own grace period.
func TestLivenessProbe(t *testing.T) {
	var sick atomic.Bool
	with(t, checked(&sick), func(r *rig) {
		p := podOf("web", "deaf")
		p.Spec.Containers[0].LivenessProbe = probeEvery(10, 2)
		p.Spec.Containers[0].LivenessProbe.TerminationGracePeriodSeconds = new(int64(3))
		p.Spec.Containers = append(p.Spec.Containers, containerNamed("other", "sleep", "100000"))
		r.create(p)
		r.pass(time.Minute)
		sick.Store(true)
		r.pass(19 * time.Second)
		require.Equal(t, "running", state(r.status("web", "main")))
		require.Zero(t, r.status("web", "main").RestartCount)
		r.pass(5 * time.Second)
		sick.Store(false)
		s := r.status("web", "main")
		require.EqualValues(t, 1, s.RestartCount)
		require.EqualValues(t, 137, s.LastTerminationState.Terminated.ExitCode)
		require.Zero(t, r.status("web", "other").RestartCount)
		require.Contains(t, r.events.text(), "Unhealthy: Liveness probe failed: ")
		require.Contains(t, r.events.text(), "Killing: Container main failed liveness probe, will be restarted")
		r.pass(10 * time.Minute)
		require.EqualValues(t, 1, r.status("web", "main").RestartCount, "it is well again")
	})
}

// A readiness probe changes the pod's readiness both ways, and restarts nothing.
func TestReadinessProbe(t *testing.T) {
	var sick atomic.Bool
	sick.Store(true)
	with(t, checked(&sick), func(r *rig) {
		p := podOf("web", "sleep", "100000")
		p.Spec.Containers[0].ReadinessProbe = probeEvery(5, 2)
		p.Spec.Containers = append(p.Spec.Containers, containerNamed("other", "sleep", "100000"))
		r.create(p)
		r.pass(time.Minute)
		ready := func() corev1.PodCondition { return conditionOf(r.pod("web"), corev1.PodReady) }
		require.Equal(t, corev1.ConditionFalse, ready().Status)
		require.Equal(t, "ContainersNotReady", ready().Reason)
		require.Equal(t, "containers with unready status: [main]", ready().Message)
		require.True(t, *r.status("web", "main").Started)
		sick.Store(false)
		r.pass(5 * time.Second)
		require.Equal(t, corev1.ConditionTrue, ready().Status)
		since := ready().LastTransitionTime
		sick.Store(true)
		r.pass(5 * time.Second)
		require.Equal(t, corev1.ConditionTrue, ready().Status, "one failure of two")
		require.Equal(t, since, ready().LastTransitionTime)
		r.pass(5 * time.Second)
		require.Equal(t, corev1.ConditionFalse, ready().Status)
		require.Zero(t, r.status("web", "main").RestartCount)

		r.restart() // the new agent knows only the status
		require.Equal(t, corev1.ConditionFalse, ready().Status)
		sick.Store(false)
		r.pass(5 * time.Second)
		require.Equal(t, corev1.ConditionTrue, ready().Status)
		r.restart()
		require.Equal(t, corev1.ConditionTrue, ready().Status, "a pod in service stays so while the agent restarts")
	})
}

// No other probe runs before the startup probe has succeeded. A container that does not start in time is restarted.
func TestStartupProbe(t *testing.T) {
	var sick atomic.Bool
	sick.Store(true)
	with(t, checked(&sick), func(r *rig) {
		p := podOf("web", "sleep", "100000")
		c := &p.Spec.Containers[0]
		c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = probeEvery(10, 6), probeEvery(1, 1), probeEvery(1, 1)
		r.create(p)
		r.pass(55 * time.Second)
		s := r.status("web", "main")
		require.False(t, *s.Started)
		require.False(t, s.Ready)
		require.Zero(t, s.RestartCount)
		require.NotContains(t, r.events.text(), "Liveness")
		r.pass(20 * time.Second)
		require.EqualValues(t, 1, r.status("web", "main").RestartCount)
		require.Contains(t, r.events.text(), "Container main failed startup probe, will be restarted")
		sick.Store(false)
		r.pass(11 * time.Second)
		require.True(t, *r.status("web", "main").Started)
		require.True(t, r.status("web", "main").Ready)
	})
}

// The container after a sidecar starts when the sidecar's startup probe has succeeded.
func TestStartupProbeOfASidecar(t *testing.T) {
	var sick atomic.Bool
	sick.Store(true)
	with(t, checked(&sick), func(r *rig) {
		always := corev1.ContainerRestartPolicyAlways
		p := podOf("web", "sleep", "100000")
		side := containerNamed("side", "sleep", "100000")
		side.RestartPolicy, side.StartupProbe = &always, probeEvery(1, 100)
		p.Spec.InitContainers = []corev1.Container{side}
		r.create(p)
		r.pass(30 * time.Second)
		require.Equal(t, []string{"side"}, r.running())
		require.Equal(t, "waiting: PodInitializing", state(r.status("web", "main")))
		sick.Store(false)
		r.pass(time.Second)
		require.ElementsMatch(t, []string{"side", "main"}, r.running())
		require.Equal(t, corev1.ConditionTrue, conditionOf(r.pod("web"), corev1.PodReady).Status)
	})
}

// An exec probe's command is expanded, and an error of the node's does not restart the container.
func TestProbesOfCommands(t *testing.T) {
	programs := map[string]fake.Program{"is": func(_ context.Context, p *fake.Process) int {
		if slices.Equal(p.Args, []string{"is", "yes"}) {
			return 0
		}
		return 1
	}}
	with(t, fake.Config{Programs: programs}, func(r *rig) {
		p := podOf("web", "sleep", "100000")
		c := &p.Spec.Containers[0]
		c.Env = []corev1.EnvVar{{Name: "ANSWER", Value: "yes"}}
		c.ReadinessProbe, c.LivenessProbe = probeEvery(1, 1), probeEvery(1, 1)
		c.ReadinessProbe.Exec.Command, c.LivenessProbe.Exec.Command = []string{"is", "$(ANSWER)"}, []string{"none"}
		r.create(p)
		r.pass(time.Minute)
		require.True(t, r.status("web", "main").Ready)
		require.Zero(t, r.status("web", "main").RestartCount)
		require.Contains(t, r.events.text(), "Liveness probe errored and resulted in unknown state: ")
	})
}

// A container that a probe ended restarts although it ended with code 0 and its policy is OnFailure.
func TestLivenessRestartsWhateverTheExitCode(t *testing.T) {
	var sick atomic.Bool
	c := checked(&sick)
	c.Programs["polite"] = func(ctx context.Context, p *fake.Process) int {
		select {
		case <-p.Signals:
		case <-ctx.Done():
		}
		return 0
	}
	with(t, c, func(r *rig) {
		p := podOf("web", "polite")
		p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
		p.Spec.Containers[0].LivenessProbe = probeEvery(10, 2)
		r.create(p)
		r.pass(time.Minute)
		sick.Store(true)
		r.pass(24 * time.Second)
		sick.Store(false)
		r.pass(time.Minute)
		s := r.status("web", "main")
		require.Equal(t, "running", state(s))
		require.EqualValues(t, 1, s.RestartCount)
		require.Zero(t, s.LastTerminationState.Terminated.ExitCode)
	})
}

func TestReadinessGates(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		p := podOf("web", "sleep", "100000")
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/balancer"}}
		p = r.create(p)
		require.Equal(t, corev1.ConditionTrue, conditionOf(p, corev1.ContainersReady).Status)
		require.Equal(t, "ReadinessGatesNotReady", conditionOf(p, corev1.PodReady).Reason)
		p = r.change("web", func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
				Type: "example.com/balancer", Status: corev1.ConditionTrue,
			})
		})
		require.Equal(t, corev1.ConditionTrue, conditionOf(p, corev1.PodReady).Status)
		require.Equal(t, corev1.ConditionTrue, conditionOf(p, "example.com/balancer").Status, "it is kept")
	})
}

func needs(cpu, memory string) corev1.ResourceRequirements {
	l := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}
	return corev1.ResourceRequirements{Requests: l, Limits: l}
}

// A resize without enough room waits; an impossible one is refused. Neither touches the container.
func TestResizeBeyondTheNode(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		for _, name := range []string{"web", "big"} {
			p := podOf(name, "sleep", "100000")
			p.Spec.Containers[0].Resources = needs("900m", "64Mi")
			r.create(p)
		}
		id := r.status("web", "main").ContainerID
		resize := func(cpu string) *corev1.Pod {
			return r.change("web", func(p *corev1.Pod) { p.Spec.Containers[0].Resources = needs(cpu, "64Mi") })
		}
		pending := func() string { return conditionOf(r.pod("web"), corev1.PodResizePending).Reason }

		resize("3")
		require.Equal(t, corev1.PodReasonInfeasible, pending())
		require.Equal(t, "900m", r.status("web", "main").Resources.Requests.Cpu().String(), "what it has is what is shown")
		resize("1500m")
		require.Equal(t, corev1.PodReasonDeferred, pending())
		require.Contains(t, conditionOf(r.pod("web"), corev1.PodResizePending).Message,
			"Node didn't have enough resource: cpu")
		r.delete("big", 0)
		r.pass(30 * time.Second)
		require.Empty(t, pending())
		s := r.status("web", "main")
		require.Equal(t, "1500m", s.Resources.Requests.Cpu().String())
		require.Equal(t, id, s.ContainerID)
		require.Zero(t, s.RestartCount)
	})
}

// A restarted agent knows the containers' resources, and finishes a resize that was requested while it was down.
func TestResizeWhileTheAgentIsAway(t *testing.T) {
	var updated atomic.Int64
	with(t,
		fake.Config{Update: func(_ string, res runtime.Resources) error { updated.Store(res.MemoryBytes); return nil }},
		func(r *rig) {
			p := podOf("web", "sleep", "100000")
			p.Spec.Containers[0].Resources = needs("100m", "64Mi")
			r.create(p)
			r.restart()
			require.Zero(t, updated.Load(), "nothing differs")
			r.stop()
			r.change("web", func(p *corev1.Pod) { p.Spec.Containers[0].Resources = needs("100m", "128Mi") })
			r.start()
			require.EqualValues(t, 128<<20, updated.Load())
			require.Equal(t, "128Mi", r.status("web", "main").Resources.Limits.Memory().String())
			require.Zero(t, r.status("web", "main").RestartCount)
		})
}

// pulls returns a Pull function that fails until there is set.
func pulls(there *atomic.Bool) func(context.Context, string) error {
	return func(context.Context, string) error {
		if there.Load() {
			return nil
		}
		return errors.New("registry is away")
	}
}

// A container that waits for an image reports which and why, and starts as soon as the image can be pulled.
func TestWaitingForAnImage(t *testing.T) {
	var there atomic.Bool
	with(t, fake.Config{Pull: pulls(&there)}, func(r *rig) {
		p := podOf("web", "sleep", "100000")
		p.Spec.Containers[0].Image = "example.com/app:1"
		r.create(p)
		s := r.status("web", "main")
		require.Equal(t, "waiting: ErrImagePull", state(s))
		require.Contains(t, s.State.Waiting.Message, `Failed to pull image "example.com/app:1": registry is away`)
		r.pass(2 * time.Second)
		require.Equal(t, "waiting: ImagePullBackOff", state(r.status("web", "main")))
		require.Equal(t, corev1.PodPending, r.pod("web").Status.Phase)
		there.Store(true)
		r.pass(10 * time.Second)
		require.Equal(t, "running", state(r.status("web", "main")))
		require.Zero(t, r.status("web", "main").RestartCount)

		never := podOf("never", "sleep", "100000")
		never.Spec.Containers[0].Image = "example.com/other:1"
		never.Namespace = "default"
		r.create(never)
		r.change("never", func(p *corev1.Pod) {
			p.Spec.Containers[0].ImagePullPolicy, p.Spec.Containers[0].Image = corev1.PullNever, "example.com/none:1"
		})
		require.Equal(t, "waiting: ErrImageNeverPull", state(r.status("never", "main")))
		broken := podOf("broken", "sleep", "100000")
		broken.Spec.Containers[0].Image = "Not An Image"
		r.create(broken)
		require.Equal(t, "waiting: InvalidImageName", state(r.status("broken", "main")))
	})
}

// A command that does not exist is a crash whose reason names it.
func TestCommandThatDoesNotExist(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		p := podOf("web", "no-such-command")
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		r.create(p)
		s := r.status("web", "main")
		require.Equal(t, "terminated: StartError 128", state(s))
		require.Contains(t, s.State.Terminated.Message, `"no-such-command": executable file not found`)
		require.Equal(t, corev1.PodFailed, r.pod("web").Status.Phase)
	})
}

// A pod without failures causes the kubelet's events in the kubelet's order.
func TestEventsOfALife(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.create(podOf("web", "sleep", "100000"))
		r.delete("web", 30)
		require.Nil(t, r.pod("web"))
		require.Equal(t, []string{
			`Pulled: Container image "busybox" already present on machine and can be accessed by the pod`,
			"Created: Container created", "Started: Container started", "Killing: Stopping container main",
		}, slices.Clone(r.events.all))
	})
}

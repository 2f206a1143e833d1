package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

type creations struct {
	runtime.Runtime
	mu    sync.Mutex
	names []string
}

func (c *creations) Create(ctx context.Context, s runtime.Spec) error {
	c.mu.Lock()
	c.names = append(c.names, s.Labels[labelName])
	c.mu.Unlock()
	return c.Runtime.Create(ctx, s)
}

// journal records the starts and ends of programs, in order. It fails the test if one runs twice at once.
type journal struct {
	mu      sync.Mutex
	lines   []string
	running map[string]int
	twice   []string
}

func (j *journal) list() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

func (j *journal) count(line string) int {
	n := 0
	for _, l := range j.list() {
		if l == line {
			n++
		}
	}
	return n
}

// programs returns "server NAME", which runs until it is signalled, and "task NAME", which ends after a second.
func (j *journal) programs() map[string]fake.Program {
	run := func(body func(context.Context, *fake.Process) int) fake.Program {
		return func(ctx context.Context, p *fake.Process) int {
			name := p.Args[1]
			j.mu.Lock()
			if j.running == nil {
				j.running = map[string]int{}
			}
			if j.running[name]++; j.running[name] > 1 {
				j.twice = append(j.twice, name)
			}
			j.lines = append(j.lines, name+" begins")
			j.mu.Unlock()
			code := body(ctx, p)
			j.mu.Lock()
			defer j.mu.Unlock()
			j.running[name]--
			j.lines = append(j.lines, name+" ends")
			return code
		}
	}
	return map[string]fake.Program{
		"server": run(func(ctx context.Context, p *fake.Process) int {
			select {
			case <-ctx.Done():
				return 137
			case <-p.Signals:
				return 0
			}
		}),
		"task": run(func(ctx context.Context, _ *fake.Process) int {
			select {
			case <-ctx.Done():
				return 137
			case <-time.After(time.Second):
				return 0
			}
		}),
	}
}

// manifold returns a pod with every kind of container: task, sidecar, task, and two servers, one with a postStart hook.
func manifold() *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	p := podOf("web")
	side := containerNamed("side", "server", "side")
	side.RestartPolicy = &always
	p.Spec.InitContainers = []corev1.Container{
		containerNamed("first", "task", "first"), side, containerNamed("second", "task", "second"),
	}
	a := containerNamed("a", "server", "a")
	a.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
	p.Spec.Containers = []corev1.Container{a, containerNamed("b", "server", "b")}
	return p
}

// Init containers run in order, the container after a sidecar starts after it, and everything ends in reverse.
func TestOrderOfAPodsLife(t *testing.T) {
	j, made := &journal{}, &creations{}
	with(t, fake.Config{Programs: j.programs()}, func(r *rig) {
		r.wrapRuntime = func(inner runtime.Runtime) runtime.Runtime { made.Runtime = inner; return made }
		r.restart()
		r.create(manifold())
		r.pass(time.Minute)
		require.Equal(t, []string{"first", "side", "second"}, made.names[:3])
		lines := j.list()
		require.Equal(t, []string{"first begins", "first ends"}, lines[:2])
		require.ElementsMatch(t, []string{"side begins", "second begins"}, lines[2:4],
			"a sidecar is started, but its first line is its own affair")
		require.Equal(t, "second ends", lines[4])
		require.ElementsMatch(t, []string{"a begins", "b begins"}, j.list()[5:])
		p := r.pod("web")
		require.Equal(t, corev1.PodRunning, p.Status.Phase)
		for _, kind := range []corev1.PodConditionType{
			corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady,
		} {
			require.Equal(t, corev1.ConditionTrue, conditionOf(p, kind).Status, kind)
		}
		require.Equal(t, "terminated: Completed 0", state(r.status("web", "first")))

		r.delete("web", 30)
		r.pass(time.Minute)
		ends := j.list()[7:]
		require.ElementsMatch(t, []string{"a ends", "b ends"}, ends[:2])
		require.Equal(t, []string{"side ends"}, ends[2:], "a sidecar serves the others until they have ended")
		require.Nil(t, r.pod("web"))
		r.requireNothingLeft()
	})
}

func TestRestartPolicies(t *testing.T) {
	for name, tt := range map[string]struct {
		policy   corev1.RestartPolicy
		exit     int
		restarts bool
		phase    corev1.PodPhase
		state    string
		ready    string // reason of the Ready condition
	}{
		"Always succeeds": {
			corev1.RestartPolicyAlways, 0, true, corev1.PodRunning, "waiting: CrashLoopBackOff", "ContainersNotReady",
		},
		"Always fails": {
			corev1.RestartPolicyAlways, 3, true, corev1.PodRunning, "waiting: CrashLoopBackOff", "ContainersNotReady",
		},
		"OnFailure succeeds": {
			corev1.RestartPolicyOnFailure, 0, false, corev1.PodSucceeded, "terminated: Completed 0", "PodCompleted",
		},
		"OnFailure fails": {
			corev1.RestartPolicyOnFailure, 3, true, corev1.PodRunning, "waiting: CrashLoopBackOff", "ContainersNotReady",
		},
		"Never succeeds": {
			corev1.RestartPolicyNever, 0, false, corev1.PodSucceeded, "terminated: Completed 0", "PodCompleted",
		},
		"Never fails": {corev1.RestartPolicyNever, 3, false, corev1.PodFailed, "terminated: Error 3", "PodFailed"},
	} {
		t.Run(name, func(t *testing.T) {
			with(t, fake.Config{}, func(r *rig) {
				p := podOf("web", "sh", "-c", fmt.Sprintf("sleep 5; exit %d", tt.exit))
				p.Spec.RestartPolicy = tt.policy
				r.create(p)
				require.Equal(t, "running", state(r.status("web", "main")))
				r.pass(11 * time.Second) // two runs if it restarts without delay
				s := r.status("web", "main")
				require.Equal(t, tt.state, state(s))
				p = r.pod("web")
				require.Equal(t, tt.phase, p.Status.Phase)
				require.Equal(t, tt.ready, conditionOf(p, corev1.PodReady).Reason)
				require.Equal(t, corev1.ConditionFalse, conditionOf(p, corev1.PodReady).Status)
				if !tt.restarts {
					require.Zero(t, s.RestartCount)
					require.Empty(t, r.network.sandboxes, "an ended pod needs no address")
					return
				}
				require.EqualValues(t, 1, s.RestartCount)
				require.EqualValues(t, tt.exit, s.LastTerminationState.Terminated.ExitCode)
				require.Equal(t, "back-off 10s restarting failed container=main pod=web_default(uid-web)", s.State.Waiting.Message)
				reason := map[int]string{0: "Completed", 3: "Error"}[tt.exit]
				require.Contains(t, r.events.text(),
					fmt.Sprintf("BackOff: Back-off restarting failed container main in pod web_default(uid-web): "+
						"%s, exit code %d", reason, tt.exit))
			})
		})
	}
}

// A container that ran for more than ten minutes restarts immediately, and its back-off is reset.
func TestBackOffAfterALongRun(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.create(podOf("web", "sleep", "660"))
		for i := range 4 {
			r.pass(660 * time.Second)
			require.EqualValues(t, i+1, r.status("web", "main").RestartCount)
			require.Equal(t, "running", state(r.status("web", "main")))
		}
	})
}

// An init container that fails for good fails the pod, and no other container starts.
func TestInitContainerFails(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		p := podOf("web", "sleep", "1000")
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.InitContainers = []corev1.Container{
			containerNamed("init", "sh", "-c", "exit 7"), containerNamed("next", "true"),
		}
		p = r.create(p)
		require.Equal(t, corev1.PodFailed, p.Status.Phase)
		require.Equal(t, "terminated: Error 7", state(r.status("web", "init")))
		require.Equal(t, "waiting: PodInitializing", state(r.status("web", "next")))
		require.Equal(t, "waiting: PodInitializing", state(r.status("web", "main")))
		require.Equal(t, corev1.ConditionFalse, conditionOf(p, corev1.PodInitialized).Status)

		p = podOf("again", "sleep", "1000")
		p.Spec.InitContainers = []corev1.Container{containerNamed("init", "sh", "-c", "exit 7")}
		p = r.create(p)
		require.Equal(t, corev1.PodPending, p.Status.Phase)
		require.Equal(t, "waiting: CrashLoopBackOff", state(r.status("again", "init")))
		require.Equal(t, "containers with incomplete status: [init]", conditionOf(p, corev1.PodInitialized).Message)
		r.pass(10 * time.Second)
		require.EqualValues(t, 2, r.status("again", "init").RestartCount)
	})
}

// A sidecar that exits is restarted under any restart policy, and does not keep the pod from completing.
func TestSidecarsOfAJob(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		always := corev1.ContainerRestartPolicyAlways
		p := podOf("job", "sleep", "20")
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		side := containerNamed("side", "sleep", "5")
		side.RestartPolicy = &always
		p.Spec.InitContainers = []corev1.Container{side}
		r.create(p)
		r.pass(6 * time.Second)
		require.EqualValues(t, 1, r.status("job", "side").RestartCount)
		require.Equal(t, "running", state(r.status("job", "main")), "which went on meanwhile")
		require.Zero(t, r.status("job", "main").RestartCount)
		r.pass(20 * time.Second)
		require.Equal(t, corev1.PodSucceeded, r.pod("job").Status.Phase)
		require.Equal(t, "terminated: Completed 0", state(r.status("job", "main")))
		require.Empty(t, r.running())
	})
}

// Back-offs survive a restart of the agent, but containers that ended with the machine start immediately.
func TestBackOffOutlivesTheAgent(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.create(podOf("web", "false"))
		r.pass(10 * time.Second) // now in a back-off of 20 s
		require.EqualValues(t, 2, r.status("web", "main").RestartCount)
		r.pass(15 * time.Second)
		r.stop()
		r.start()
		require.EqualValues(t, 3, r.status("web", "main").RestartCount,
			"a container that ended before the agent began is started at once")
		r.pass(39 * time.Second)
		require.EqualValues(t, 3, r.status("web", "main").RestartCount, "but it still is a crash loop")
		r.pass(time.Second)
		require.EqualValues(t, 4, r.status("web", "main").RestartCount)
	})
}

// After a reboot the init containers run again before the main ones. A restart of the agent repeats nothing.
func TestReboot(t *testing.T) {
	j := &journal{}
	with(t, fake.Config{Programs: j.programs()}, func(r *rig) {
		r.create(manifold())
		r.pass(time.Minute)
		begun := func(from int) (names []string) {
			for _, line := range j.list()[from:] {
				if name, begins := strings.CutSuffix(line, " begins"); begins {
					names = append(names, name)
				}
			}
			return names
		}
		before := len(j.list())
		r.restart()
		r.pass(time.Minute)
		require.Empty(t, begun(before))
		r.reboot()
		p := r.pod("web")
		require.Equal(t, corev1.PodPending, p.Status.Phase)
		require.Equal(t, corev1.ConditionTrue, conditionOf(p, corev1.PodInitialized).Status, "it was initialized once")
		r.pass(time.Minute)
		require.Equal(t, []string{"first"}, begun(before)[:1])
		require.ElementsMatch(t, []string{"side", "second"}, begun(before)[1:3])
		require.ElementsMatch(t, []string{"a", "b"}, begun(before)[3:])
		p = r.pod("web")
		require.Equal(t, corev1.PodRunning, p.Status.Phase)
		require.Equal(t, corev1.ConditionTrue, conditionOf(p, corev1.PodReady).Status)
		for _, name := range []string{"first", "side", "second", "a", "b"} {
			require.EqualValues(t, 1, r.status("web", name).RestartCount, name)
		}
	})
}

// Failing calls to runtime and network are retried with growing delays, are reported, and leave nothing behind.
func TestFailingSteps(t *testing.T) {
	for _, call := range []string{"setup", "create", "start"} {
		t.Run(call, func(t *testing.T) {
			fails, tries := 3, 0
			fail := func() error {
				if tries++; tries <= fails {
					return errors.New("injected")
				}
				return nil
			}
			c := fake.Config{}
			switch call {
			case "create":
				c.Create = func(runtime.Spec) error { return fail() }
			case "start":
				c.Start = func(runtime.Spec) error { return fail() }
			}
			with(t, c, func(r *rig) {
				if call == "setup" {
					r.network.refusing(func(name string) error {
						if name != call {
							return nil
						}
						return fail()
					})
				}
				began := time.Now()
				r.create(podOf("web", "sleep", "1000"))
				require.Contains(t, r.events.text(), "injected")
				for r.pod("web").Status.Phase != corev1.PodRunning ||
					conditionOf(r.pod("web"), corev1.PodReady).Status != corev1.ConditionTrue {
					require.Less(t, time.Since(began), time.Minute)
					if s := r.pod("web").Status.ContainerStatuses; call == "create" && len(s) > 0 && s[0].State.Waiting != nil {
						require.Equal(t, "CreateContainerError", s[0].State.Waiting.Reason)
						require.Equal(t, "injected", s[0].State.Waiting.Message)
					}
					r.pass(250 * time.Millisecond)
				}
				require.GreaterOrEqual(t, time.Since(began), 5*time.Second, "1, 2 and 4 s, or 10 s after two crashes")
				require.Equal(t, fails+1, tries)
				require.Equal(t, []string{"main"}, r.running())
				r.delete("web", 0)
				r.pass(time.Second)
				r.requireNothingLeft()
			})
		})
	}
}

func TestStatusIsWrittenInTheEnd(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.api.refusing(func(verb string) error {
			if strings.HasSuffix(verb, "status") {
				return errors.New("etcd is away")
			}
			return nil
		})
		p := podOf("job", "sleep", "5")
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		r.create(p)
		r.pass(time.Minute)
		require.Empty(t, r.pod("job").Status.Phase)
		r.api.refusing(nil)
		r.pass(11 * time.Second)
		require.Equal(t, corev1.PodSucceeded, r.pod("job").Status.Phase)
		require.NotNil(t, r.pod("job").Status.StartTime)
	})
}

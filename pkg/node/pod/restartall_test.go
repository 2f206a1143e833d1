package pod

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// resets gives containers the rule that an exit with 42 restarts all containers of the pod.
func resets(p *corev1.Pod, names ...string) *corev1.Pod {
	never := corev1.ContainerRestartPolicyNever
	for c := range containersOf(p) {
		if !slices.Contains(names, c.Name) {
			continue
		}
		if c.RestartPolicy == nil {
			c.RestartPolicy = &never
		}
		c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
				Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42},
			}}}
	}
	return p
}

func TestFirstMatchingRuleDecides(t *testing.T) {
	rule := func(action corev1.ContainerRestartRuleAction, op corev1.ContainerRestartRuleOnExitCodesOperator,
		codes ...int32) corev1.ContainerRestartRule {
		return corev1.ContainerRestartRule{
			Action: action, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes},
		}
	}
	one, all := corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers
	in, not := corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn
	c := &corev1.Container{
		RestartPolicyRules: []corev1.ContainerRestartRule{
			{Action: all}, rule(one, in, 1, 42), rule(all, not, 0, 3), rule(one, in, 3),
		},
	}
	for exit, want := range map[int]corev1.ContainerRestartRuleAction{0: "", 1: one, 42: one, 2: all, 3: one, 137: all} {
		require.Equal(t, want, ruleFor(c, exit), exit)
	}
}

func TestPlanOfRestartingAll(t *testing.T) {
	never, always := corev1.RestartPolicyNever, corev1.RestartPolicyAlways
	in := func(round int, i Instance) Instance { i.Round = round; return i }
	waits := func(i Instance, wait time.Duration) Instance { i.BackOff = wait; return i }
	whole := func() *corev1.Pod { return resets(spec(never, []string{"i", "s"}, []string{"a", "b"}), "a") }
	busy := func(o Observed, name string, k Kind) Observed { o.Busy[name] = k; return o }
	deleted := func(p *corev1.Pod) *corev1.Pod {
		at, grace := metav1.NewTime(now), int64(7)
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
		return p
	}
	old := up(run("i", 0, runtime.Exited, 0), run("s", 0, runtime.Running, 0), run("a", 0, runtime.Exited, 42),
		run("b", 0, runtime.Exited, 0))
	old.Began = now // the agent has just started
	old.Containers["s"][0].State = runtime.Exited
	old.Containers["a"][0].BackOff = time.Hour
	for name, tt := range map[string]struct {
		pod   *corev1.Pod
		o     Observed
		want  []string
		round int
		wake  time.Duration
	}{
		"another code fails the container alone": {
			whole(),
			up(run("i", 0, runtime.Exited, 0), run("s", 0, runtime.Running, 0), run("a", 0, runtime.Exited, 1),
				run("b", 0, runtime.Running, 0)),
			nil, 0, 0,
		},
		"the others end together": {
			whole(),
			up(run("i", 0, runtime.Exited, 0), run("s", 0, runtime.Running, 0), run("a", 0, runtime.Exited, 42),
				run("b", 0, runtime.Running, 0)),
			[]string{"kill s", "kill b"}, 0, 0,
		},
		"a start is given up": {
			whole(),
			busy(up(run("i", 0, runtime.Exited, 0), run("s", 0, runtime.Running, 0), run("a", 0, runtime.Exited, 42)), "b",
				Start),
			[]string{"kill s", "cancel b"}, 0, 0,
		},
		"one that has not run is removed": {
			whole(),
			up(run("i", 0, runtime.Exited, 0), run("s", 0, runtime.Exited, 143), run("a", 0, runtime.Exited, 42),
				run("b", 0, runtime.Created, 0)),
			[]string{"remove b#b-0"}, 0, 0,
		},
		"the next round begins with the init containers": {
			whole(),
			up(run("i", 0, runtime.Exited, 0), run("s", 0, runtime.Exited, 143), run("a", 0, runtime.Exited, 42),
				run("b", 0, runtime.Exited, 137)),
			[]string{"start i 1"}, 1, 0,
		},
		"it goes on with the sidecar": {
			whole(),
			up(in(1, run("i", 1, runtime.Exited, 0)), run("s", 0, runtime.Exited, 143), run("a", 0, runtime.Exited, 42),
				run("b", 0, runtime.Exited, 137)),
			[]string{"start s 1"}, 1, 0,
		},
		"then with the others, also those that had succeeded": {
			whole(),
			up(in(1, run("i", 1, runtime.Exited, 0)), in(1, run("s", 1, runtime.Running, 0)), run("a", 0, runtime.Exited, 42),
				run("b", 3, runtime.Exited, 0)),
			[]string{"start a 1", "start b 4"}, 1, 0,
		},
		"what ended with the round before is no failure of this one": {
			whole(),
			up(in(1, run("i", 1, runtime.Running, 0)), run("s", 0, runtime.Exited, 143), run("a", 0, runtime.Exited, 42),
				run("b", 0, runtime.Exited, 1)),
			nil, 1, 0,
		},
		"an init container that fails in this round does": {
			whole(),
			up(in(1, run("i", 1, runtime.Exited, 1)), run("s", 0, runtime.Exited, 143), run("a", 0, runtime.Exited, 42),
				run("b", 0, runtime.Exited, 1)),
			[]string{"release release"}, 1, 0,
		},
		"an init container may ask for it": {
			resets(spec(never, []string{"i", "j"}, []string{"a"}), "j"),
			up(run("i", 0, runtime.Exited, 0), run("j", 0, runtime.Exited, 42)),
			[]string{"start i 1"}, 1, 0,
		},
		"a sidecar may": {
			resets(spec(always, []string{"s"}, []string{"a"}), "s"),
			up(run("s", 0, runtime.Exited, 42), run("a", 0, runtime.Running, 0)),
			[]string{"kill a"}, 0, 0,
		},
		"it backs off": {
			whole(),
			up(run("i", 0, runtime.Exited, 0), run("s", 0, runtime.Exited, 143),
				waits(run("a", 0, runtime.Exited, 42), 40*time.Second), run("b", 0, runtime.Exited, 137)),
			nil, 0, 10 * time.Second,
		},
		"not for what ended while no agent ran": {whole(), old, []string{"start i 1"}, 1, 0},
		"a pod that is deleted ends": {
			deleted(whole()),
			up(run("i", 0, runtime.Exited, 0), run("s", 0, runtime.Running, 0), run("a", 0, runtime.Exited, 42),
				run("b", 0, runtime.Running, 0)),
			[]string{"kill b"},
			0,
			0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := Plan(tt.pod, tt.o, now)
			got := short(d)
			slices.Sort(got)
			slices.Sort(tt.want)
			require.Equal(t, tt.want, got)
			require.Equal(t, tt.round, d.Round)
			require.Equal(t, tt.wake == 0, d.Wake.IsZero())
			if tt.wake > 0 {
				require.Equal(t, tt.wake, d.Wake.Sub(now))
			}
			for _, a := range d.Actions {
				if a.Kind == Kill && tt.pod.DeletionTimestamp == nil {
					require.Equal(t, resetGrace, a.Grace)
					require.True(t, a.NoHook)
				}
				if a.Kind == Start {
					require.Equal(t, tt.round, a.Round)
				}
			}
		})
	}
	t.Run("back-offs", func(t *testing.T) {
		o := up(in(1, run("i", 1, runtime.Exited, 0)), in(1, run("s", 1, runtime.Running, 0)),
			waits(run("a", 0, runtime.Exited, 42), 20*time.Second), waits(run("b", 0, runtime.Exited, 137), 10*time.Second))
		for _, a := range Plan(whole(), o, now).Actions {
			require.Equal(t, map[string]time.Duration{"a": 40 * time.Second, "b": 10 * time.Second}[a.Target], a.BackOff,
				"only that of the container that asked for it grows")
		}
	})
}

// For any exits and kills of the agent: containers of different rounds never run at the same time, main containers
// run only after their round's init containers, each source begins one round, and every container takes part.
func TestRoundsKeepApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]corev1.RestartPolicy{
			corev1.RestartPolicyAlways, corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure,
		}).Draw(t, "policy")
		inits := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"i1", "i2", "s1", "s2"}), 0, 4, rapid.ID).Draw(t, "init")
		p := spec(policy, inits, []string{"a", "b"}[:rapid.IntRange(1, 2).Draw(t, "containers")])
		names := []string{}
		for c := range containersOf(p) {
			names = append(names, c.Name)
		}
		resets(p, rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, len(names), rapid.ID).Draw(t, "sources")...)
		o := up()
		at, inFlight, sources := now, map[string]Action{}, 0
		for step := range rapid.IntRange(50, 200).Draw(t, "steps") {
			d := Plan(p, o, at)
			require.LessOrEqual(t, d.Round, sources, "a round that nothing asked for")
			if d.Stopping {
				for c := range containersOf(p) {
					l := o.latest(c.Name)
					require.False(t, l != nil && l.Round == d.Round && endsRound(c, l), "the pod ends over the exit of %s", c.Name)
				}
				return
			}
			for _, a := range d.Actions {
				if a.Kind == Cancel {
					delete(inFlight, a.Target)
					delete(o.Busy, a.Target)
					continue
				}
				if a.Kind == Start {
					for name, list := range o.Containers {
						for _, i := range list {
							require.False(t, i.State == runtime.Running && i.Round != a.Round,
								"step %d: %s starts in round %d beside %s of %d", step, a.Target, a.Round, name, i.Round)
						}
					}
					if _, init, _ := containerOf(p, a.Target); !init {
						for _, c := range p.Spec.InitContainers {
							l := o.latest(c.Name)
							require.True(t, l != nil && l.Round == a.Round, "%s starts before %s of its round", a.Target, c.Name)
						}
					}
				}
				inFlight[a.Target], o.Busy[a.Target] = a, a.Kind
			}
			for _, target := range slices.Sorted(maps.Keys(inFlight)) {
				if rapid.Bool().Draw(t, "done "+target) {
					a := inFlight[target]
					finish(&o, a, at)
					if l := o.latest(target); a.Kind == Start {
						l.Round = a.Round
						if target[0] == 'i' {
							l.ExitCode = rapid.SampledFrom([]int{0, 0, 1, 42}).Draw(t, "exit of "+target)
						}
					}
					delete(inFlight, target)
					delete(o.Busy, target)
				}
			}
			if rapid.IntRange(0, 9).Draw(t, "kill the agent") == 0 {
				clear(inFlight)
				clear(o.Busy)
				o.Began = at
			}
			for _, name := range names {
				if l := o.latest(name); l != nil && l.State == runtime.Running && rapid.IntRange(0, 9).Draw(t, "exits") == 0 {
					l.State, l.FinishedAt, l.ExitCode = runtime.Exited, at, rapid.SampledFrom([]int{0, 1, 42}).Draw(t, "code")
				}
			}
			sources = endedRounds(p, o)
			at = at.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 30, 400}).Draw(t, "passes")) * time.Second)
		}
	})
}

// endedRounds returns the number of ended rounds, as far as the remaining instances show it.
func endedRounds(p *corev1.Pod, o Observed) (n int) {
	for r := range sources(p, o) {
		n = max(n, r+1)
	}
	for c := range containersOf(p) {
		if l := o.latest(c.Name); l != nil {
			n = max(n, l.Round)
		}
	}
	return n
}

// again returns programs. "asker NAME" is a server that exits with 42 when ask is called.
func (j *journal) again() (programs map[string]fake.Program, ask func()) {
	programs = j.programs()
	var mu sync.Mutex
	var wish chan struct{} // created in the synctest bubble that waits for it
	server := programs["server"]
	programs["asker"] = func(ctx context.Context, p *fake.Process) int {
		mu.Lock()
		if wish == nil {
			wish = make(chan struct{})
		}
		asked := wish
		mu.Unlock()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		ended := make(chan int, 1)
		go func() { ended <- server(ctx, p) }()
		select {
		case code := <-ended:
			return code
		case <-asked:
			cancel()
			<-ended
			return 42
		}
	}
	return programs, func() {
		mu.Lock()
		defer mu.Unlock()
		close(wish)
		wish = nil
	}
}

func resetting() *corev1.Pod {
	p := resets(manifold(), "a")
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	p.Spec.Containers[0].Command = []string{"asker", "a"}
	p.Spec.Containers[1].Lifecycle = &corev1.Lifecycle{PreStop: sleeps(1000)}
	return p
}

// All containers restart in the order of a new pod. The sandbox stays, and the status reports the restart.
func TestRestartAllContainers(t *testing.T) {
	j := &journal{}
	programs, ask := j.again()
	with(t, fake.Config{Programs: programs}, func(r *rig) {
		r.create(resetting())
		r.pass(10 * time.Second)
		before := r.pod("web")
		require.Equal(t, corev1.ConditionTrue, conditionOf(before, corev1.PodReady).Status)
		require.Equal(t, corev1.ConditionFalse, conditionOf(before, corev1.AllContainersRestarting).Status)
		first := j.list()
		ask()
		synctest.Wait()
		r.pass(500 * time.Millisecond)
		p := r.pod("web")
		require.Equal(t, corev1.PodPending, p.Status.Phase, "an init container runs")
		require.Equal(t, corev1.ConditionTrue, conditionOf(p, corev1.PodInitialized).Status, "what was initialized stays so")
		require.Equal(t, corev1.ConditionFalse, conditionOf(p, corev1.PodReady).Status)
		require.Equal(t, "running", state(r.status("web", "first")))
		require.Equal(t, "waiting: PodInitializing", state(r.status("web", "b")))
		r.pass(20 * time.Second)
		p = r.pod("web")
		require.Equal(t, corev1.PodRunning, p.Status.Phase)
		require.Equal(t, corev1.ConditionTrue, conditionOf(p, corev1.PodReady).Status)
		require.Equal(t, corev1.ConditionFalse, conditionOf(p, corev1.AllContainersRestarting).Status)
		require.Equal(t, before.Status.PodIP, p.Status.PodIP)
		require.Equal(t, before.Status.StartTime, p.Status.StartTime)
		for _, name := range []string{"first", "side", "second", "a", "b"} {
			s := r.status("web", name)
			require.EqualValues(t, 1, s.RestartCount, name)
			require.Equal(t, 2, j.count(name+" begins"), name)
			require.NotNil(t, s.LastTerminationState.Terminated, name)
			want := map[string]string{
				"a":      "Error",
				"b":      resetReason,
				"side":   resetReason,
				"first":  "Completed",
				"second": "Completed",
			}[name]
			require.Equal(t, want, s.LastTerminationState.Terminated.Reason, name)
		}
		// The sidecar has no startup probe, so the next container may write its first line before the sidecar does.
		again := j.list()[len(first)+3 : len(first)+8]
		require.Greater(t, slices.Index(again, "side begins"), 1, "%v", j.list())
		require.Equal(t, []string{"first begins", "first ends", "second begins", "second ends"},
			slices.DeleteFunc(again, func(line string) bool { return line == "side begins" }), "%v", j.list())
		require.Empty(t, j.twice)
		require.Contains(t, r.events.text(),
			"Killing: Stopping container b: container a exited with code 42, all containers of the pod will be restarted")
		require.NotContains(t, r.events.text(), "PreStopHook", "no hook is run")

		// Repeated restarts back off.
		for i, wait := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
			ask()
			synctest.Wait()
			r.pass(wait - time.Second)
			require.Empty(t, r.running(), "it backs off")
			require.Equal(t, "waiting: CrashLoopBackOff", state(r.status("web", "a")))
			require.Equal(t, "waiting: "+resetReason, state(r.status("web", "b")))
			r.pass(20 * time.Second)
			require.ElementsMatch(t, []string{"side", "a", "b"}, r.running())
			require.EqualValues(t, i+2, r.status("web", "b").RestartCount)
		}
		r.delete("web", 0)
		r.pass(time.Minute)
		r.requireNothingLeft()
	})
}

// The condition is True while containers end; those that ignore SIGTERM end after two seconds.
func TestRestartingConditionWhileContainersEnd(t *testing.T) {
	j := &journal{}
	programs, ask := j.again()
	programs["deaf"] = deaf
	with(t, fake.Config{Programs: programs}, func(r *rig) {
		p := resetting()
		p.Spec.Containers[1].Command = []string{"deaf"}
		p.Spec.TerminationGracePeriodSeconds = new(int64(1000))
		r.create(p)
		r.pass(10 * time.Second)
		ask()
		synctest.Wait()
		r.pass(resetGrace - time.Millisecond)
		c := conditionOf(r.pod("web"), corev1.AllContainersRestarting)
		require.Equal(t, corev1.ConditionTrue, c.Status)
		require.Equal(t, "RestartAllContainersStarted", c.Reason)
		require.Contains(t, c.Message, "Container a exited with code 42")
		require.Equal(t, []string{"b"}, r.running())
		r.pass(500 * time.Millisecond)
		require.Equal(t, []string{"first"}, r.running())
		require.Equal(t, corev1.ConditionFalse, conditionOf(r.pod("web"), corev1.AllContainersRestarting).Status)
	})
}

package pod

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func spec(policy corev1.RestartPolicy, init, main []string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u"}, Spec: corev1.PodSpec{RestartPolicy: policy},
	}
	always := corev1.ContainerRestartPolicyAlways
	for _, n := range init {
		c := corev1.Container{Name: n, Image: "i"}
		if n[0] == 's' {
			c.RestartPolicy = &always
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for _, n := range main {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: n, Image: "i"})
	}
	return p
}

func run(name string, attempt int, state runtime.State, exit int) Instance {
	c := runtime.Container{ID: fmt.Sprintf("%s-%d", name, attempt), State: state, ExitCode: exit}
	if state != runtime.Created {
		c.StartedAt = now.Add(-time.Minute)
	}
	if state == runtime.Exited {
		c.FinishedAt = now.Add(-30 * time.Second)
	}
	return Instance{Container: c, Name: name, Attempt: attempt}
}

func up(runs ...Instance) Observed {
	o := Observed{Sandbox: true, Volumes: true, Containers: map[string][]Instance{}, Busy: map[string]Kind{},
		Failures: map[string]Failure{}, Health: map[string]Health{}}
	for _, r := range runs {
		o.Containers[r.Name] = append(o.Containers[r.Name], r)
		o.Health[r.ID] = Health{Started: true, Ready: true}
	}
	return o
}

func short(d Decision) []string {
	var out []string
	for _, a := range d.Actions {
		s := string(a.Kind) + " " + a.Target
		if a.Kind == Start {
			s += fmt.Sprintf(" %d", a.Attempt)
		}
		out = append(out, s)
	}
	return out
}

func TestPlan(t *testing.T) {
	always, never := corev1.RestartPolicyAlways, corev1.RestartPolicyNever
	deleted := func(p *corev1.Pod) *corev1.Pod {
		at, grace := metav1.NewTime(now), int64(7)
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
		return p
	}
	// crashed returns a container that exited 30 s ago with the given back-off.
	crashed := func(backOff time.Duration) Instance {
		r := run("a", 4, runtime.Exited, 1)
		r.BackOff = backOff
		return r
	}
	deadline := func(seconds int64) *corev1.Pod {
		p := spec(always, nil, []string{"a"})
		at := metav1.NewTime(now.Add(-time.Minute))
		p.Status.StartTime, p.Spec.ActiveDeadlineSeconds = &at, &seconds
		return p
	}
	resting := up()
	resting.Sandbox, resting.Failures = false, map[string]Failure{"sandbox": {Until: now.Add(7 * time.Second)}}
	refresh := func(in time.Duration) Observed {
		o := up(run("a", 0, runtime.Running, 0))
		o.Refresh = now.Add(in)
		return o
	}
	sick := up(run("a", 0, runtime.Running, 0))
	sick.Health["a-0"] = Health{Started: true, Failed: true}
	dying := up(run("a", 0, runtime.Running, 0))
	dying.Busy["a"], dying.Refresh = Kill, now.Add(time.Hour)
	tests := map[string]struct {
		pod  *corev1.Pod
		o    Observed
		want []string
		wake time.Duration
	}{
		"new": {spec(always, nil, []string{"a"}), Observed{}, []string{"sandbox sandbox", "volumes volumes"}, 0},
		"sandbox busy": {
			spec(always, nil, []string{"a"}), Observed{Busy: map[string]Kind{"sandbox": SetupSandbox}, Volumes: true},
			nil, 0,
		},
		"containers start together": {spec(always, nil, []string{"a", "b"}), up(), []string{"start a 0", "start b 0"}, 0},
		"first init first":          {spec(always, []string{"i", "j"}, []string{"a"}), up(), []string{"start i 0"}, 0},
		"second init": {
			spec(always, []string{"i", "j"}, []string{"a"}),
			up(run("i", 0, runtime.Exited, 0)),
			[]string{"start j 0"},
			0,
		},
		"init failed for good": {
			spec(never, []string{"i"}, []string{"a"}),
			up(run("i", 0, runtime.Exited, 1)),
			[]string{"release release"},
			0,
		},
		"init failed, again": {
			spec(always, []string{"i"}, []string{"a"}), up(run("i", 0, runtime.Exited, 1)), []string{"start i 1"}, 0,
		},
		"sidecar before the rest": {spec(always, []string{"s"}, []string{"a"}), up(), []string{"start s 0"}, 0},
		"sidecar up": {
			spec(always, []string{"s"}, []string{"a"}), up(run("s", 0, runtime.Running, 0)), []string{"start a 0"}, 0,
		},
		"sidecar restarts whatever the policy": {spec(never, []string{"s"}, []string{"a"}),
			up(run("s", 0, runtime.Exited, 0), run("a", 0, runtime.Running, 0)), []string{"start s 1"}, 0},
		"done": {
			spec(never, nil, []string{"a"}), up(run("a", 0, runtime.Exited, 0)), []string{"release release"}, 0,
		},
		"runs": {spec(always, nil, []string{"a"}), up(run("a", 0, runtime.Running, 0)), nil, 0},
		"a cut-off start": {
			spec(always, nil, []string{"a"}), up(run("a", 3, runtime.Created, 0)), []string{"start a 3"}, 0,
		},
		"deleted": {
			deleted(spec(always, nil, []string{"a"})), up(run("a", 0, runtime.Running, 0)), []string{"kill a"}, 0,
		},
		"deleted sidecars": {
			deleted(spec(always, []string{"s"}, []string{"a"})),
			up(run("a", 0, runtime.Exited, 0), run("s", 0, runtime.Running, 0)),
			[]string{"kill s"},
			0,
		},
		"crashed once":      {spec(always, nil, []string{"a"}), up(crashed(30 * time.Second)), []string{"start a 5"}, 0},
		"crash loop":        {spec(always, nil, []string{"a"}), up(crashed(40 * time.Second)), nil, 10 * time.Second},
		"a failure rests":   {spec(always, nil, []string{"a"}), resting, nil, 7 * time.Second},
		"before a deadline": {deadline(90), up(run("a", 0, runtime.Running, 0)), nil, 30 * time.Second},
		"after a deadline":  {deadline(30), up(run("a", 0, runtime.Running, 0)), []string{"kill a"}, 0},
		"a token to renew":  {spec(always, nil, []string{"a"}), refresh(time.Hour), nil, time.Hour},
		"renewed now":       {spec(always, nil, []string{"a"}), refresh(0), []string{"volumes volumes"}, 0},
		"sick":              {spec(always, nil, []string{"a"}), sick, []string{"kill a"}, 0},
		"ending already":    {deleted(spec(always, nil, []string{"a"})), dying, nil, 0},
		"sidecars wait": {
			deleted(spec(always, []string{"s"}, []string{"a"})),
			up(run("a", 0, runtime.Running, 0), run("s", 0, runtime.Running, 0)),
			[]string{"kill a"},
			0,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := Plan(tt.pod, tt.o, now)
			require.Equal(t, tt.want, short(d))
			if tt.wake == 0 {
				require.Zero(t, d.Wake, "nothing but an event can bring it on")
			} else {
				require.Equal(t, tt.wake, d.Wake.Sub(now))
			}
		})
	}
	t.Run("back-off", func(t *testing.T) {
		r := run("a", 4, runtime.Exited, 1)
		r.BackOff = 40 * time.Second
		d := Plan(spec(always, nil, []string{"a"}), up(r), now)
		require.Empty(t, d.Actions)
		require.Equal(t, now.Add(10*time.Second), d.Wake)
		d = Plan(spec(always, nil, []string{"a"}), up(r), now.Add(10*time.Second))
		require.Equal(t, []string{"start a 5"}, short(d))
		require.Equal(t, 80*time.Second, d.Actions[0].BackOff)
	})
	t.Run("released, then out of the API", func(t *testing.T) {
		o := up()
		o.Released = true
		p := deleted(spec(always, nil, []string{"a"}))
		require.Equal(t, []string{"delete delete"}, short(Plan(p, o, now)))
		o.Deleted = true
		require.Empty(t, Plan(p, o, now).Actions)
		o.Gone = true
		require.True(t, Plan(p, o, now).Forgotten)
	})
}

// Wherever a pod is deleted, it ends. A simulation carries out Plan's actions, each at once or some steps later.
func TestPlanReachesItsEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]corev1.RestartPolicy{
			corev1.RestartPolicyAlways, corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure,
		}).Draw(t, "policy")
		inits := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"i1", "i2", "s1", "s2"}), 0, 4, rapid.ID).Draw(t, "init")
		p := spec(policy, inits, []string{"a", "b"}[:rapid.IntRange(1, 2).Draw(t, "containers")])
		o := up()
		o.Sandbox, o.Volumes = false, false
		at := now
		deletedAt := rapid.IntRange(0, 60).Draw(t, "deleted")
		inFlight := map[string]Action{}
		released, erased := false, false
		for step := range 400 {
			if step == deletedAt {
				stamp := metav1.NewTime(at)
				p.DeletionTimestamp = &stamp
			}
			o.Released = released
			if p.DeletionTimestamp != nil {
				o.Released = erased
			}
			d := Plan(p, o, at)
			if o.Deleted {
				for name, l := range o.Containers {
					require.Empty(t, l, "container %s outlives its pod", name)
				}
				require.False(t, o.Sandbox || o.Volumes)
				return
			}
			for _, a := range d.Actions {
				if a.Kind == Cancel {
					delete(inFlight, a.Target)
					delete(o.Busy, a.Target)
					continue
				}
				_, twice := inFlight[a.Target]
				require.False(t, twice, "two actions on %s at once", a.Target)
				if a.Kind == Start {
					require.True(t, o.Sandbox && o.Volumes, "a start before the pod is prepared")
					require.False(t, d.Stopping, "a start in a pod that ends")
					for _, r := range o.Containers[a.Target] {
						require.NotEqual(t, runtime.Running, r.State, "two runs of %s at once", a.Target)
					}
				}
				inFlight[a.Target] = a
				o.Busy[a.Target] = a.Kind
			}
			if len(d.Actions) == 0 && len(inFlight) == 0 {
				if !d.Wake.IsZero() {
					at = d.Wake
				} else if p.DeletionTimestamp == nil && step < deletedAt {
					exit(t, &o, at) // waits for an event
				}
			}
			for target, a := range inFlight {
				if rapid.Bool().Draw(t, "done") {
					finish(&o, a, at)
					released, erased = released || a.Kind == Release, erased || a.Forget
					delete(inFlight, target)
					delete(o.Busy, target)
				}
			}
			at = at.Add(time.Second)
		}
		t.Fatal("the pod never came to its end")
	})
}

func exit(t *rapid.T, o *Observed, at time.Time) {
	for name, l := range o.Containers {
		if len(l) > 0 && l[0].State == runtime.Running {
			l[0].State, l[0].FinishedAt, l[0].ExitCode = runtime.Exited, at, rapid.IntRange(0, 1).Draw(t, "exit of "+name)
		}
	}
}

func finish(o *Observed, a Action, at time.Time) {
	switch a.Kind {
	case SetupSandbox:
		o.Sandbox = true
	case MountVolumes:
		o.Volumes = true
	case Start:
		r := Instance{
			Container: runtime.Container{ID: fmt.Sprintf("%s-%d", a.Target, a.Attempt), State: runtime.Running, StartedAt: at},
			Name:      a.Target, Attempt: a.Attempt, BackOff: a.BackOff,
		}
		if a.Target[0] == 'i' {
			r.State, r.FinishedAt = runtime.Exited, at
		}
		o.Containers[a.Target] = append([]Instance{r}, o.Containers[a.Target]...)
		o.Health[r.ID] = Health{Started: true, Ready: true}
	case Kill:
		for i := range o.Containers[a.Target] {
			o.Containers[a.Target][i].State, o.Containers[a.Target][i].FinishedAt = runtime.Exited, at
		}
	case Release:
		o.Sandbox, o.Volumes = false, false
		if a.Forget {
			clear(o.Containers)
		}
	case Remove:
		for name, l := range o.Containers {
			for i := range l {
				if l[i].ID == a.ID {
					o.Containers[name] = append(l[:i:i], l[i+1:]...)
					break
				}
			}
		}
	case Delete:
		o.Deleted = true
	}
}

func TestBackOff(t *testing.T) {
	var last *Instance
	for _, want := range []time.Duration{0, 10, 20, 40, 80, 160, 300, 300} {
		got := nextBackOff(last)
		require.Equal(t, want*time.Second, got)
		r := run("a", 0, runtime.Exited, 1)
		r.BackOff = got
		last = &r
	}
	last.StartedAt = last.FinishedAt.Add(-11 * time.Minute)
	require.Zero(t, nextBackOff(last), "a long run clears the record")
}

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "a", "B": "$(A)"}
	for in, want := range map[string]string{
		"$(A)": "a", "$$(A)": "$(A)", "$(B)": "$(A)", "$(C)": "$(C)", "$A": "$A", "x$": "x$", "$(A": "$(A", "$$": "$",
		"$(A)$(A)": "aa", "$()": "$()",
	} {
		got, err := Expand(in, vars)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
}

func TestRestartRules(t *testing.T) {
	p := spec(corev1.RestartPolicyNever, nil, []string{"a"})
	c := &p.Spec.Containers[0]
	require.False(t, restarts(p, c, 42, false))
	never := corev1.ContainerRestartPolicyNever
	c.RestartPolicy = &never
	c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
			Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42},
		}}}
	require.True(t, restarts(p, c, 42, false))
	require.False(t, restarts(p, c, 1, false))
}

func TestStatusIsStable(t *testing.T) {
	p := spec(corev1.RestartPolicyAlways, []string{"i"}, []string{"a"})
	o := up(run("i", 0, runtime.Exited, 0), run("a", 0, runtime.Running, 0))
	d := Plan(p, o, now)
	p.Status = Status(p, o, d, Facts{PodIP: "10.0.0.1", HostIP: "192.0.2.1", Start: now}, now)
	require.Equal(t, p.Status,
		Status(p, o, d, Facts{PodIP: "10.0.0.1", HostIP: "192.0.2.1", Start: now}, now.Add(time.Hour)),
		"the same state gives the same status")
	require.Equal(t, corev1.PodRunning, p.Status.Phase)
}

// TestStatusOfDevices checks that a container's status keeps the health of its devices after their release.
func TestStatusOfDevices(t *testing.T) {
	p := spec(corev1.RestartPolicyNever, nil, []string{"a", "b"})
	health := func(h corev1.ResourceHealthStatus) Facts {
		return Facts{
			Devices: map[string][]corev1.ResourceStatus{
				"a": {{Name: "example.com/gpu", Resources: []corev1.ResourceHealth{{ResourceID: "0", Health: h}}}}, "b": nil,
			},
		}
	}
	o := up(run("a", 0, runtime.Running, 0), run("b", 0, runtime.Running, 0))
	for _, h := range []corev1.ResourceHealthStatus{
		corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy,
	} {
		p.Status = Status(p, o, Plan(p, o, now), health(h), now)
		require.Equal(t, h, p.Status.ContainerStatuses[0].AllocatedResourcesStatus[0].Resources[0].Health)
		require.Empty(t, p.Status.ContainerStatuses[1].AllocatedResourcesStatus)
	}
	o = up(run("a", 0, runtime.Exited, 1), run("b", 0, runtime.Exited, 0))
	s := Status(p, o, Plan(p, o, now), Facts{}, now)
	require.Equal(t, corev1.ResourceHealthStatusUnhealthy,
		s.ContainerStatuses[0].AllocatedResourcesStatus[0].Resources[0].Health)
}

func BenchmarkPlan(b *testing.B) {
	p := spec(corev1.RestartPolicyAlways, []string{"i", "s"}, []string{"a", "b"})
	o := up(run("i", 0, runtime.Exited, 0), run("s", 0, runtime.Running, 0), run("a", 0, runtime.Running, 0),
		run("b", 0, runtime.Running, 0))
	for b.Loop() {
		Plan(p, o, now)
	}
}

package pod

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// scenario returns a pod and what its node observes, from one word for each container: KIND:STATE, or STATE alone.
// Init containers are named i0, i1, main containers m0, m1.
//
// KIND: s is a sidecar; a, f and n have the restart policy Always, OnFailure or Never of their own; x is n with a rule
// by which exit 42 restarts all containers, z is a sidecar with that rule.
//
// STATE: - was never created; c is created; R runs; r runs and has not passed its startup probe; S has failed it; L has
// failed its liveness probe; C runs another image than specified; l and d have ended with code 0 after L and C. A
// number is an exit code; after w, the back-off lasts. A ~ at the end means that it was in an earlier boot.
func scenario(policy corev1.RestartPolicy, init, main string) (*corev1.Pod, Observed) {
	p, o := spec(policy, nil, nil), up()
	o.Boot = "now"
	for i, word := range strings.Fields(init) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, o.add("i"+strconv.Itoa(i), word))
	}
	for i, word := range strings.Fields(main) {
		p.Spec.Containers = append(p.Spec.Containers, o.add("m"+strconv.Itoa(i), word))
	}
	return p, o
}

func (o *Observed) add(name, word string) corev1.Container {
	c := corev1.Container{Name: name, Image: "i"}
	kind, state, has := strings.Cut(word, ":")
	if !has {
		kind, state = "", word
	}
	if policy, own := map[string]corev1.ContainerRestartPolicy{
		"s": corev1.ContainerRestartPolicyAlways, "a": corev1.ContainerRestartPolicyAlways,
		"f": corev1.ContainerRestartPolicyOnFailure, "n": corev1.ContainerRestartPolicyNever,
		"x": corev1.ContainerRestartPolicyNever, "z": corev1.ContainerRestartPolicyAlways,
	}[kind]; own {
		c.RestartPolicy = &policy
	}
	if kind == "x" || kind == "z" {
		c.RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action: corev1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
				Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42},
			},
		}}
	}
	state, old := strings.CutSuffix(state, "~")
	code, waits := strings.CutPrefix(state, "w")
	exit, err := strconv.Atoi(code)
	l, h := run(name, 0, runtime.Running, 0), Health{Started: true, Ready: true}
	switch {
	case state == "-":
		return c
	case err == nil:
		l = run(name, 0, runtime.Exited, exit)
	case state == "c":
		l = run(name, 0, runtime.Created, 0)
	case state == "r":
		h = Health{}
	case state == "S":
		h = Health{Failed: true, Why: "startup probe"}
	case state == "L" || state == "l":
		h.Failed, h.Why = true, "liveness probe"
	case state == "C" || state == "d":
		l.Hash = "another"
	}
	if state == "l" || state == "d" {
		l.State, l.FinishedAt = runtime.Exited, now
	}
	if waits {
		l.BackOff = time.Hour
	}
	if l.Boot = o.Boot; old {
		l.Boot = "before"
	}
	o.Containers[name], o.Health[l.ID] = []Instance{l}, h
	return c
}

const (
	always, onFailure, never = corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
)

// TestPhase checks that the phase follows from the containers' states as in the kubelet (getPhase).
func TestPhase(t *testing.T) {
	const pending, running, succeeded, failed = corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed
	for _, c := range []struct {
		policy     corev1.RestartPolicy
		init, main string
		deleted    bool
		want       corev1.PodPhase
	}{
		{always, "", "- -", false, pending},
		{always, "", "R R", false, running},
		{always, "", "0 0", false, running},
		{always, "", "0 0", true, succeeded},
		{always, "", "0 1", true, failed},
		{always, "", "- 0", true, failed},
		{always, "", "-", true, failed},
		{always, "", "R 0", false, running},
		{always, "", "R -", false, pending},
		{always, "", "R c", false, pending},
		{always, "", "0 -", false, pending},
		{always, "", "R w0", false, running},
		{always, "", "w1 w1", false, running},
		{always, "", "1~ 1~", false, running},
		{onFailure, "", "- -", false, pending},
		{onFailure, "", "R R", false, running},
		{onFailure, "", "0 0", false, succeeded},
		{onFailure, "", "1 1", false, running},
		{onFailure, "", "R 0", false, running},
		{onFailure, "", "R -", false, pending},
		{onFailure, "", "R w1", false, running},
		{never, "", "- -", false, pending},
		{never, "", "R R", false, running},
		{never, "", "0 0", false, succeeded},
		{never, "", "1 1", false, failed},
		{never, "", "R 0", false, running},
		{never, "", "R -", false, pending},

		{always, "-", "- -", false, pending},
		{always, "R", "- -", false, pending},
		{always, "1", "- -", false, pending},
		{always, "w1", "- -", false, pending},
		{always, "0", "R R", false, running},
		{always, "R", "R R", false, pending},
		{never, "-", "- -", false, pending},
		{never, "R", "- -", false, pending},
		{never, "1", "- -", false, failed},
		{never, "s:R 1", "- -", false, pending}, // until the sidecar has ended
		{never, "0", "- -", false, pending},
		{never, "0", "R R", false, running},

		{always, "s:-", "- -", false, pending},
		{always, "s:r", "- -", false, pending},
		{always, "s:0", "- -", false, pending},
		{always, "s:w0", "- -", false, pending},
		{always, "s:w1", "- -", false, pending},
		{always, "s:R", "R -", false, pending},
		{always, "s:R", "R R", false, running},
		{always, "s:r", "R R", false, running},
		{always, "s:0", "R R", false, running},
		{always, "s:w0", "R R", false, running},
		{always, "s:1", "0 0", true, succeeded},
		{always, "s:0", "0 0", true, succeeded},
		{always, "s:r", "1~ 1~", false, pending}, // the machine has rebooted
		{always, "0 s:r", "1~", false, pending},
		{always, "R s:0~", "1~", false, pending},
		{always, "0 s:r", "0", false, running},
		{always, "0 s:R", "R", false, running},
		{never, "s:-", "- -", false, pending},
		{never, "s:r", "- -", false, pending},
		{never, "s:0", "- -", false, pending},
		{never, "s:w1", "- -", false, pending},
		{never, "s:R", "R -", false, pending},
		{never, "s:R", "0 0", false, running},
		{never, "s:r", "0 0", false, running},
		{never, "s:0", "0 0", false, succeeded},
		{never, "s:1", "0 0", false, succeeded},
		{never, "s:w0", "0 0", false, succeeded},
		{never, "s:w1", "0 0", false, succeeded},

		{always, "", "n:1", false, failed},
		{always, "", "f:1", false, running},
		{always, "", "a:1", false, running},
		{never, "", "a:0 1", false, running},
		{always, "", "n:1 f:0", false, failed},
		{always, "", "n:0 f:0", false, succeeded},
		{always, "n:1", "-", false, failed},
		{never, "f:1", "-", false, pending},
		{never, "s:1", "-", false, pending},

		{never, "", "x:42", false, running},
		{never, "", "x:w42", false, running},
		{never, "", "x:1", false, failed},
		{never, "x:42", "-", false, pending},
		{never, "x:w42", "-", false, pending},
		{never, "x:0", "-", false, pending},
		{never, "z:42", "-", false, pending},
		{never, "z:42 -", "-", false, pending},
		{never, "z:w42 137", "-", false, pending},
		{never, "z:42", "137", false, running},
		{never, "0", "x:42", false, running},
	} {
		p, o := scenario(c.policy, c.init, c.main)
		if c.deleted {
			p.DeletionTimestamp = &metav1.Time{Time: now}
		}
		require.Equal(t, c.want, Status(p, o, Plan(p, o, now), Facts{}, now).Phase, "%+v", c)
	}
}

// TestNextSteps checks which containers start and stop, as in the kubelet (computePodActions).
func TestNextSteps(t *testing.T) {
	for _, c := range []struct {
		policy     corev1.RestartPolicy
		init, main string
		want       string
	}{
		{always, "", "R R R", ""},
		{always, "", "- - -", "start m0 0, start m1 0, start m2 0"},
		{always, "", "0 111 R", "start m0 1, start m1 1"},
		{onFailure, "", "0 111 R", "start m1 1"},
		{onFailure, "", "0 c R", "start m1 0"},
		{never, "", "0 111 R", ""},
		{never, "", "R c R", "start m1 0"},
		{always, "", "R C R", "kill m1"},
		{never, "", "R C R", "kill m1"},
		{always, "", "R L R", "kill m1"},
		{always, "", "R S R", "kill m1"},
		{onFailure, "", "l", "start m0 1"},
		{never, "", "f:l", "start m0 1"},
		{never, "", "l", "release release"},
		{never, "", "d", "start m0 1"},
		{always, "", "137~ 137~ 0~", "start m0 1, start m1 1, start m2 1"},
		{onFailure, "", "137~ 0~ 137~", "start m0 1, start m2 1"},
		{never, "", "0~ 0~ 137~", "release release"},
		{onFailure, "", "0~ 0~ 0~", "release release"},
		{never, "", "- - -", "start m0 0, start m1 0, start m2 0"},
		{never, "", "a:0 a:111 R", "start m0 1, start m1 1"},
		{never, "", "f:0 f:111 R", "start m1 1"},
		{never, "", "f:0 f:c R", "start m1 0"},
		{always, "", "n:0 n:111 R", ""},
		{always, "", "137~ f:0~ 137~", "start m0 1, start m2 1"},

		{always, "0 0 0", "- -", "start m0 0, start m1 0"},
		{always, "- - -", "- -", "start i0 0"},
		{always, "0 0 R", "- -", ""},
		{always, "0 0 137", "- -", "start i2 1"},
		{onFailure, "0 0 137", "- -", "start i2 1"},
		{never, "0 0 137", "- -", "release release"},
		{always, "0 0 c", "- -", "start i2 0"},
		{always, "- - R", "- -", ""},
		{always, "- - 0", "- -", "start m0 0, start m1 0"},
		{always, "- - 1", "- -", "start i2 1"},
		{always, "0~ 0~ 0~", "137~ 137~", "start i0 1"},
		{always, "0~ 0~ 0~", "c~ -", "start i0 1"},
		{onFailure, "0~ 0~ 137~", "- -", "start i0 1"},
		{never, "0~ 0~ 137~", "- -", "release release"},
		{always, "0 0~ 0~", "137~ 0~", "start i1 1"},
		{always, "0 0 0", "137~ 0~", "start m0 1, start m1 1"},
		{onFailure, "0", "137~ 0~", "start m0 1"},

		{always, "s:R s:R s:R", "- -", "start m0 0, start m1 0"},
		{always, "s:- s:- s:-", "- -", "start i0 0"},
		{always, "s:R s:R s:c", "- -", "start i2 0"},
		{always, "s:R s:- s:-", "- -", "start i1 0"},
		{always, "s:R s:R s:-", "- -", "start i2 0"},
		{always, "s:R s:R s:L", "- -", "kill i2, start m0 0, start m1 0"},
		{always, "s:R s:r s:-", "- -", ""},
		{always, "s:R s:R s:S", "- -", "kill i2"},
		{always, "s:R s:R s:C", "- -", "kill i2, start m0 0, start m1 0"},
		{always, "s:0 s:R s:0", "- -", "start i0 1, start i2 1"},
		{always, "s:0 s:R s:R", "- -", "start i0 1, start m0 0, start m1 0"},
		{never, "s:R s:R s:137", "- -", "start i2 1"},
		{never, "s:R s:R s:137", "R R", "start i2 1"},
		{never, "s:R s:R s:R", "0 0", "kill i2"},
		{always, "s:- s:- s:R", "- -", "start i0 0, start i1 0, start m0 0, start m1 0"},
		{always, "s:0~ s:0~ s:137~", "- -", "start i0 1"},
		{onFailure, "s:0~ s:0~ s:137~", "- -", "start i0 1"},
		{always, "s:- - s:-", "c~ -", "start i0 0"},
		{always, "s:1 R", "-", "start i0 1"},
		{always, "s:1 0", "R", "start i0 1"},
	} {
		p, o := scenario(c.policy, c.init, c.main)
		steps := short(Plan(p, o, now))
		slices.Sort(steps)
		require.Equal(t, c.want, strings.Join(steps, ", "), "%+v", c)
	}
}

// Ephemeral containers start once, also before initialization has ended, and keep no pod alive.
func TestNextStepsWithEphemeralContainers(t *testing.T) {
	for _, c := range []struct {
		policy           corev1.RestartPolicy
		init, main, late string
		want             string
	}{
		{always, "0", "R", "R", ""},
		{always, "0", "R", "-", "start e0 0"},
		{always, "0", "R", "R -", "start e1 0"},
		{always, "0", "R", "0", ""},
		{always, "0", "R", "1", ""},
		{always, "R", "-", "-", "start e0 0"},
		{always, "0~", "137~", "137~", "start i0 1"},
		{never, "0", "0", "R", "kill e0"},
	} {
		p, o := scenario(c.policy, c.init, c.main)
		for i, word := range strings.Fields(c.late) {
			p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon(o.add("e"+strconv.Itoa(i), word)),
			})
		}
		require.Equal(t, c.want, strings.Join(short(Plan(p, o, now)), ", "), "%+v", c)
	}
}

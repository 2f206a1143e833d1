package pod

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// An evicted pod has a second of grace. Its status is written before its containers and other resources are released.
func TestPlanOfAnEvictedPod(t *testing.T) {
	p := spec(corev1.RestartPolicyAlways, nil, []string{"a"})
	verdict := &Verdict{Reason: "Evicted", Message: "why", Evicted: true, Disrupted: true}

	o := up(run("a", 1, runtime.Running, 0))
	o.Verdict = verdict
	d := Plan(p, o, now)
	require.Equal(t, []string{"kill a"}, short(d))
	require.Equal(t, time.Second, d.Actions[0].Grace)
	require.Equal(t, time.Second, d.Grace)

	o = up(run("a", 1, runtime.Exited, 137), run("a", 0, runtime.Exited, 1))
	o.Verdict = verdict
	d = Plan(p, o, now)
	require.Empty(t, d.Actions)
	require.Equal(t, now, d.Wake)
	p.Status = Status(p, o, d, Facts{}, now)
	require.Equal(t, corev1.PodFailed, p.Status.Phase)
	require.Equal(t, "Evicted", p.Status.Reason)
	require.EqualValues(t, 137, p.Status.ContainerStatuses[0].State.Terminated.ExitCode)
	last := p.Status.Conditions[len(p.Status.Conditions)-1]
	require.Equal(t, corev1.DisruptionTarget, last.Type)
	require.Equal(t, "TerminationByKubelet", last.Reason)

	o.Verdict = nil // a restarted agent knows only the status
	require.ElementsMatch(t, []string{"remove a#a-1", "remove a#a-0"}, short(Plan(p, o, now)))
	o.Draining = true
	require.Equal(t, []string{"release release"}, short(Plan(p, o, now)))
	o = up()
	d = Plan(p, o, now)
	require.Equal(t, []string{"release release"}, short(d))
	require.Equal(t, p.Status.ContainerStatuses, Status(p, o, d, Facts{}, now).ContainerStatuses)
}

// A DisruptionTarget condition of this node takes precedence; without one, the condition of another component stays.
func TestDisruptionTargetOfOthers(t *testing.T) {
	theirs := corev1.PodCondition{
		Type:   corev1.DisruptionTarget,
		Status: corev1.ConditionTrue,
		Reason: "PreemptionByScheduler",
	}
	mine := corev1.PodCondition{
		Type:   corev1.DisruptionTarget,
		Status: corev1.ConditionTrue,
		Reason: corev1.PodReasonTerminationByKubelet,
	}
	status := func(list ...corev1.PodCondition) *corev1.PodStatus { return &corev1.PodStatus{Conditions: list} }
	for _, c := range []struct{ api, ours, want *corev1.PodStatus }{
		{status(theirs), status(), status(theirs)},
		{status(theirs), status(theirs), status(theirs)},
		{status(), status(theirs), status()},
		{status(), status(mine), status(mine)},
		{status(theirs), status(mine), status(mine)},
	} {
		require.Equal(t, c.want.Conditions, overlay(c.api, c.ours, nil).Conditions)
	}
}

// TestAPodDeclaredEndedStaysSo checks that a terminal phase is not reverted: controllers such as DaemonSets rely on it.
func TestAPodDeclaredEndedStaysSo(t *testing.T) {
	failed := &corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Declared", Message: "by somebody"}
	for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded} {
		got := overlay(failed, &corev1.PodStatus{Phase: phase, Reason: "Ours"}, nil)
		require.Equal(t, corev1.PodFailed, got.Phase)
		require.Equal(t, "Declared", got.Reason)
	}
	require.Equal(t, "Evicted", overlay(failed, &corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}, nil).Reason)
	require.Equal(t, corev1.PodRunning,
		overlay(&corev1.PodStatus{Phase: corev1.PodPending}, &corev1.PodStatus{Phase: corev1.PodRunning}, nil).Phase)
}

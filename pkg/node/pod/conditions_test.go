package pod

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestConditions checks conditions, reasons and messages against the kubelet's (status/generate.go).
func TestConditions(t *testing.T) {
	const (
		noSandbox  = "False PodSandboxNotReady: no pod sandbox exists"
		ended      = "False PodSandboxNotReady: pod sandbox is not ready"
		incomplete = "False ContainersNotInitialized: containers with incomplete status: "
		unready    = "False ContainersNotReady: containers with unready status: "
		kept       = "initialized before"
	)
	for _, c := range []struct {
		policy     corev1.RestartPolicy
		init, main string
		state      string // deleted, no sandbox, rejected, initialized before
		want       [3]string
	}{
		{always, "", "R R", "", [3]string{"True", "True", "True"}},
		{always, "", "- -", "", [3]string{"True", "True", unready + "[m0 m1]"}},
		{always, "", "-", "no sandbox", [3]string{noSandbox, "True", unready + "[m0]"}},
		{always, "", "R r", "", [3]string{"True", "True", unready + "[m1]"}},
		{always, "", "R w1", "", [3]string{"True", "True", unready + "[m1]"}},
		{never, "", "0", "", [3]string{ended, "True PodCompleted", "False PodCompleted"}},
		{never, "", "1", "", [3]string{ended, "True", "False PodFailed"}},
		{always, "", "-", "deleted", [3]string{noSandbox, "True", "False PodFailed"}},
		{always, "", "-", "rejected", [3]string{noSandbox, "True", "False PodFailed"}},
		{always, "-", "-", "rejected", [3]string{noSandbox, "False UnknownContainerStatuses", "False PodFailed"}},
		{always, "- -", "-", "", [3]string{"True", incomplete + "[i0 i1]", unready + "[m0]"}},
		{always, "0 -", "-", "", [3]string{"True", incomplete + "[i1]", unready + "[m0]"}},
		{always, "0 R", "-", "", [3]string{"True", incomplete + "[i1]", unready + "[m0]"}},
		{always, "0 0", "-", "", [3]string{"True", "True", unready + "[m0]"}},
		{never, "1", "-", "", [3]string{ended, incomplete + "[i0]", "False PodFailed"}},
		{never, "0", "0", "", [3]string{ended, "True PodCompleted", "False PodCompleted"}},
		{always, "s:r", "-", "", [3]string{"True", incomplete + "[i0]", unready + "[i0 m0]"}},
		{always, "s:R", "-", "", [3]string{"True", "True", unready + "[m0]"}},
		{always, "s:r", "R", "", [3]string{"True", "True", unready + "[i0]"}},
		{always, "s:w1 s:R", "R", "", [3]string{"True", "True", unready + "[i0]"}},
		{always, "s:R s:R", "R", "", [3]string{"True", "True", "True"}},
		{always, "-", "0", "", [3]string{"True", "True", unready + "[m0]"}},
		{always, "R", "w1~", kept, [3]string{"True", "True", unready + "[m0]"}},
		{always, "w1", "-", kept, [3]string{"True", "True", unready + "[m0]"}},
	} {
		p, o := scenario(c.policy, c.init, c.main)
		switch c.state {
		case "deleted":
			p.DeletionTimestamp = &metav1.Time{Time: now}
		case "no sandbox":
			o.Sandbox = false
		case "rejected":
			o.Verdict, o.Sandbox = &Verdict{Reason: "OutOfcpu"}, false
		case kept:
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}
		}
		s := Status(p, o, Plan(p, o, now), Facts{}, now)
		is := func(kind corev1.PodConditionType) string { return shortCondition(s, kind) }
		require.Equal(t, c.want, [3]string{
			is(corev1.PodReadyToStartContainers), is(corev1.PodInitialized), is(corev1.ContainersReady),
		}, "%+v", c)
		require.Equal(t, is(corev1.ContainersReady), is(corev1.PodReady), "%+v", c)
	}
}

func shortCondition(s corev1.PodStatus, kind corev1.PodConditionType) string {
	c := conditionIn(s.Conditions, kind)
	text := string(c.Status)
	if c.Reason != "" {
		text += " " + c.Reason
	}
	if c.Message != "" {
		text += ": " + c.Message
	}
	return text
}

func TestReadinessGateMessages(t *testing.T) {
	const (
		missing = `corresponding condition of pod readiness gate "g1" does not exist.`
		refused = `the status of pod readiness gate "g2" is not "True", but Unknown`
	)
	for _, c := range []struct {
		gates      []string
		conditions map[string]corev1.ConditionStatus
		main, want string
	}{
		{[]string{"g1"}, nil, "R", "False ReadinessGatesNotReady: " + missing},
		{[]string{"g1"}, map[string]corev1.ConditionStatus{"g1": "True"}, "R", "True"},
		{[]string{"g2"}, map[string]corev1.ConditionStatus{"g2": "Unknown"}, "R", "False ReadinessGatesNotReady: " + refused},
		{[]string{"g1", "g2"}, map[string]corev1.ConditionStatus{"g2": "Unknown"}, "R",
			"False ReadinessGatesNotReady: " + missing + ", " + refused},
		{[]string{"g1", "g2"}, map[string]corev1.ConditionStatus{"g1": "True", "g2": "True"}, "R", "True"},
		{[]string{"g1"}, map[string]corev1.ConditionStatus{"g1": "True"}, "r",
			"False ContainersNotReady: containers with unready status: [m0]"},
	} {
		p, o := scenario(always, "", c.main)
		for _, g := range c.gates {
			p.Spec.ReadinessGates = append(p.Spec.ReadinessGates,
				corev1.PodReadinessGate{ConditionType: corev1.PodConditionType(g)})
		}
		for kind, status := range c.conditions {
			p.Status.Conditions = append(p.Status.Conditions,
				corev1.PodCondition{Type: corev1.PodConditionType(kind), Status: status})
		}
		s := Status(p, o, Plan(p, o, now), Facts{}, now)
		require.Equal(t, c.want, shortCondition(s, corev1.PodReady), "%+v", c)
	}
}

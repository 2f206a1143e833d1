package disruption

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func budget(minAvailable, maxUnavailable string) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", Generation: 3}}
	if minAvailable != "" {
		v := intstr.Parse(minAvailable)
		b.Spec.MinAvailable = &v
	}
	if maxUnavailable != "" {
		v := intstr.Parse(maxUnavailable)
		b.Spec.MaxUnavailable = &v
	}
	return b
}

func pods(ready, unready, deleting int) (out []*corev1.Pod) {
	for i := range ready + unready + deleting {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("p", i)}}
		if i < ready || i >= ready+unready {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		if i >= ready+unready {
			p.DeletionTimestamp = &metav1.Time{Time: now}
		}
		out = append(out, p)
	}
	return out
}

func TestPlan(t *testing.T) {
	for name, c := range map[string]struct {
		minAvailable, maxUnavailable       string
		ready, unready, deleting, expected int
		healthy, desired, total, allowed   int32
	}{
		"min":                     {minAvailable: "2", ready: 3, healthy: 3, desired: 2, total: 3, allowed: 1},
		"min counts unready ones": {minAvailable: "2", ready: 2, unready: 1, healthy: 2, desired: 2, total: 3},
		"min percent rounds up": {
			minAvailable: "50%", ready: 5, expected: 5, healthy: 5, desired: 3, total: 5, allowed: 2,
		},
		"min forbids all": {minAvailable: "100%", ready: 4, expected: 4, healthy: 4, desired: 4, total: 4},
		"max": {
			maxUnavailable: "1", ready: 3, expected: 3, healthy: 3, desired: 2, total: 3, allowed: 1,
		},
		"max percent rounds up": {
			maxUnavailable: "30%", ready: 10, expected: 10, healthy: 10, desired: 7, total: 10, allowed: 3,
		},
		"max of none":           {maxUnavailable: "0", ready: 3, expected: 3, healthy: 3, desired: 3, total: 3},
		"max beyond all":        {maxUnavailable: "200%", ready: 3, expected: 3, healthy: 3, total: 3, allowed: 3},
		"percentage of no pods": {minAvailable: "50%"},
		"no pods":               {minAvailable: "0"},
		"deleted ones do not count": {
			maxUnavailable: "1", ready: 2, deleting: 1, expected: 3, healthy: 2, desired: 2, total: 3,
		},
		"scaled up, not there yet": {maxUnavailable: "1", ready: 3, expected: 9, healthy: 3, desired: 8, total: 9},
		"neither":                  {ready: 3, healthy: 3},
		"more than an int32": {
			minAvailable: "100%", ready: 1, expected: math.MaxInt32 * 3, healthy: 1, desired: math.MaxInt32,
			total: math.MaxInt32,
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := Plan(Observed{
				Budget:   budget(c.minAvailable, c.maxUnavailable),
				Pods:     pods(c.ready, c.unready, c.deleting),
				Expected: int64(c.expected),
			}, now)
			require.NoError(t, err)
			s := a.Status
			require.Equal(t, []int32{c.healthy, c.desired, c.total, c.allowed},
				[]int32{s.CurrentHealthy, s.DesiredHealthy, s.ExpectedPods, s.DisruptionsAllowed})
			require.EqualValues(t, 3, s.ObservedGeneration)
			require.Equal(t, policyv1.DisruptionAllowedCondition, s.Conditions[0].Type)
			require.Equal(t, c.allowed > 0, s.Conditions[0].Status == metav1.ConditionTrue)
			require.Equal(t, now, s.Conditions[0].LastTransitionTime.Time)
		})
	}
}

func TestDisruptedPodsExpire(t *testing.T) {
	b := budget("1", "")
	b.Status.DisruptedPods = map[string]metav1.Time{
		"p0": metav1.NewTime(now.Add(-30 * time.Second)), "p1": metav1.NewTime(now.Add(-3 * time.Minute)),
		"p3": metav1.NewTime(now), "gone": metav1.NewTime(now),
	}
	a, err := Plan(Observed{Budget: b, Pods: pods(3, 0, 1)}, now)
	require.NoError(t, err)
	require.Len(t, a.Status.DisruptedPods, 1)
	require.Contains(t, a.Status.DisruptedPods, "p0")
	require.EqualValues(t, 2, a.Status.CurrentHealthy,
		"p0 will be deleted, p1 was to be deleted but is overdue, p3 is being deleted")
	require.Equal(t, "p1", a.Overdue[0].Name)
	require.Equal(t, 90*time.Second, a.Again)
}

func TestFailureForbidsDisruptions(t *testing.T) {
	b := budget("", "1")
	b.Status.DisruptionsAllowed, b.Status.CurrentHealthy = 4, 5
	s := Failed(b, errors.New("why"), now)
	require.Zero(t, s.DisruptionsAllowed)
	require.Equal(t, policyv1.SyncFailedReason, s.Conditions[0].Reason)
	require.Equal(t, "why", s.Conditions[0].Message)
	b.Status = s
	a, err := Plan(Observed{Budget: b, Pods: pods(5, 0, 0), Expected: 5}, now)
	require.NoError(t, err)
	require.EqualValues(t, 1, a.Status.DisruptionsAllowed)
	require.Empty(t, a.Status.Conditions[0].Message)
}

// TestNeverBelowTheBudget: after all allowed disruptions the desired number of pods is still healthy, and a second
// plan changes nothing.
func TestNeverBelowTheBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(rapid.Just("0"), rapid.Map(rapid.IntRange(0, 20), func(n int) string { return fmt.Sprint(n) }),
			rapid.Map(rapid.IntRange(0, 100), func(n int) string { return fmt.Sprint(n, "%") })).Draw(t, "value")
		b := budget(value, "")
		if rapid.Bool().Draw(t, "max") {
			b = budget("", value)
		}
		o := Observed{Budget: b, Expected: int64(rapid.IntRange(0, 20).Draw(t, "expected")),
			Pods: pods(rapid.IntRange(0, 10).Draw(t, "ready"), rapid.IntRange(0, 5).Draw(t, "unready"),
				rapid.IntRange(0, 5).Draw(t, "deleting"))}
		for _, p := range o.Pods {
			if rapid.Bool().Draw(t, "disrupted") {
				if b.Status.DisruptedPods == nil {
					b.Status.DisruptedPods = map[string]metav1.Time{}
				}
				b.Status.DisruptedPods[p.Name] = metav1.NewTime(now.Add(-time.Duration(rapid.IntRange(0, 300).Draw(t, "ago")) *
					time.Second))
			}
		}
		a, err := Plan(o, now)
		require.NoError(t, err)
		s := a.Status
		require.GreaterOrEqual(t, s.DisruptionsAllowed, int32(0))
		if s.DisruptionsAllowed > 0 {
			require.GreaterOrEqual(t, s.CurrentHealthy-s.DisruptionsAllowed, s.DesiredHealthy)
		}
		o.Budget = b.DeepCopy()
		o.Budget.Status = s
		again, err := Plan(o, now.Add(0))
		require.NoError(t, err)
		require.Equal(t, s, again.Status)
	})
}

func TestStale(t *testing.T) {
	mark := func(change ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{}
		p.Status.Conditions = []corev1.PodCondition{
			{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(now.Add(-90 * time.Second)),
			},
		}
		for _, f := range change {
			f(p)
		}
		return p
	}
	stale, in := Stale(mark(), now)
	require.False(t, stale)
	require.Equal(t, 30*time.Second, in)
	stale, _ = Stale(mark(), now.Add(30*time.Second))
	require.True(t, stale)
	for name, f := range map[string]func(*corev1.Pod){
		"deleted":       func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} },
		"ended":         func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"the kubelet's": func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonTerminationByKubelet },
		"reset":         func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse },
	} {
		t.Run(name, func(t *testing.T) {
			stale, in := Stale(mark(f), now.Add(time.Hour))
			require.False(t, stale)
			require.Zero(t, in)
		})
	}
}

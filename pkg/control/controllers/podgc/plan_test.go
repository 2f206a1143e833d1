package podgc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestPlanTerminated(t *testing.T) {
	old := func(name string, hours int, evicted bool) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, CreationTimestamp: metav1.NewTime(now.Add(-time.Duration(hours) * time.Hour)),
			},
		}
		p.Status.Phase = corev1.PodFailed
		if evicted {
			p.Status.Reason = "Evicted"
		}
		return p
	}
	pods := []*corev1.Pod{
		old("d", 3, false), old("b", 9, false), old("e", 1, false), old("c", 5, false), old("a", 2, true),
		old("b2", 9, false),
	}
	for _, tt := range []struct {
		threshold int
		want      []string
	}{
		{6, nil}, {5, []string{"a"}}, {3, []string{"a", "b", "b2"}}, {0, []string{"a", "b", "b2", "c", "d", "e"}},
	} {
		var got []string
		for _, p := range PlanTerminated(pods, tt.threshold) {
			got = append(got, p.Name)
		}
		require.Equal(t, tt.want, got, tt.threshold)
	}
	require.Equal(t, "d", pods[0].Name, "the caller's list is not sorted")
}

func TestPlanNode(t *testing.T) {
	require.Equal(t, 30*time.Second, PlanNode(now.Add(-10*time.Second), now))
	require.Equal(t, time.Nanosecond, PlanNode(now.Add(time.Nanosecond-Quarantine), now))
	require.Zero(t, PlanNode(now.Add(-Quarantine), now))
	require.Zero(t, PlanNode(now.Add(-time.Hour), now))
}

func TestClassify(t *testing.T) {
	pod := func(node string, phase corev1.PodPhase, deleted bool) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
		if deleted {
			p.DeletionTimestamp = &metav1.Time{Time: now}
		}
		return p
	}
	for name, tt := range map[string]struct {
		was, is *corev1.Pod
		want    change
	}{
		"new": {nil, pod("", corev1.PodPending, false), change{}},
		"deleted while pending": {
			pod("", corev1.PodPending, false), pod("", corev1.PodPending, true), change{unscheduled: true},
		},
		"found deleted": {nil, pod("", corev1.PodPending, true), change{unscheduled: true}},
		"bound": {
			pod("", corev1.PodPending, false), pod("n", corev1.PodPending, false), change{newOnNode: true},
		},
		"found on a node": {nil, pod("n", corev1.PodRunning, false), change{newOnNode: true}},
		"deleted on its node": {
			pod("n", corev1.PodRunning, false), pod("n", corev1.PodRunning, true), change{terminating: true},
		},
		"being deleted":       {pod("n", corev1.PodRunning, true), pod("n", corev1.PodRunning, true), change{}},
		"found being deleted": {nil, pod("n", corev1.PodRunning, true), change{terminating: true, newOnNode: true}},
		"terminates": {
			pod("n", corev1.PodRunning, false), pod("n", corev1.PodSucceeded, false), change{terminated: true},
		},
		"found terminated":   {nil, pod("n", corev1.PodFailed, false), change{terminated: true, newOnNode: true}},
		"terminated already": {pod("n", corev1.PodFailed, false), pod("n", corev1.PodFailed, false), change{}},
	} {
		require.Equal(t, tt.want, classify(tt.was, tt.is), name)
	}
}

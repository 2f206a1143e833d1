package fakenode

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestPlan checks the writes for a pod in each state.
func TestPlan(t *testing.T) {
	now := time.Unix(1000, 0)
	at := metav1.NewTime(now)
	started := metav1.NewTime(now.Add(-time.Second))
	no, grace := int64(0), int64(30)
	runs := func(p *corev1.Pod) {
		p.Status.Phase, p.Status.StartTime = corev1.PodRunning, &started
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	lasts := func(d string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.RestartPolicy, p.Annotations = corev1.RestartPolicyNever, map[string]string{DurationAnnotation: d}
		}
	}
	deleted := func(period *int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, period }
	}
	held := func(p *corev1.Pod) { p.Finalizers = []string{"x/y"} }
	over := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	gated := func(p *corev1.Pod) { p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x"}} }
	for name, c := range map[string]struct {
		change []func(*corev1.Pod)
		want   corev1.PodPhase // the phase to write; empty to delete
		after  time.Duration
		none   bool
	}{
		"new":               {want: corev1.PodRunning},
		"new, ends at once": {change: []func(*corev1.Pod){lasts("0s")}, want: corev1.PodSucceeded},
		"new, ends later":   {change: []func(*corev1.Pod){lasts("3s")}, want: corev1.PodRunning},
		"a wrong duration":  {change: []func(*corev1.Pod){lasts("-1s")}, want: corev1.PodFailed},
		"runs for ever":     {change: []func(*corev1.Pod){runs}, none: true},
		"ends in a while": {
			change: []func(*corev1.Pod){lasts("3s"), runs}, want: corev1.PodSucceeded, after: 2 * time.Second,
		},
		"end was not yet written":       {change: []func(*corev1.Pod){lasts("10ms"), runs}, want: corev1.PodSucceeded},
		"a readiness gate closed":       {change: []func(*corev1.Pod){runs, gated}, want: corev1.PodRunning},
		"over":                          {change: []func(*corev1.Pod){over}, none: true},
		"deleted":                       {change: []func(*corev1.Pod){runs, deleted(&grace)}},
		"deleted, over":                 {change: []func(*corev1.Pod){over, deleted(&grace)}},
		"deleted, held":                 {change: []func(*corev1.Pod){runs, held, deleted(&grace)}, want: corev1.PodFailed},
		"deleted at once, held":         {change: []func(*corev1.Pod){runs, held, deleted(&no)}, want: corev1.PodFailed},
		"deleted at once, held, over":   {change: []func(*corev1.Pod){over, held, deleted(&no)}, none: true},
		"deleted with a period, forced": {change: []func(*corev1.Pod){over, held, deleted(&grace)}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u"},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
			}
			for _, f := range c.change {
				f(p)
			}
			before := p.DeepCopy()
			task, after, ok := (&Nodes{}).plan(p, now)
			require.Equal(t, before, p)
			require.Equal(t, !c.none, ok)
			require.Equal(t, c.after, after)
			var wrote corev1.Pod
			if ok && task.patch != nil {
				require.NoError(t, json.Unmarshal(task.patch, &wrote))
				require.EqualValues(t, "u", wrote.UID)
			}
			require.Equal(t, c.want, wrote.Status.Phase)
		})
	}
}

func TestNumber(t *testing.T) {
	n, err := New(Config{REST: &rest.Config{Host: "https://127.0.0.1:1"}, Count: 12})
	require.NoError(t, err)
	for name, want := range map[string]int{
		"fake-0":  0,
		"fake-11": 11,
		"fake-12": -1,
		"fake-01": -1,
		"fake--1": -1,
		"fake-+1": -1,
		"fake-":   -1,
		"other-1": -1,
		"fake-x":  -1,
	} {
		i, ok := n.number(name)
		require.Equal(t, want >= 0, ok, name)
		if ok {
			require.Equal(t, want, i)
			require.Equal(t, name, n.name(i))
		}
	}
	_, err = New(Config{REST: &rest.Config{}, Count: 1, Prefix: "A_"})
	require.ErrorContains(t, err, `prefix "A_"`)
	_, err = New(Config{REST: &rest.Config{}, Count: MostNodes + 1})
	require.ErrorContains(t, err, "count of 20001")
}

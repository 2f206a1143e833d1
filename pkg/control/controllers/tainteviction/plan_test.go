package tainteviction

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/engine"
)

func TestPlan(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	since := now.Add(-10 * time.Second)
	tolerates := func(key string, seconds ...int64) corev1.Toleration {
		tol := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists}
		if len(seconds) > 0 {
			tol.TolerationSeconds = &seconds[0]
		}
		return tol
	}
	one, two := corev1.Taint{Key: "one", Effect: corev1.TaintEffectNoExecute}, corev1.Taint{
		Key: "two", Effect: corev1.TaintEffectNoExecute,
	}
	for name, c := range map[string]struct {
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		leaves      bool
		in          time.Duration
	}{
		"no taint":      {},
		"not NoExecute": {taints: []corev1.Taint{{Key: "one", Effect: corev1.TaintEffectNoSchedule}}},
		"not tolerated": {taints: []corev1.Taint{one}, leaves: true},
		"for ever":      {taints: []corev1.Taint{one}, tolerations: []corev1.Toleration{tolerates("one")}},
		"for a while": {
			taints: []corev1.Taint{one}, tolerations: []corev1.Toleration{tolerates("one", 30)}, leaves: true,
			in: 20 * time.Second,
		},
		"time is up": {
			taints: []corev1.Taint{one}, tolerations: []corev1.Toleration{tolerates("one", 5)}, leaves: true,
		},
		"the shorter": {
			taints: []corev1.Taint{one}, tolerations: []corev1.Toleration{tolerates("one"), tolerates("one", 30)}, leaves: true,
			in: 20 * time.Second,
		},
		"one of two": {
			taints: []corev1.Taint{one, two}, tolerations: []corev1.Toleration{tolerates("one")}, leaves: true,
		},
		"both, one awhile": {
			taints: []corev1.Taint{one, two}, tolerations: []corev1.Toleration{tolerates("one"), tolerates("two", 60)},
			leaves: true, in: 50 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: c.tolerations}}
			leaves, in := Plan(p, c.taints, func(*corev1.Taint) time.Time { return since }, now)
			require.Equal(t, c.leaves, leaves)
			require.Equal(t, c.in, in)
		})
	}
}

// The toleration of an older taint begins when the pod was bound. A change of tolerationSeconds is an event.
func TestLatecomers(t *testing.T) {
	old, seconds, fewer := corev1.Taint{Key: "one", Effect: corev1.TaintEffectNoExecute}, int64(60), int64(5)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	p := &corev1.Pod{
		Spec: corev1.PodSpec{
			Tolerations: []corev1.Toleration{{Key: "one", Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}},
		},
	}
	p.Status.Conditions = []corev1.PodCondition{
		{
			Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now.Add(-20 * time.Second)),
		},
	}
	leaves, in := Plan(p, []corev1.Taint{old}, func(*corev1.Taint) time.Time { return now.Add(-time.Hour) }, now)
	require.True(t, leaves)
	require.Equal(t, 40*time.Second, in)

	next := p.DeepCopy()
	changed := New().Watches[1].Changed
	require.False(t, changed(p, next))
	next.Spec.Tolerations[0].TolerationSeconds = &fewer
	require.True(t, changed(p, next))
}

// TestTaintsThatComeAgain: a taint that was removed and added again counts from the second time, even without a
// reconcile in between.
func TestTaintsThatComeAgain(t *testing.T) {
	s, env := &sightings{}, engine.Env{}
	s.reset()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	env.Now = func() time.Time { return at }
	bare := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	tainted := bare.DeepCopy()
	tainted.Spec.Taints = []corev1.Taint{{Key: "one", Effect: corev1.TaintEffectNoExecute}}
	require.Len(t, s.nodes(t.Context(), env, bare, tainted), 1)
	first := s.note("n", tainted.Spec.Taints, at.Add(time.Minute))
	require.Equal(t, at, first(&tainted.Spec.Taints[0]))
	at = at.Add(time.Hour)
	require.Len(t, s.nodes(t.Context(), env, tainted, bare), 1)
	require.Len(t, s.nodes(t.Context(), env, bare, tainted), 1)
	require.Empty(t, s.nodes(t.Context(), env, tainted, tainted.DeepCopy()))
	require.Equal(t, at, s.note("n", tainted.Spec.Taints, at.Add(time.Minute))(&tainted.Spec.Taints[0]))
	require.Len(t, s.nodes(t.Context(), env, tainted, nil), 1)
	require.Empty(t, s.first)
}

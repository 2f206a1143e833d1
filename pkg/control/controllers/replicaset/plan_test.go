package replicaset

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func set(n int32) *appsv1.ReplicaSet {
	l := map[string]string{"app": "x"}
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "s"}, Spec: appsv1.ReplicaSetSpec{
		Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: l},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: l}},
	}}
}

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:              name,
			UID:               types.UID(name),
			Labels:            map[string]string{"app": "x"},
			CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
		},
	}
	p.Status.Phase, p.Spec.NodeName = corev1.PodRunning, "n"
	readyFor(time.Hour)(p)
	for _, f := range change {
		f(p)
	}
	return p
}

func readyFor(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-d))},
		}
	}
}
func unready(p *corev1.Pod)  { p.Status.Conditions = nil }
func unbound(p *corev1.Pod)  { p.Spec.NodeName = "" }
func waiting(p *corev1.Pod)  { p.Status.Phase = corev1.PodPending }
func failed(p *corev1.Pod)   { p.Status.Phase = corev1.PodFailed }
func deleting(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }
func other(p *corev1.Pod)    { p.Labels = map[string]string{"app": "y"} }
func on(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeName = node }
}
func cost(s string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: s} }
}
func restarted(n int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: n}} }
}
func aged(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-d)) }
}

func names(pods []*corev1.Pod) (out []string) {
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return out
}

func TestPlan(t *testing.T) {
	for name, c := range map[string]struct {
		o                      Observed
		adopt, release, delete []string
		create                 int
	}{
		"create": {o: Observed{Set: set(3), Owned: []*corev1.Pod{pod("a")}}, create: 2},
		"enough": {o: Observed{Set: set(1), Owned: []*corev1.Pod{pod("a")}}},
		"adopt first": {
			o: Observed{Set: set(2), Orphans: []*corev1.Pod{pod("a"), pod("b", other)}}, adopt: []string{"a"}, create: 1,
		},
		"adopt, then too many": {
			o:     Observed{Set: set(1), Owned: []*corev1.Pod{pod("a")}, Orphans: []*corev1.Pod{pod("b", waiting)}},
			adopt: []string{"b"}, delete: []string{"b"},
		},
		"dead ones left alone": {
			o: Observed{Set: set(1), Orphans: []*corev1.Pod{pod("a", deleting), pod("b", failed)}}, create: 1,
		},
		"release": {
			o: Observed{Set: set(1), Owned: []*corev1.Pod{pod("a", other)}}, release: []string{"a"}, create: 1,
		},
		"going and failed": {
			o: Observed{Set: set(2), Owned: []*corev1.Pod{pod("a", deleting), pod("b", failed)}}, create: 2,
		},
		"burst": {o: Observed{Set: set(9999)}, create: burst},
		"deleted": {
			o: Observed{
				Set:     func() *appsv1.ReplicaSet { s := set(3); s.DeletionTimestamp = &metav1.Time{Time: now}; return s }(),
				Orphans: []*corev1.Pod{pod("a")},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := Plan(c.o, now)
			require.NoError(t, err)
			require.Equal(t, c.adopt, names(a.Adopt))
			require.Equal(t, c.release, names(a.Release))
			require.Equal(t, c.delete, names(a.Delete))
			require.Equal(t, c.create, a.Create)
		})
	}
}

func TestVictims(t *testing.T) {
	for name, c := range map[string][2]*corev1.Pod{ // the first is deleted, the second stays
		"unbound":     {pod("b", unbound), pod("a")},
		"waiting":     {pod("b", waiting), pod("a")},
		"not ready":   {pod("b", unready), pod("a")},
		"cheap":       {pod("b", cost("-5")), pod("a")},
		"doubled up":  {pod("b", on("crowded")), pod("a")},
		"ready later": {pod("b", readyFor(time.Second)), pod("a")},
		"restarted":   {pod("b", restarted(3)), pod("a")},
		"younger":     {pod("b", aged(time.Second)), pod("a")},
	} {
		t.Run(name, func(t *testing.T) {
			crowd := map[string]int{"n": 1, "crowded": 2}
			require.Equal(t, []string{c[0].Name}, names(victims([]*corev1.Pod{c[0], c[1]}, 1, crowd, now)))
			require.Equal(t, []string{c[0].Name}, names(victims([]*corev1.Pod{c[1], c[0]}, 1, crowd, now)))
		})
	}
}

func TestStatus(t *testing.T) {
	rs := set(3)
	rs.Spec.MinReadySeconds = 10
	a, err := Plan(Observed{
		Set: rs,
		Owned: []*corev1.Pod{
			pod("a", readyFor(time.Minute)), pod("b", readyFor(4*time.Second)), pod("c", unready), pod("d", deleting),
		},
	}, now)
	require.NoError(t, err)
	require.Equal(t, []int32{3, 2, 1, 1, 3},
		[]int32{
			a.Status.Replicas, a.Status.ReadyReplicas, a.Status.AvailableReplicas, *a.Status.TerminatingReplicas,
			a.Status.FullyLabeledReplicas,
		})
	require.Equal(t, 6*time.Second, a.Again)

	s := withFailure(a.Status, "FailedCreate", errors.New("quota"), now)
	require.Equal(t, "quota", s.Conditions[0].Message)
	require.Empty(t, withFailure(s, "", nil, now).Conditions)
	require.Len(t, s.Conditions, 1, "the argument is left alone")
}

// TestPlanReachesItsAim: applying the plan gives the desired size, and keeps the ready pods if there are enough.
func TestPlanReachesItsAim(t *testing.T) {
	states := []func(*corev1.Pod){unready, unbound, waiting, failed, deleting, other, func(*corev1.Pod) {}}
	rapid.Check(t, func(t *rapid.T) {
		o := Observed{Set: set(rapid.Int32Range(0, 10).Draw(t, "replicas"))}
		for i := range rapid.IntRange(0, 15).Draw(t, "pods") {
			p := pod(fmt.Sprint(i), rapid.SampledFrom(states).Draw(t, "state"))
			if rapid.Bool().Draw(t, "orphan") {
				o.Orphans = append(o.Orphans, p)
			} else {
				o.Owned = append(o.Owned, p)
			}
		}
		a, err := Plan(o, now)
		require.NoError(t, err)
		gone := map[string]bool{}
		for _, p := range append(a.Delete, a.Release...) {
			gone[p.Name] = true
		}
		have, ready, readyGone := a.Create, 0, 0
		for _, p := range append(append([]*corev1.Pod{}, o.Owned...), a.Adopt...) {
			if podstate.Active(p) && !gone[p.Name] {
				have++
			}
			if podstate.Active(p) && p.Labels["app"] == "x" && podstate.Ready(p) && p.Status.Phase == corev1.PodRunning &&
				p.Spec.NodeName != "" {
				ready++
				if gone[p.Name] {
					readyGone++
				}
			}
		}
		want := int(*o.Set.Spec.Replicas)
		require.Equal(t, want, have)
		require.Equal(t, max(ready-want, 0), readyGone)
		require.False(t, a.Create > 0 && len(a.Delete) > 0)
	})
}

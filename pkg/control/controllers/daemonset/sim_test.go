package daemonset

import (
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// sim applies plans as the reconciler and the API server would.
type sim struct {
	t     require.TestingT
	set   *appsv1.DaemonSet
	nodes []*corev1.Node
	pods  []*corev1.Pod
	revs  []*appsv1.ControllerRevision
	wait  map[string]time.Time
	now   time.Time
	n     int
}

func newSim(t require.TestingT, nodes int) *sim {
	l := map[string]string{"app": "log"}
	one, zero, limit := intstr.FromInt32(1), intstr.FromInt32(0), int32(2)
	s := &sim{t: t, now: start, wait: map[string]time.Time{}, set: &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   "default",
			Name:        "log",
			UID:         "ds",
			Generation:  1,
			Annotations: map[string]string{appsv1.DeprecatedTemplateGeneration: "1"},
		},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: l}, RevisionHistoryLimit: &limit,
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &one, MaxSurge: &zero},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: l},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "1"}}},
			},
		},
	}}
	for range nodes {
		s.addNode()
	}
	return s
}

func (s *sim) addNode() {
	s.n++
	s.nodes = append(s.nodes, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", s.n), Labels: map[string]string{"zone": "a"}},
	})
}

func (s *sim) image(v string) {
	s.set = s.set.DeepCopy()
	s.set.Generation++
	s.set.Annotations[appsv1.DeprecatedTemplateGeneration] = fmt.Sprint(s.set.Generation)
	s.set.Spec.Template.Spec.Containers[0].Image = v
}

func (s *sim) observed() Observed {
	o := Observed{Set: s.set, Nodes: s.nodes, Wait: func(node string) time.Duration { return s.wait[node].Sub(s.now) }}
	for _, p := range s.pods {
		switch ref := metav1.GetControllerOfNoCopy(p); {
		case ref == nil:
			o.Orphans = append(o.Orphans, p)
		case ref.UID == s.set.UID:
			o.Owned = append(o.Owned, p)
		}
	}
	for _, r := range s.revs {
		if metav1.GetControllerOfNoCopy(r) == nil {
			o.OrphanRevisions = append(o.OrphanRevisions, r)
		} else {
			o.OwnedRevisions = append(o.OwnedRevisions, r)
		}
	}
	return o
}

func (s *sim) change(name string, f func(*corev1.Pod)) {
	for i, p := range s.pods {
		if p.Name == name {
			s.pods[i] = p.DeepCopy()
			f(s.pods[i])
		}
	}
}

func (s *sim) drop(p *corev1.Pod) {
	s.pods = slices.DeleteFunc(s.pods, func(o *corev1.Pod) bool { return o.Name == p.Name })
}

// step plans, checks and applies. It returns false if nothing changed.
func (s *sim) step() (Actions, bool) {
	a, err := Plan(s.observed(), s.now)
	require.NoError(s.t, err)
	s.check(a)
	own := []metav1.OwnerReference{*metav1.NewControllerRef(s.set, kind)}
	for _, p := range a.Pods.Adopt {
		s.change(p.Name, func(p *corev1.Pod) { p.OwnerReferences = own })
	}
	for _, p := range a.Pods.Release {
		s.change(p.Name, func(p *corev1.Pod) { p.OwnerReferences = nil })
	}
	changed := len(a.Pods.Adopt)+len(a.Pods.Release) > 0
	if a.Create != nil {
		s.revs = append(s.revs, a.Create)
		return a, true
	}
	if a.Renumber != nil {
		for i, r := range s.revs {
			if r.Name == a.Renumber.Name {
				s.revs[i] = r.DeepCopy()
				s.revs[i].Revision = a.Number
			}
		}
		return a, true
	}
	for _, p := range a.Relabel {
		s.change(p.Name, func(p *corev1.Pod) { p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = a.Hash })
	}
	for _, p := range a.Ended {
		if p.Status.Phase == corev1.PodFailed {
			s.wait[target(p)] = s.now.Add(3 * time.Second)
		}
	}
	for _, n := range a.Run {
		p := Pod(s.set, a.Hash, n)
		s.n++
		p.Name = fmt.Sprintf("log-%d", s.n)
		p.UID, p.CreationTimestamp = types.UID(p.Name), metav1.NewTime(s.now)
		p.Status.Phase = corev1.PodPending
		s.pods = append(s.pods, p)
	}
	for _, p := range a.Delete {
		s.change(p.Name, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: s.now} })
	}
	for _, r := range a.Forget {
		s.revs = slices.DeleteFunc(s.revs, func(o *appsv1.ControllerRevision) bool { return o.Name == r.Name })
	}
	changed = changed || len(a.Relabel)+len(a.Run)+len(a.Delete)+len(a.Forget) > 0 ||
		!equality.Semantic.DeepEqual(a.Status, s.set.Status)
	s.set = s.set.DeepCopy()
	s.set.Status = a.Status
	return a, changed
}

func (s *sim) run(p *corev1.Pod) {
	s.change(p.Name, func(p *corev1.Pod) {
		p.Spec.NodeName = target(p)
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.now)},
		}
	})
}

// settle plans and lets nodes and podgc act until nothing changes.
func (s *sim) settle() {
	for range 400 {
		s.now = s.now.Add(time.Second)
		_, changed := s.step()
		for _, p := range slices.Clone(s.pods) {
			node := slices.ContainsFunc(s.nodes, func(n *corev1.Node) bool { return n.Name == target(p) })
			switch {
			case p.DeletionTimestamp != nil, !node && p.Spec.NodeName != "": // podgc deletes pods of missing nodes
				s.drop(p)
				changed = true
			case node && p.Status.Phase == corev1.PodPending ||
				node && p.Status.Phase == corev1.PodRunning && !podstate.Ready(p):
				s.run(p)
				changed = true
			case p.Status.Phase == corev1.PodFailed:
				changed = true // it is replaced after the back-off
			}
		}
		if !changed {
			a, again := s.step()
			require.False(s.t, again, "a second plan must be empty: %+v", a)
			return
		}
	}
	require.FailNow(s.t, "no stable state")
}

func (s *sim) check(a Actions) {
	if a.Create != nil || a.Renumber != nil {
		require.Empty(s.t, a.Run)
		require.Empty(s.t, a.Delete)
		return
	}
	fit := newEligibility(s.set)
	live := map[string][]*corev1.Pod{}
	owned := map[string]bool{}
	for _, p := range a.Pods.All {
		owned[p.Name] = true
		if podstate.Active(p) {
			live[target(p)] = append(live[target(p)], p)
		}
	}
	most := 1
	r := s.set.Spec.UpdateStrategy.RollingUpdate
	rolling := s.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType
	surging := rolling && r.MaxSurge.IntVal > 0
	if surging {
		most = 2
	}
	runs := map[string]int{}
	for _, n := range a.Run {
		runs[n]++
		i := slices.IndexFunc(s.nodes, func(o *corev1.Node) bool { return o.Name == n })
		require.GreaterOrEqual(s.t, i, 0, "a pod for a node that does not exist")
		run, _ := fit.of(s.nodes[i])
		require.True(s.t, run, "a pod for a node that is not eligible")
		require.LessOrEqual(s.t, len(live[n])+runs[n], most, "too many pods on %s", n)
	}
	// An update deletes no more available pods on eligible nodes than maxUnavailable allows.
	surplus, unavailable, taken := 0, 0, 0
	for _, n := range s.nodes {
		run, stay := fit.of(n)
		if !run || !stay {
			continue
		}
		ready := 0
		for _, p := range live[n.Name] {
			if podstate.Ready(p) {
				ready++
			}
		}
		left := ready
		for _, p := range a.Delete {
			if target(p) == n.Name && podstate.Active(p) && podstate.Ready(p) {
				left--
			}
		}
		if ready == 0 {
			unavailable++
		} else if left == 0 {
			taken++
		}
		if runs[n.Name] > 0 && len(live[n.Name]) > 0 && ready > 0 {
			surplus++
		}
	}
	for _, p := range a.Delete {
		require.True(s.t, owned[p.Name], "deletes a pod that it does not own")
	}
	switch {
	case surging:
		require.Zero(s.t, taken, "an update with surge deletes an available pod before there is another one")
		require.LessOrEqual(s.t, surplus, int(r.MaxSurge.IntVal), "more than maxSurge")
	case rolling && taken > 0:
		require.LessOrEqual(s.t, unavailable+taken, int(r.MaxUnavailable.IntVal), "more than maxUnavailable")
	case !rolling:
		require.Zero(s.t, taken, "OnDelete deletes an available pod")
	}
}

func (s *sim) images() map[string]string {
	out := map[string]string{}
	for _, p := range s.pods {
		out[target(p)] += p.Spec.Containers[0].Image
	}
	return out
}

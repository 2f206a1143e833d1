package statefulset

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

	"github.com/coracle-dev/coracle/pkg/engine/history"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// sim applies plans as the reconciler and the API server would.
type sim struct {
	t    require.TestingT
	set  *appsv1.StatefulSet
	pods []*corev1.Pod
	revs []*appsv1.ControllerRevision
	now  time.Time
	n    int
}

func newSim(t require.TestingT, replicas int32) *sim {
	l := map[string]string{"app": "db"}
	var partition int32
	limit := int32(2)
	return &sim{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), set: &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "set", Generation: 1},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: l}, ServiceName: "dbs",
			RevisionHistoryLimit: &limit, PodManagementPolicy: appsv1.OrderedReadyPodManagement,
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
				Type:          appsv1.RollingUpdateStatefulSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: l},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "1"}}},
			},
		},
	}}
}

func (s *sim) edit(f func(*appsv1.StatefulSetSpec)) {
	s.set = s.set.DeepCopy()
	s.set.Generation++
	f(&s.set.Spec)
}

func (s *sim) image(v string) {
	s.edit(func(spec *appsv1.StatefulSetSpec) { spec.Template.Spec.Containers[0].Image = v })
}

func (s *sim) observed() Observed {
	o := Observed{Set: s.set, Dependents: history.Dependents{OwnedRevisions: s.revs}}
	for _, p := range s.pods {
		switch ref := metav1.GetControllerOfNoCopy(p); {
		case ref == nil:
			o.Orphans = append(o.Orphans, p)
		case ref.UID == s.set.UID:
			o.Owned = append(o.Owned, p)
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

func (s *sim) drop(name string) {
	s.pods = slices.DeleteFunc(s.pods, func(o *corev1.Pod) bool { return o.Name == name })
}

func (s *sim) pod(name string) *corev1.Pod {
	for _, p := range s.pods {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// step plans, checks and applies. changed is false if nothing changed.
func (s *sim) step() (a Actions, changed bool) {
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
	for _, p := range a.Run {
		if s.pod(p.Name) != nil { // another owner's pod
			continue
		}
		s.n++
		p.UID, p.CreationTimestamp = types.UID(fmt.Sprint(s.n)), metav1.NewTime(s.now)
		p.Status.Phase = corev1.PodPending
		s.pods = append(s.pods, p)
		changed = true
	}
	for _, p := range a.Repair {
		s.change(p.Name, func(p *corev1.Pod) { identify(s.set, p) })
	}
	for _, p := range a.Delete {
		s.change(p.Name, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: s.now} })
	}
	for _, r := range a.Forget {
		s.revs = slices.DeleteFunc(s.revs, func(o *appsv1.ControllerRevision) bool { return o.Name == r.Name })
	}
	changed = changed || len(a.Pods.Adopt)+len(a.Pods.Release)+len(a.Repair)+len(a.Delete)+len(a.Forget) > 0 ||
		!equality.Semantic.DeepEqual(a.Status, s.set.Status)
	s.set = s.set.DeepCopy()
	s.set.Status = a.Status
	return a, changed
}

func (s *sim) run(name string) {
	s.change(name, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.now)},
		}
	})
}

// settle plans and lets nodes act until nothing changes.
func (s *sim) settle() {
	for range 400 {
		s.now = s.now.Add(time.Second)
		a, changed := s.step()
		changed = changed || a.Again > 0
		for _, p := range slices.Clone(s.pods) {
			switch {
			case p.DeletionTimestamp != nil:
				s.drop(p.Name)
				changed = true
			case !podstate.Ended(p) && !runs(p):
				s.run(p.Name)
				changed = true
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
	p := &plan{set: s.set, now: s.now, members: map[int64]*corev1.Pod{}}
	p.sort(a.Pods.All)
	first, end := p.bounds()
	owned, names := map[string]bool{}, map[string]bool{}
	for _, pod := range a.Pods.All {
		require.False(s.t, names[pod.Name], "two pods with one ordinal")
		owned[pod.Name], names[pod.Name] = true, true
	}
	for _, pod := range a.Run {
		require.False(s.t, names[pod.Name], "two pods with one ordinal")
		names[pod.Name] = true
		n := Ordinal(s.set, pod.Name)
		require.True(s.t, n >= first && n < end, "a pod outside the range")
	}
	for _, pod := range a.Delete {
		require.True(s.t, owned[pod.Name], "deletes a pod that it does not own")
		require.Nil(s.t, pod.DeletionTimestamp)
	}
	good := func(n int64) bool {
		pod := p.members[n]
		return pod != nil && runs(pod) && p.available(pod)
	}
	if p.inOrder() {
		require.LessOrEqual(s.t, len(a.Run), 1)
		for _, pod := range a.Run {
			for n := first; n < Ordinal(s.set, pod.Name); n++ {
				require.True(s.t, good(n), "%s is created before %d is available", pod.Name, n)
			}
		}
		for _, pod := range a.Delete {
			if podstate.Ended(pod) {
				continue
			}
			for n := first; n < end; n++ {
				require.True(s.t, good(n), "%s is deleted while %d is not available", pod.Name, n)
			}
			for _, other := range p.condemned {
				require.LessOrEqual(s.t, Ordinal(s.set, other.Name), max(Ordinal(s.set, pod.Name), end),
					"scaled down in the wrong order")
			}
		}
	}
	if end-first > 1000 {
		return
	}
	// An update deletes no more available pods than maxUnavailable allows.
	taken, unavailable := int64(0), int64(0)
	for n := first; n < end; n++ {
		pod := p.members[n]
		switch {
		case !good(n):
			unavailable++
		case slices.Contains(a.Delete, pod):
			taken++
			require.GreaterOrEqual(s.t, n, p.partition(), "updated below the partition")
			require.NotEqual(s.t, s.set.Spec.UpdateStrategy.Type, appsv1.OnDeleteStatefulSetStrategyType)
		}
	}
	if taken > 0 {
		most, err := p.maxUnavailable()
		require.NoError(s.t, err)
		require.LessOrEqual(s.t, taken+unavailable, most)
	}
}

package deployment

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func make1(replicas int32, surge, unavailable intstr.IntOrString) *appsv1.Deployment {
	l := map[string]string{"app": "web"}
	deadline, limit := int32(600), int32(10)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "d", Generation: 1},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: l}, ProgressDeadlineSeconds: &deadline,
			RevisionHistoryLimit: &limit,
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: l},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "1"}}},
			},
		},
	}
}

// sim applies plans as the server would.
type sim struct {
	d    *appsv1.Deployment
	sets []*appsv1.ReplicaSet
	at   time.Time
}

func (s *sim) step(t require.TestingT) Actions {
	s.at = s.at.Add(time.Second)
	o := Observed{Deployment: s.d, Owned: s.sets, Pods: map[string][]*corev1.Pod{}}
	for _, rs := range s.sets {
		for range rs.Status.Replicas {
			o.Pods[string(rs.UID)] = append(o.Pods[string(rs.UID)], &corev1.Pod{})
		}
	}
	before := fmt.Sprintf("%+v", o)
	a, err := Plan(o, s.at)
	require.NoError(t, err)
	require.Equal(t, before, fmt.Sprintf("%+v", o), "Plan changed what it was given")
	for _, u := range a.Update {
		for i, rs := range s.sets {
			if rs.Name == u.Name {
				s.sets[i] = u
			}
		}
	}
	if a.Create != nil {
		rs := a.Create.DeepCopy()
		rs.UID, rs.CreationTimestamp = types.UID(rs.Name), metav1.NewTime(s.at)
		s.sets = append(s.sets, rs)
	}
	for _, gone := range a.Delete {
		for i, rs := range s.sets {
			if rs.Name == gone.Name {
				s.sets = append(s.sets[:i:i], s.sets[i+1:]...)
				break
			}
		}
	}
	s.d = s.d.DeepCopy()
	if a.Annotations != nil {
		s.d.Annotations = a.Annotations
	}
	s.d.Status = a.Status
	return a
}

// pods makes the sets' pods match their size. available limits how many pods of a set are available.
func (s *sim) pods(available func(*appsv1.ReplicaSet) int32) {
	for i, rs := range s.sets {
		rs = rs.DeepCopy()
		rs.Status.Replicas = *rs.Spec.Replicas
		rs.Status.AvailableReplicas = min(available(rs), *rs.Spec.Replicas)
		rs.Status.ReadyReplicas = rs.Status.AvailableReplicas
		s.sets[i] = rs
	}
}

func all(rs *appsv1.ReplicaSet) int32 { return *rs.Spec.Replicas }

func (s *sim) settle(t require.TestingT) {
	for range 200 {
		a := s.step(t)
		s.pods(all)
		if len(a.Update) == 0 && a.Create == nil && len(a.Delete) == 0 && s.complete() {
			return
		}
	}
	require.FailNow(t, "the roll-out did not end")
}

func (s *sim) complete() bool {
	st := s.d.Status
	return st.UpdatedReplicas == *s.d.Spec.Replicas && st.Replicas == *s.d.Spec.Replicas &&
		st.AvailableReplicas == *s.d.Spec.Replicas
}

func (s *sim) image(v string) {
	s.d = s.d.DeepCopy()
	s.d.Generation++
	s.d.Spec.Template.Spec.Containers[0].Image = v
}

// TestRollingUpdateKeepsItsPromises: whatever the numbers and the order in which pods become available, no step
// requests more pods than maxSurge allows or removes more available ones than maxUnavailable allows, and the
// rollout ends.
func TestRollingUpdateKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		replicas := rapid.Int32Range(0, 20).Draw(t, "replicas")
		value := func(name string) intstr.IntOrString {
			if rapid.Bool().Draw(t, name+" in percent") {
				return intstr.FromString(fmt.Sprintf("%d%%", rapid.IntRange(0, 100).Draw(t, name)))
			}
			return intstr.FromInt32(rapid.Int32Range(0, 5).Draw(t, name))
		}
		s := &sim{d: make1(replicas, value("surge"), value("unavailable")), at: now}
		s.settle(t)
		p := &plan{d: s.d}
		surge, unavailable := p.fenceposts()
		for v := range rapid.IntRange(1, 3).Draw(t, "roll-outs") {
			s.image(fmt.Sprint("v", v))
			for range rapid.IntRange(0, 30).Draw(t, "steps") {
				before := total(s.sets, available)
				s.step(t)
				asked, left := total(s.sets, size), int32(0)
				for _, rs := range s.sets {
					left += min(rs.Status.AvailableReplicas, size(rs))
				}
				require.LessOrEqual(t, asked, replicas+surge, "too many pods")
				require.GreaterOrEqual(t, left, min(before, replicas-unavailable), "too few available")
				s.pods(func(rs *appsv1.ReplicaSet) int32 {
					return max(min(rs.Status.AvailableReplicas, size(rs)), rapid.Int32Range(0, 20).Draw(t, "available"))
				})
			}
		}
		s.settle(t)
		require.Equal(t, corev1.ConditionTrue, condition(s.d.Status, appsv1.DeploymentProgressing).Status)
		require.Equal(t, "NewReplicaSetAvailable", condition(s.d.Status, appsv1.DeploymentProgressing).Reason)
	})
}

// TestScalingInTheMiddleOfARollOut: the sets are scaled in proportion, and their sum is the allowed number.
func TestScalingInTheMiddleOfARollOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := rapid.Int32Range(1, 30).Draw(t, "from"), rapid.Int32Range(1, 30).Draw(t, "to")
		s := &sim{d: make1(from, intstr.FromInt32(3), intstr.FromInt32(2)), at: now}
		s.settle(t)
		s.image("two")
		s.step(t)
		s.pods(func(rs *appsv1.ReplicaSet) int32 { // the new pods never become available
			if rs.Spec.Template.Spec.Containers[0].Image == "two" {
				return 0
			}
			return 99
		})
		s.step(t)
		s.d = s.d.DeepCopy()
		*s.d.Spec.Replicas = to
		s.step(t)
		if from != to && len(s.sets) == 2 && size(s.sets[0]) > 0 && size(s.sets[1]) > 0 {
			require.Equal(t, to+3, total(s.sets, size))
		}
		s.settle(t)
	})
}

func TestHistory(t *testing.T) {
	s := &sim{d: make1(2, intstr.FromInt32(1), intstr.FromInt32(0)), at: now}
	s.d.Annotations = map[string]string{"kubernetes.io/change-cause": "first", corev1.LastAppliedConfigAnnotation: "{}"}
	two := int32(2)
	s.d.Spec.RevisionHistoryLimit = &two
	revisions := func() map[string]string {
		out := map[string]string{}
		for _, rs := range s.sets {
			out[rs.Spec.Template.Spec.Containers[0].Image] = rs.Annotations[revisionAnnotation]
		}
		return out
	}
	s.settle(t)
	require.Equal(t, "first", s.sets[0].Annotations["kubernetes.io/change-cause"])
	require.NotContains(t, s.sets[0].Annotations, corev1.LastAppliedConfigAnnotation)
	for _, v := range []string{"2", "3", "4"} {
		s.image(v)
		s.settle(t)
	}
	require.Equal(t, map[string]string{"2": "2", "3": "3", "4": "4"}, revisions(), "the oldest goes")
	require.Equal(t, "4", s.d.Annotations[revisionAnnotation])
	s.image("2") // a rollback rolls out an old template
	s.settle(t)
	require.Equal(t, map[string]string{"2": "5", "3": "3", "4": "4"}, revisions())
	for _, rs := range s.sets {
		if rs.Annotations[revisionAnnotation] == "5" {
			require.Equal(t, "2", rs.Annotations[revisionHistoryAnnotation])
			require.Equal(t, "2", rs.Annotations[desiredAnnotation])
			require.Equal(t, "3", rs.Annotations[maxAnnotation])
		}
	}
}

func TestPausedOnlyScales(t *testing.T) {
	s := &sim{d: make1(2, intstr.FromInt32(1), intstr.FromInt32(0)), at: now}
	s.settle(t)
	s.d.Spec.Paused = true
	s.image("two")
	*s.d.Spec.Replicas = 4
	s.step(t)
	require.Len(t, s.sets, 1)
	require.EqualValues(t, 4, size(s.sets[0]))
	s.step(t)
	require.Equal(t, "DeploymentPaused", condition(s.d.Status, appsv1.DeploymentProgressing).Reason)
	s.d.Spec.Paused = false
	s.pods(all)
	s.settle(t)
	require.Len(t, s.sets, 2)
}

func TestRecreateWaitsForTheOldPods(t *testing.T) {
	s := &sim{d: make1(2, intstr.FromInt32(1), intstr.FromInt32(0)), at: now}
	s.d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	s.settle(t)
	s.image("two")
	s.step(t)
	require.Zero(t, size(s.sets[0]))
	s.step(t)
	require.Len(t, s.sets, 1, "the old pods are still there")
	s.pods(all)
	s.step(t)
	require.Len(t, s.sets, 2)
	require.EqualValues(t, 2, size(s.sets[1]))
}

func TestStuckIsSaid(t *testing.T) {
	s := &sim{d: make1(1, intstr.FromInt32(1), intstr.FromInt32(0)), at: now}
	s.step(t)
	a := s.step(t)
	require.InDelta(t, 600, a.Again.Seconds(), 2)
	s.at = s.at.Add(601 * time.Second)
	a = s.step(t)
	c := condition(s.d.Status, appsv1.DeploymentProgressing)
	require.Equal(t, "ProgressDeadlineExceeded", c.Reason)
	require.Equal(t, corev1.ConditionFalse, c.Status)
	require.Contains(t, c.Message, "has timed out progressing.")
	require.Zero(t, a.Again)
	s.pods(all)
	s.settle(t)
	require.Equal(t, "NewReplicaSetAvailable", condition(s.d.Status, appsv1.DeploymentProgressing).Reason)
}

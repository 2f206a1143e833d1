package statefulset

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// TestModel: whatever users, nodes and pods do between steps, each plan respects the guarantees of a StatefulSet.
// In the end the set has exactly the desired pods.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t, rapid.Int32Range(0, 5).Draw(t, "replicas"))
		if rapid.Bool().Draw(t, "parallel") {
			s.set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		}
		s.set.Spec.MinReadySeconds = rapid.SampledFrom([]int32{0, 0, 3}).Draw(t, "minReadySeconds")
		pod := func() string {
			if len(s.pods) == 0 {
				return ""
			}
			return s.pods[rapid.IntRange(0, len(s.pods)-1).Draw(t, "pod")].Name
		}
		for range rapid.IntRange(0, 50).Draw(t, "steps") {
			s.now = s.now.Add(time.Second)
			switch rapid.SampledFrom([]string{
				"plan", "plan", "plan", "plan", "run", "run", "run", "finish", "finish", "fail", "unready", "delete", "scale",
				"start", "image", "image", "partition", "unavailable", "strategy", "orphan", "label", "stranger",
			}).Draw(t, "what") {
			case "plan":
				s.step()
			case "run":
				if p := s.pod(pod()); p != nil && podstate.Active(p) {
					s.run(p.Name)
				}
			case "finish":
				if p := s.pod(pod()); p != nil && p.DeletionTimestamp != nil {
					s.drop(p.Name)
				}
			case "fail":
				s.change(pod(), func(p *corev1.Pod) {
					p.Status.Phase, p.Status.Conditions = rapid.SampledFrom([]corev1.PodPhase{
						corev1.PodFailed, corev1.PodSucceeded,
					}).Draw(t, "phase"), nil
				})
			case "unready":
				s.change(pod(), func(p *corev1.Pod) { p.Status.Conditions = nil })
			case "delete":
				s.change(pod(), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: s.now} })
			case "scale":
				n := rapid.Int32Range(0, 6).Draw(t, "to")
				s.edit(func(spec *appsv1.StatefulSetSpec) { spec.Replicas = &n })
			case "start":
				n := rapid.Int32Range(0, 3).Draw(t, "start")
				s.edit(func(spec *appsv1.StatefulSetSpec) { spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: n} })
			case "image":
				s.image(fmt.Sprint(rapid.IntRange(1, 6).Draw(t, "image")))
			case "partition":
				n := rapid.SampledFrom([]int32{0, 0, 1, 3, 9}).Draw(t, "partition")
				s.edit(func(spec *appsv1.StatefulSetSpec) {
					if spec.UpdateStrategy.RollingUpdate != nil {
						spec.UpdateStrategy.RollingUpdate.Partition = &n
					}
				})
			case "unavailable":
				n := rapid.SampledFrom([]intstr.IntOrString{
					intstr.FromInt32(1), intstr.FromInt32(2), intstr.FromString("50%"),
				}).Draw(t, "maxUnavailable")
				s.edit(func(spec *appsv1.StatefulSetSpec) {
					if spec.UpdateStrategy.RollingUpdate != nil {
						spec.UpdateStrategy.RollingUpdate.MaxUnavailable = &n
					}
				})
			case "strategy":
				var none int32
				strategy := rapid.SampledFrom([]appsv1.StatefulSetUpdateStrategy{
					{Type: appsv1.OnDeleteStatefulSetStrategyType},
					{
						Type:          appsv1.RollingUpdateStatefulSetStrategyType,
						RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &none},
					},
				}).Draw(t, "strategy")
				s.edit(func(spec *appsv1.StatefulSetSpec) { spec.UpdateStrategy = *strategy.DeepCopy() })
			case "orphan":
				s.change(pod(), func(p *corev1.Pod) { p.OwnerReferences = nil })
			case "label":
				s.change(pod(), func(p *corev1.Pod) { delete(p.Labels, appsv1.StatefulSetPodNameLabel) })
			case "stranger": // a pod of another owner whose name resembles the set's pods
				if s.pod("db-01") == nil {
					p := s.pods
					s.pods = append(p[:len(p):len(p)], &corev1.Pod{
						ObjectMeta: metav1.ObjectMeta{Name: "db-01", Namespace: "default", Labels: map[string]string{"app": "db"}},
						Status:     corev1.PodStatus{Phase: corev1.PodRunning},
					})
				}
			}
		}
		s.drop("db-01")
		s.settle()
		s.complete(t)
	})
}

func (s *sim) complete(t require.TestingT) {
	p := &plan{set: s.set, now: s.now, members: map[int64]*corev1.Pod{}}
	p.sort(s.pods)
	first, end := p.bounds()
	require.Len(t, s.pods, int(end-first))
	require.Len(t, p.members, int(end-first))
	rolling := s.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType
	for n, pod := range p.members {
		require.Equal(t, pod.Name, pod.Labels[appsv1.StatefulSetPodNameLabel])
		require.Equal(t, fmt.Sprint(n), pod.Labels[appsv1.PodIndexLabel])
		if rolling && n >= p.partition() {
			require.Equal(t, s.set.Spec.Template.Spec.Containers[0].Image, pod.Spec.Containers[0].Image)
		}
	}
	st := s.set.Status
	want := int32(end - first)
	require.Equal(t, []int32{want, want, want}, []int32{st.Replicas, st.ReadyReplicas, st.AvailableReplicas})
	require.Equal(t, s.set.Generation, st.ObservedGeneration)
	if rolling && p.partition() == first {
		require.Equal(t, st.UpdateRevision, st.CurrentRevision)
		require.Equal(t, want, st.CurrentReplicas)
	}
}

func (s *sim) images() map[string]string {
	out := map[string]string{}
	for _, p := range s.pods {
		if p.DeletionTimestamp == nil {
			out[p.Name] = p.Spec.Containers[0].Image
		}
	}
	return out
}

func TestOneAfterTheOther(t *testing.T) {
	s := newSim(t, 3)
	s.step() // creates the revision
	a, _ := s.step()
	require.Len(t, a.Run, 1)
	p := a.Run[0]
	require.Equal(t, "db-0", p.Name)
	require.Equal(t, "db-0", p.Spec.Hostname)
	require.Equal(t, "dbs", p.Spec.Subdomain)
	require.Equal(t,
		map[string]string{
			"app":                           "db",
			appsv1.StatefulSetPodNameLabel:  "db-0",
			appsv1.PodIndexLabel:            "0",
			appsv1.StatefulSetRevisionLabel: s.set.Status.UpdateRevision,
		}, p.Labels)
	a, _ = s.step()
	require.Empty(t, a.Run, "db-0 is not ready")
	s.run("db-0")
	a, _ = s.step()
	require.Equal(t, "db-1", a.Run[0].Name)
	s.settle()
	require.Len(t, s.pods, 3)

	zero := int32(0)
	s.edit(func(spec *appsv1.StatefulSetSpec) { spec.Replicas = &zero })
	a, _ = s.step()
	require.Equal(t, "db-2", a.Delete[0].Name)
	a, _ = s.step()
	require.Empty(t, a.Delete, "db-2 still exists")
	s.settle()
	require.Empty(t, s.pods)
}

func TestPartition(t *testing.T) {
	s := newSim(t, 3)
	s.settle()
	two := int32(2)
	s.edit(func(spec *appsv1.StatefulSetSpec) {
		spec.Template.Spec.Containers[0].Image = "2"
		spec.UpdateStrategy.RollingUpdate.Partition = &two
	})
	s.settle()
	require.Equal(t, map[string]string{"db-0": "1", "db-1": "1", "db-2": "2"}, s.images())
	require.NotEqual(t, s.set.Status.CurrentRevision, s.set.Status.UpdateRevision)
	require.Equal(t, []int32{2, 1}, []int32{s.set.Status.CurrentReplicas, s.set.Status.UpdatedReplicas})
	// A pod below the partition is recreated from the current revision.
	s.drop("db-0")
	s.settle()
	require.Equal(t, "1", s.images()["db-0"])
	*s.set.Spec.UpdateStrategy.RollingUpdate.Partition = 0
	s.settle()
	require.Equal(t, map[string]string{"db-0": "2", "db-1": "2", "db-2": "2"}, s.images())
	require.Equal(t, s.set.Status.CurrentRevision, s.set.Status.UpdateRevision)
}

// TestBrokenUpdateIsMended: with parallel pod management, pods that never become ready do not block the update
// that fixes their revision.
func TestBrokenUpdateIsMended(t *testing.T) {
	s := newSim(t, 3)
	s.set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	s.settle()
	s.image("broken")
	s.step()
	s.step() // db-2 is deleted
	s.drop("db-2")
	s.step() // db-2 is recreated, and not ready
	a, _ := s.step()
	require.Empty(t, a.Delete, "no other pod is deleted in the meantime")
	s.image("2")
	s.step()
	a, _ = s.step()
	require.Len(t, a.Delete, 1)
	require.Equal(t, "db-2", a.Delete[0].Name)
	s.settle()
	require.Equal(t, map[string]string{"db-0": "2", "db-1": "2", "db-2": "2"}, s.images())
}

func TestHistory(t *testing.T) {
	s := newSim(t, 1)
	s.settle()
	for _, v := range []string{"2", "3", "4", "5"} {
		s.image(v)
		s.settle()
	}
	require.Len(t, s.revs, 3, "two old revisions and the current one")
	s.image("4")
	s.settle()
	require.Len(t, s.revs, 3)
	last := s.revs[0]
	for _, r := range s.revs {
		if r.Revision > last.Revision {
			last = r
		}
	}
	require.EqualValues(t, 6, last.Revision, "a rollback is the next revision")
	require.Equal(t, last.Name, s.set.Status.CurrentRevision)
}

// TestCollision: a name that caused a collision is not used again.
func TestCollision(t *testing.T) {
	s := newSim(t, 1)
	a, err := Plan(s.observed(), s.now)
	require.NoError(t, err)
	one := int32(1)
	s.set.Status.CollisionCount = &one
	b, err := Plan(s.observed(), s.now)
	require.NoError(t, err)
	require.NotEqual(t, a.Create.Name, b.Create.Name)
}

// TestABillionReplicas: the work of a step is bounded.
func TestABillionReplicas(t *testing.T) {
	s := newSim(t, 1_000_000_000)
	s.edit(func(spec *appsv1.StatefulSetSpec) { spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 2_000_000_000} })
	s.step()
	a, _ := s.step()
	require.Len(t, a.Run, 1)
	s.set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	a, _ = s.step()
	require.Len(t, a.Run, burst)
	require.True(t, a.More)
	a, _ = s.step()
	require.Len(t, a.Run, burst)
	require.Equal(t, "db-2000000501", a.Run[0].Name)
}

func TestOrdinal(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}}
	for name, want := range map[string]int64{
		"db-0":                    0,
		"db-17":                   17,
		"db-01":                   -1,
		"db--1":                   -1,
		"db-+1":                   -1,
		"db-":                     -1,
		"db":                      -1,
		"other-1":                 -1,
		"db-1-1":                  -1,
		"db-99999999999999999999": -1,
		"db-2147483650":           2147483650,
	} {
		require.Equal(t, want, Ordinal(set, name), name)
	}
}

func TestAPodIsReplacedOnceItHasEnded(t *testing.T) {
	s := newSim(t, 2)
	s.settle()
	s.change("db-0", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	a, _ := s.step()
	require.Equal(t, "db-0", a.Delete[0].Name)
	a, _ = s.step()
	require.Empty(t, a.Run, "its name is in use while it exists")
	s.settle()
	require.Len(t, s.pods, 2)
}

func TestDeletedSetIsLeftAlone(t *testing.T) {
	s := newSim(t, 2)
	s.settle()
	s.set = s.set.DeepCopy()
	s.set.DeletionTimestamp = &metav1.Time{Time: s.now}
	s.drop("db-1")
	a, _ := s.step()
	require.Empty(t, a.Run)
	require.EqualValues(t, 1, a.Status.Replicas)
}

// TestEndedPodsOutsideTheRange scales down over two ended pods, which never become available.
func TestEndedPodsOutsideTheRange(t *testing.T) {
	s := newSim(t, 3)
	s.settle()
	for _, name := range []string{"db-1", "db-2"} {
		s.change(name, func(p *corev1.Pod) { p.Status.Phase, p.Status.Conditions = corev1.PodFailed, nil })
	}
	one := int32(1)
	s.edit(func(spec *appsv1.StatefulSetSpec) { spec.Replicas = &one })
	a, _ := s.step()
	require.Len(t, a.Delete, 1)
	require.Equal(t, "db-2", a.Delete[0].Name)
	s.settle()
	s.complete(t)
}

package daemonset

import (
	"errors"
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

// TestModel: whatever users, nodes and pods do between steps, each plan respects the guarantees of a DaemonSet. In
// the end each eligible node has one current pod.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t, rapid.IntRange(0, 6).Draw(t, "nodes"))
		r := s.set.Spec.UpdateStrategy.RollingUpdate
		unavailable, surge := intstr.FromInt32(int32(rapid.IntRange(1, 3).Draw(t, "maxUnavailable"))), intstr.FromInt32(0)
		if rapid.Bool().Draw(t, "surge") {
			unavailable, surge = surge, unavailable
		}
		r.MaxUnavailable, r.MaxSurge = &unavailable, &surge
		node := func() *corev1.Node {
			if len(s.nodes) == 0 {
				return nil
			}
			i := rapid.IntRange(0, len(s.nodes)-1).Draw(t, "node")
			s.nodes[i] = s.nodes[i].DeepCopy()
			return s.nodes[i]
		}
		pod := func() *corev1.Pod {
			if len(s.pods) == 0 {
				return nil
			}
			return s.pods[rapid.IntRange(0, len(s.pods)-1).Draw(t, "pod")]
		}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			s.now = s.now.Add(time.Second)
			switch rapid.SampledFrom([]string{
				"plan", "plan", "plan", "run", "run", "finish", "fail", "unready", "add", "lose", "cordon", "taint", "label",
				"image", "delete", "orphan", "strategy", "select",
			}).Draw(t, "what") {
			case "plan":
				s.step()
			case "run":
				if p := pod(); p != nil && podstate.Active(p) {
					s.run(p)
				}
			case "finish":
				if p := pod(); p != nil && p.DeletionTimestamp != nil {
					s.drop(p)
				}
			case "fail":
				if p := pod(); p != nil {
					s.change(p.Name, func(p *corev1.Pod) {
						p.Status.Phase, p.Status.Conditions, p.Spec.NodeName = rapid.SampledFrom([]corev1.PodPhase{
							corev1.PodFailed, corev1.PodSucceeded,
						}).Draw(t, "phase"), nil, target(p)
					})
				}
			case "unready":
				if p := pod(); p != nil {
					s.change(p.Name, func(p *corev1.Pod) { p.Status.Conditions = nil })
				}
			case "add":
				s.addNode()
			case "lose":
				if n := node(); n != nil {
					for i := range s.nodes {
						if s.nodes[i] == n {
							s.nodes = append(s.nodes[:i:i], s.nodes[i+1:]...)
							break
						}
					}
				}
			case "cordon":
				if n := node(); n != nil {
					n.Spec.Unschedulable = !n.Spec.Unschedulable
					n.Spec.Taints = nil
					if n.Spec.Unschedulable {
						n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
					}
				}
			case "taint":
				if n := node(); n != nil {
					n.Spec.Taints = []corev1.Taint{
						{
							Key: "own",
							Effect: rapid.SampledFrom([]corev1.TaintEffect{
								corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
							}).Draw(t, "effect"),
						},
					}
				}
			case "label":
				if n := node(); n != nil {
					n.Labels["zone"] = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")
				}
			case "image":
				s.image(fmt.Sprint(rapid.IntRange(1, 6).Draw(t, "image")))
			case "delete":
				if p := pod(); p != nil {
					s.change(p.Name, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: s.now} })
				}
			case "orphan":
				if p := pod(); p != nil {
					s.change(p.Name, func(p *corev1.Pod) { p.OwnerReferences = nil })
				}
			case "strategy":
				s.set = s.set.DeepCopy()
				s.set.Generation++
				s.set.Spec.UpdateStrategy.Type = rapid.SampledFrom([]appsv1.DaemonSetUpdateStrategyType{
					appsv1.OnDeleteDaemonSetStrategyType, appsv1.RollingUpdateDaemonSetStrategyType,
				}).Draw(t, "type")
			case "select":
				s.set = s.set.DeepCopy()
				s.set.Generation++
				s.set.Annotations[appsv1.DeprecatedTemplateGeneration] = fmt.Sprint(s.set.Generation)
				s.set.Spec.Template.Spec.NodeSelector = rapid.SampledFrom([]map[string]string{nil, {"zone": "a"}}).Draw(t,
					"selector")
			}
		}
		s.settle()
		require.NoError(t, s.complete())
	})
}

func (s *sim) complete() error {
	fit := newEligibility(s.set)
	byNode := map[string][]*corev1.Pod{}
	for _, p := range s.pods {
		byNode[target(p)] = append(byNode[target(p)], p)
	}
	want := int32(0)
	for _, n := range s.nodes {
		run, stay := fit.of(n)
		pods := byNode[n.Name]
		switch {
		case run && len(pods) != 1:
			return fmt.Errorf("%d pods on %s", len(pods), n.Name)
		case !stay && len(pods) > 0:
			return errors.New("a pod on an ineligible node")
		case run && s.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType &&
			pods[0].Spec.Containers[0].Image != s.set.Spec.Template.Spec.Containers[0].Image:
			return errors.New("an outdated pod")
		}
		if run {
			want++
		}
	}
	st := s.set.Status
	if st.DesiredNumberScheduled != want || st.NumberAvailable != want || st.NumberUnavailable != 0 ||
		st.ObservedGeneration != s.set.Generation {
		return fmt.Errorf("status %+v, want %d", st, want)
	}
	return nil
}

func TestRollingUpdateOneByOne(t *testing.T) {
	s := newSim(t, 3)
	s.settle()
	require.Equal(t, map[string]string{"n1": "1", "n2": "1", "n3": "1"}, s.images())
	s.image("2")
	s.step() // creates the revision
	a, _ := s.step()
	require.Len(t, a.Delete, 1)
	require.Zero(t, a.Status.UpdatedNumberScheduled)
	s.settle()
	require.Equal(t, map[string]string{"n1": "2", "n2": "2", "n3": "2"}, s.images())
	for _, v := range []string{"3", "4", "5", "2"} {
		s.image(v)
		s.settle()
	}
	require.Len(t, s.revs, 3, "two old revisions and the current one")
	require.EqualValues(t, 6, s.revs[len(s.revs)-1].Revision)
}

func TestRollbackIsTheNextRevision(t *testing.T) {
	s := newSim(t, 1)
	s.settle()
	s.image("2")
	s.settle()
	s.image("1")
	s.settle()
	require.Len(t, s.revs, 2)
	require.EqualValues(t, 3, s.revs[0].Revision)
	require.Equal(t, map[string]string{"n1": "1"}, s.images())
}

// TestExcessPods: of several pods on a node, for example after an update with surge was cancelled, a ready one
// stays, or else the oldest.
func TestExcessPods(t *testing.T) {
	s := newSim(t, 1)
	s.settle()
	second := s.pods[0].DeepCopy()
	second.Name, second.UID, second.CreationTimestamp = "second", "second", metav1.NewTime(s.now)
	s.pods = append(s.pods, second)
	a, _ := s.step()
	require.Equal(t, "second", a.Delete[0].Name)
	s.change("second", func(p *corev1.Pod) { p.DeletionTimestamp = nil })
	s.change(s.pods[0].Name, func(p *corev1.Pod) { p.Status.Conditions = nil })
	a, _ = s.step()
	require.Len(t, a.Delete, 1)
	require.NotEqual(t, "second", a.Delete[0].Name)

	// The same holds for two old pods, when the template changes during an update with surge.
	s = newSim(t, 1)
	s.set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{
		MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromInt32(1)),
	}
	s.settle()
	s.image("2")
	s.step()
	a, _ = s.step()
	require.Len(t, a.Run, 1)
	s.run(s.pods[1])
	s.change(s.pods[0].Name, func(p *corev1.Pod) { p.Status.Conditions = nil })
	s.image("3")
	s.step()
	a, _ = s.step()
	require.Len(t, a.Delete, 1)
	require.Equal(t, s.pods[0].Name, a.Delete[0].Name)
}

func TestFailedPodsWait(t *testing.T) {
	s := newSim(t, 1)
	s.settle()
	failed := s.pods[0].Name
	s.change(failed, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	s.wait["n1"] = s.now.Add(4 * time.Second)
	a, _ := s.step()
	require.Empty(t, a.Delete)
	require.Equal(t, 4*time.Second, a.Again)
	s.now = s.now.Add(5 * time.Second)
	a, _ = s.step()
	require.Len(t, a.Delete, 1)
	require.Len(t, a.Ended, 1)
}

// TestPodOfItsNode: a daemon pod can be scheduled only to its node. It has the default tolerations and keeps the
// template's own affinities.
func TestPodOfItsNode(t *testing.T) {
	s := newSim(t, 0)
	spec := &s.set.Spec.Template.Spec
	seconds := int64(5)
	spec.Tolerations = []corev1.Toleration{
		{
			Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			TolerationSeconds: &seconds,
		},
		{Key: "x"},
	}
	spec.HostNetwork = true
	spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}, NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1}},
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}}},
			},
		},
	}}
	p := Pod(s.set, "h", "n7")
	require.Equal(t, "n7", target(p))
	require.Len(t, p.Spec.Tolerations, 8)
	require.Nil(t, p.Spec.Tolerations[0].TolerationSeconds, "forever")
	require.NotNil(t, p.Spec.Affinity.PodAntiAffinity)
	require.Len(t, p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution, 1)
	require.Len(t,
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions, 1,
		"the template is not changed")
	require.Equal(t, map[string]string{"app": "log", appsv1.DefaultDaemonSetUniqueLabelKey: "h", generationLabel: "1"},
		p.Labels)
	require.Equal(t, "log-", p.GenerateName)
}

// TestBurst: a thousand nodes take several bounded steps.
func TestBurst(t *testing.T) {
	s := newSim(t, 1200)
	s.step()
	a, _ := s.step()
	require.Len(t, a.Run, burst)
	require.True(t, a.More)
	s.step()
	a, _ = s.step()
	require.Len(t, a.Run, 200)
	require.False(t, a.More)
}

// TestDuplicatesOfTheCurrentRevision: an adopted copy of the current revision is deleted without restarting pods.
func TestDuplicatesOfTheCurrentRevision(t *testing.T) {
	s := newSim(t, 2)
	s.settle()
	copied := s.revs[0].DeepCopy()
	copied.Name, copied.Revision, copied.OwnerReferences = "copy", 9, nil
	copied.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = "other"
	s.revs = append(s.revs, copied)
	a, _ := s.step()
	require.Equal(t, "other", a.Hash)
	require.Len(t, a.Relabel, 2)
	require.Empty(t, a.Delete)
	require.Len(t, s.revs, 1)
}

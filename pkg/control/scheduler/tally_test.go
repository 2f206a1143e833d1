package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// preferring gives a pod preferred affinity (weight over 0) or anti-affinity.
func preferring(key, v, topology string, weight int32) func(*corev1.Pod) {
	term := func(weight int32) []corev1.WeightedPodAffinityTerm {
		return []corev1.WeightedPodAffinityTerm{{Weight: weight, PodAffinityTerm: corev1.PodAffinityTerm{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: v}}, TopologyKey: topology}}}
	}
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{}
		if weight > 0 {
			p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: term(weight)}
		} else {
			p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: term(-weight),
			}
		}
	}
}

// After any changes of pods and nodes, and attempts to preempt, verdicts and scores equal a new state's.
func TestCountsThatAreKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := world(nil)
		where, nodes := map[string]bound{}, map[string]*corev1.Node{}
		apps, topologies := []string{"x", "y"}, []string{corev1.LabelHostname, corev1.LabelTopologyZone}
		draw := func(name string) *corev1.Pod {
			app, key := rapid.SampledFrom(apps).Draw(t, "of"), rapid.SampledFrom(topologies).Draw(t, "key")
			return testPod(name, cpu("1"), labelled("app", rapid.SampledFrom(apps).Draw(t, "app")),
				priority(rapid.Int32Range(0, 1).Draw(t, "priority")), rapid.SampledFrom([]func(*corev1.Pod){
					func(*corev1.Pod) {}, antiAffinity("app", app, key), affinity("app", app, key), spreadOver(key, "app", app),
					preferring("app", app, key, 7), preferring("app", app, key, -5),
					func(p *corev1.Pod) {
						spreadOver(key, "app", app)(p)
						p.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.ScheduleAnyway
						honor := corev1.NodeInclusionPolicyHonor
						p.Spec.TopologySpreadConstraints[0].NodeTaintsPolicy = &honor
					},
					func(p *corev1.Pod) {
						spreadOver(key, "app", app)(p)
						p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "0"}
					},
				}).Draw(t, "wants"))
		}
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			node := fmt.Sprint("n", rapid.IntRange(0, 3).Draw(t, "node"))
			name := fmt.Sprint("p", rapid.IntRange(0, 7).Draw(t, "pod"))
			switch b, there := where[name]; rapid.IntRange(0, 6).Draw(t, "what") {
			case 0:
				change := []func(*corev1.Node){zone(fmt.Sprint(rapid.IntRange(0, 1).Draw(t, "zone")))}
				if rapid.Bool().Draw(t, "tainted") {
					change = append(change, taint("k", corev1.TaintEffectNoSchedule))
				}
				nodes[node] = testNode(node, change...)
				s.setNode(nodes[node])
			case 1:
				s.removeNode(node)
				delete(nodes, node)
			case 2:
				if there {
					s.remove(s.pods[b.pod.UID])
					delete(where, name)
				}
			case 3:
				if there { // labels and deletion may change while a pod runs
					pod := b.pod.DeepCopy()
					pod.Labels["app"] = rapid.SampledFrom(apps).Draw(t, "relabelled")
					if rapid.Bool().Draw(t, "ends") {
						pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
					}
					s.update(s.pods[pod.UID], pod)
					where[name] = bound{pod, b.node}
				}
			default:
				if !there {
					where[name] = bound{draw(name), node}
					s.assign(newPodInfo(where[name].pod), node)
				}
			}
			fresh := world(nil)
			for _, n := range s.order { // in the same order
				fresh.setNode(nodes[n.name])
			}
			for _, name := range slices.Sorted(maps.Keys(where)) {
				fresh.assign(newPodInfo(where[name].pod), where[name].node)
			}
			pod := draw(fmt.Sprint("new", i))
			is, want := verdicts(s, pod), verdicts(fresh, pod)
			require.Equal(t, want, is)
			if n, failed := s.pick(newPodInfo(pod)); failed != nil {
				failed.preempt()
			} else {
				require.NotNil(t, n)
			}
			require.Equal(t, want, verdicts(s, pod))
			require.LessOrEqual(t, len(s.tallies), mostTallies)
		}
	})
}

// verdicts returns the results of filters and scores for each node.
func verdicts(s *state, pod *corev1.Pod) map[string]string {
	c := s.cycle(newPodInfo(pod))
	active := c.prepare()
	out := map[string]string{}
	for _, n := range s.order {
		for _, f := range active {
			out[n.name] += fmt.Sprint(f.name, f.refuse(c, n) == nil, " ")
		}
	}
	for i := range c.profile.scores {
		f := &c.profile.scores[i]
		if f.prepare != nil && !f.prepare(c) {
			continue
		}
		for _, n := range s.order {
			out[n.name] += fmt.Sprint(f.name, f.of(c, n), " ")
		}
	}
	return out
}

func TestTalliesAreBounded(t *testing.T) {
	s := world([]*corev1.Node{testNode("a")})
	for i := range 3 * mostTallies {
		for range 2 {
			pod := testPod(fmt.Sprint(i), labelled("app", fmt.Sprint(i)), spreadOver(corev1.LabelHostname, "app", fmt.Sprint(i)))
			_, failed := s.pick(newPodInfo(pod))
			require.Nil(t, failed)
		}
		pod := testPod("often", labelled("app", "often"), spreadOver(corev1.LabelHostname, "app", "often"))
		_, failed := s.pick(newPodInfo(pod))
		require.Nil(t, failed)
		if i == 0 {
			s.assign(newPodInfo(pod), "a")
		}
	}
	require.Len(t, s.tallies, mostTallies)
	s.remove(s.pods[types.UID("often")])
	for _, t := range s.tallies {
		if t.total != 0 {
			panic("a pod that is gone is counted")
		}
	}
}

package pod

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/pod/static"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

func asking(p *corev1.Pod, memory string) *corev1.Pod {
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	return p
}

// TestCriticalPodsMakeRoom checks that a static pod that does not fit preempts as few pods as possible.
func TestCriticalPodsMakeRoom(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		critical := asking(podOf("critical", "sleep", "1000000"), "100Mi")
		critical.Spec.Priority = new(int32(2_000_000_000))
		r.create(critical)
		r.create(asking(podOf("small", "sleep", "1000000"), "200Mi"))
		r.create(asking(podOf("large", "sleep", "1000000"), "600Mi"))
		r.pass(time.Second)
		require.Len(t, r.running(), 3)
		r.m.StartStatic(asking(staticPod("static", "static", "sleep", "1000000"), "500Mi"), "a.yaml")
		r.pass(time.Second)
		require.NotContains(t, r.events.text(), "OutOf")
		r.pass(time.Minute)
		require.Len(t, r.running(), 3, "critical, small and static")
		large := r.pod("large")
		require.Equal(t, corev1.PodFailed, large.Status.Phase)
		require.Equal(t, "Preempting", large.Status.Reason)
		require.Equal(t, corev1.ConditionTrue, conditionOf(large, corev1.DisruptionTarget).Status)
		for _, name := range []string{"critical", "small"} {
			require.Equal(t, corev1.PodRunning, r.pod(name).Status.Phase)
		}
		p, _ := r.m.Find("default", "static", "")
		require.Equal(t, corev1.PodRunning, p.Status.Phase)

		// Neither are critical pods preempted, nor other pods for an ordinary one.
		r.m.StartStatic(asking(staticPod("more", "more", "sleep", "1000000"), "900Mi"), "a.yaml")
		r.create(asking(podOf("ordinary", "sleep", "1000000"), "900Mi"))
		r.pass(time.Minute)
		p, _ = r.m.Find("default", "more", "")
		require.Equal(t, "OutOfmemory", p.Status.Reason)
		require.Equal(t, "OutOfmemory", r.pod("ordinary").Status.Reason)
		require.Len(t, r.running(), 3)
	})
}

func TestTheNextProcessWaitsForRoom(t *testing.T) {
	begin := func(r *rig, isStatic bool) {
		victim := asking(podOf("victim", "slow"), "900Mi")
		victim.Spec.TerminationGracePeriodSeconds = new(int64(60))
		r.create(victim)
		r.pass(time.Second)
		if isStatic {
			r.static = []*corev1.Pod{asking(staticPod("critical", "critical", "sleep", "1000000"), "900Mi")}
			r.m.StartStatic(r.static[0], "critical.yaml")
		} else {
			critical := asking(podOf("critical", "sleep", "1000000"), "900Mi")
			critical.Spec.Priority = new(int32(2_000_000_000))
			r.create(critical)
		}
		r.pass(10 * time.Second)
		require.Equal(t, corev1.PodPending, r.found("critical"))
		require.Len(t, r.running(), 1)
	}
	after := func(r *rig) {
		r.pass(10 * time.Second)
		require.Equal(t, corev1.PodPending, r.found("critical"))
		require.Len(t, r.running(), 1, "it waits")
		r.pass(2 * time.Minute)
		require.Equal(t, corev1.PodRunning, r.found("critical"))
		require.Len(t, r.running(), 1)
		require.Equal(t, "Preempting", r.pod("victim").Status.Reason)
		require.Empty(t, r.m.rooms.waits)
	}
	for name, isStatic := range map[string]bool{"a static pod": true, "another": false} {
		t.Run(name, func(t *testing.T) {
			with(t, fake.Config{Programs: map[string]fake.Program{"slow": stubborn(time.Hour)}}, func(r *rig) {
				begin(r, isStatic)
				r.restart()
				after(r)
				r.restart()
				r.pass(time.Second)
				require.Equal(t, corev1.PodRunning, r.found("critical"))
			})
		})
		t.Run(name+", before the status of what makes room was written", func(t *testing.T) {
			with(t, fake.Config{Programs: map[string]fake.Program{"slow": stubborn(time.Hour)}}, func(r *rig) {
				begin(r, isStatic)
				victim := r.pod("victim")
				victim.Status.Reason, victim.Status.Message, victim.Status.Conditions = "", "", nil
				r.stop()
				r.api.put(victim)
				r.start()
				after(r)
			})
		})
	}
	t.Run("no server answers", func(t *testing.T) {
		with(t, fake.Config{Programs: map[string]fake.Program{"slow": stubborn(time.Hour)}}, func(r *rig) {
			begin(r, true)
			r.away = true
			r.restart()
			r.pass(10 * time.Second)
			require.Len(t, r.running(), 1, "it waits for one of which it knows nothing but the name")
			r.pass(time.Minute)
			require.Len(t, r.running(), 2, "but only until that would have ended")
			r.away = false
			r.restart()
			r.pass(2 * time.Minute)
			require.Len(t, r.running(), 1)
		})
	})
	t.Run("what waited is gone", func(t *testing.T) {
		with(t, fake.Config{Programs: map[string]fake.Program{"slow": stubborn(time.Hour)}}, func(r *rig) {
			begin(r, true)
			r.static = nil
			r.restart()
			require.Empty(t, r.m.rooms.waits)
			require.NoError(t, os.WriteFile(filepath.Join(r.dir, "data", "rooms.json"), []byte("{"), 0o600))
			r.restart()
			require.Empty(t, r.m.rooms.waits)
		})
	})
}

func (r *rig) found(name string) corev1.PodPhase {
	p, _ := r.m.Find("default", name, "")
	if p == nil {
		return ""
	}
	return p.Status.Phase
}

// TestACriticalPodOfLowerPriorityMakesRoom checks that critical pods can be preempted, but static ones cannot.
func TestACriticalPodOfLowerPriorityMakesRoom(t *testing.T) {
	node := &corev1.Node{
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100")}},
	}
	one := func(priority int32) *corev1.Pod {
		p := asking(podOf("p"), "60")
		p.Spec.Priority = &priority
		return p
	}
	dns := one(2_000_000_000)
	require.Equal(t, []*corev1.Pod{dns}, Victims(one(2_000_001_000), node, []*corev1.Pod{dns}))
	require.Empty(t, Victims(one(2_000_000_000), node, []*corev1.Pod{dns}))
	dns.Annotations = map[string]string{static.SourceAnnotation: static.FromFile}
	require.Empty(t, Victims(one(2_000_001_000), node, []*corev1.Pod{dns}))
}

// TestVictims checks that the pod fits without the victims, that no victim could stay, and that each is preemptable.
func TestVictims(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceMemory: resource.MustParse("100"), corev1.ResourceCPU: resource.MustParse("100"),
			corev1.ResourcePods: resource.MustParse("4")}}}
		one := func(name string) *corev1.Pod {
			p := podOf(name)
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
				corev1.ResourceMemory: *resource.NewQuantity(rapid.Int64Range(0, 110).Draw(t, "memory"), resource.BinarySI),
				corev1.ResourceCPU:    *resource.NewQuantity(rapid.Int64Range(0, 110).Draw(t, "cpu"), resource.DecimalSI)}
			p.Status.QOSClass = rapid.SampledFrom([]corev1.PodQOSClass{
				corev1.PodQOSBestEffort, corev1.PodQOSBurstable, corev1.PodQOSGuaranteed,
			}).Draw(t, "class")
			if rapid.Bool().Draw(t, "critical") {
				p.Spec.Priority = new(rapid.SampledFrom([]int32{2_000_000_000, 2_000_001_000}).Draw(t, "priority"))
			}
			if rapid.Bool().Draw(t, "static") {
				p.Annotations = map[string]string{static.SourceAnnotation: static.FromFile}
			}
			return p
		}
		p := one("p")
		var others []*corev1.Pod
		for range rapid.IntRange(0, 6).Draw(t, "others") {
			others = append(others, one("o"))
		}
		victims := Victims(p, node, others)
		if len(victims) == 0 {
			return
		}
		stay := slices.DeleteFunc(slices.Clone(others), func(o *corev1.Pod) bool { return slices.Contains(victims, o) })
		if v := Admit(p, node, stay); v != nil {
			t.Fatalf("it does not fit: %v", v)
		}
		for _, v := range victims {
			if eviction.Critical(v) && (static.IsStatic(v) || *v.Spec.Priority >= priority(p)) ||
				Admit(p, node, append(slices.Clone(stay), v)) == nil {
				t.Fatalf("%v should stay", v)
			}
		}
	})
	port := podOf("a")
	port.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 1}}
	require.Empty(t, Victims(port, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, []*corev1.Pod{port}),
		"ports are no resource")
}

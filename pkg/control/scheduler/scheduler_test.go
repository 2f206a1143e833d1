package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPick(t *testing.T) {
	port := func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	}
	gpu := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	}
	restartsAll := func(p *corev1.Pod) {
		p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{
			{Action: corev1.ContainerRestartRuleActionRestartAllContainers},
		}
	}
	declares := func(n *corev1.Node) {
		n.Status.DeclaredFeatures = []string{"FromTheFuture", "RestartAllContainersOnContainerExits"}
	}
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	tiny := func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1") }
	for name, c := range map[string]struct {
		nodes []*corev1.Node
		there []bound
		pod   *corev1.Pod
		want  string // name of the node
		why   string // or the message
	}{
		"no nodes": {pod: testPod("p"), why: "no nodes available to schedule pods"},
		"any":      {nodes: []*corev1.Node{testNode("a")}, pod: testPod("p"), want: "a"},
		"cpu": {
			nodes: []*corev1.Node{testNode("a")}, pod: testPod("p", cpu("5")),
			why: "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims " +
				"found for incoming pod.",
		},
		"gpu": {
			nodes: []*corev1.Node{testNode("a")}, pod: testPod("p", gpu),
			why: "0/1 nodes are available: 1 Insufficient example.com/gpu. preemption: 0/1 nodes are available: 1 No " +
				"preemption victims found for incoming pod.",
		},
		"full of pods": {
			nodes: []*corev1.Node{testNode("a", tiny)}, there: []bound{{testPod("o"), "a"}}, pod: testPod("p"),
			why: "0/1 nodes are available: 1 Too many pods. preemption: 0/1 nodes are available: 1 No preemption victims " +
				"found for incoming pod.",
		},
		"cordoned": {
			nodes: []*corev1.Node{testNode("a", cordoned)}, pod: testPod("p"),
			why: "0/1 nodes are available: 1 node(s) were unschedulable. preemption: 0/1 nodes are available: 1 Preemption is " +
				"not helpful for scheduling.",
		},
		"taint": {
			nodes: []*corev1.Node{testNode("a", taint("k", corev1.TaintEffectNoSchedule)), testNode("b")}, pod: testPod("p"),
			want: "b",
		},
		"two reasons": {
			nodes: []*corev1.Node{testNode("a", taint("k", corev1.TaintEffectNoExecute)), testNode("b"), testNode("c")},
			pod:   testPod("p", cpu("5")),
			why: "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. preemption: 0/3 nodes " +
				"are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod.",
		},
		"soft taint": {
			nodes: []*corev1.Node{testNode("a", taint("k", corev1.TaintEffectPreferNoSchedule)), testNode("b")},
			pod:   testPod("p"), want: "b",
		},
		"selector": {
			nodes: []*corev1.Node{testNode("a"), testNode("b")},
			pod:   testPod("p", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "b"} }),
			want:  "b",
		},
		"feature": {
			nodes: []*corev1.Node{testNode("a"), testNode("b", declares)}, pod: testPod("p", restartsAll), want: "b",
		},
		"feature that no node has": {
			nodes: []*corev1.Node{testNode("a")}, pod: testPod("p", restartsAll),
			why: "0/1 nodes are available: 1 node(s) didn't match Pod's required features. preemption: 0/1 nodes are " +
				"available: 1 Preemption is not helpful for scheduling.",
		},
		"port": {
			nodes: []*corev1.Node{testNode("a"), testNode("b")}, there: []bound{{testPod("o", port), "a"}},
			pod: testPod("p", port), want: "b",
		},
		"least": {
			nodes: []*corev1.Node{testNode("a"), testNode("b")}, there: []bound{{testPod("o", cpu("2")), "a"}},
			pod: testPod("p"), want: "b",
		},
		"group spreads": {
			nodes: []*corev1.Node{testNode("a"), testNode("b")},
			there: []bound{{testPod("o", labelled("app", "x")), "a"}, {testPod("big", cpu("500m")), "b"}},
			pod:   testPod("p", labelled("app", "x")), want: "b",
		},
		"anti-affinity": {
			nodes: []*corev1.Node{testNode("a"), testNode("b")}, there: []bound{{testPod("o", labelled("app", "x")), "a"}},
			pod: testPod("p", antiAffinity("app", "x", corev1.LabelHostname)), want: "b",
		},
		"anti-affinity of another pod": {
			nodes: []*corev1.Node{testNode("a")},
			there: []bound{{testPod("o", antiAffinity("app", "x", corev1.LabelHostname)), "a"}},
			pod:   testPod("p", labelled("app", "x")),
			why: "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules. preemption: 0/1 " +
				"nodes are available: 1 No preemption victims found for incoming pod.",
		},
		"affinity": {
			nodes: []*corev1.Node{testNode("a", zone("1")), testNode("b", zone("2"))},
			there: []bound{{testPod("o", labelled("app", "x")), "b"}},
			pod:   testPod("p", affinity("app", "x", corev1.LabelTopologyZone)), want: "b",
		},
		"affinity to itself": {
			nodes: []*corev1.Node{testNode("a", zone("1"))},
			pod:   testPod("p", labelled("app", "x"), affinity("app", "x", corev1.LabelTopologyZone)), want: "a",
		},
		"affinity to no pod": {
			nodes: []*corev1.Node{testNode("a", zone("1"))}, pod: testPod("p", affinity("app", "x", corev1.LabelTopologyZone)),
			why: "0/1 nodes are available: 1 node(s) didn't match pod affinity rules. preemption: 0/1 nodes are available: 1 " +
				"No preemption victims found for incoming pod.",
		},
		"spread": {
			nodes: []*corev1.Node{testNode("a", zone("1")), testNode("b", zone("2"))},
			there: []bound{{testPod("o", labelled("app", "x")), "a"}, {testPod("big", cpu("3")), "b"}},
			pod:   testPod("p", labelled("app", "x"), spreadOver(corev1.LabelTopologyZone, "app", "x")), want: "b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := world(c.nodes, c.there...)
			n, failed := s.pick(newPodInfo(c.pod))
			if c.want != "" {
				require.Nil(t, failed)
				require.Equal(t, c.want, n.name)
				return
			}
			require.NotNil(t, failed)
			_, text := failed.preempt()
			require.Equal(t, c.why, failed.message(text))
		})
	}
}

func TestPreemptionTakesTheLeast(t *testing.T) {
	for name, c := range map[string]struct {
		there []bound
		pod   *corev1.Pod
		node  string
		gone  []types.UID
	}{
		"the less important": {
			[]bound{{testPod("x", cpu("4"), priority(5)), "a"}, {testPod("y", cpu("4"), priority(1)), "b"}},
			testPod("p", cpu("1"), priority(9)), "b", []types.UID{"y"},
		},
		"the fewer": {
			[]bound{{testPod("x", cpu("2")), "a"}, {testPod("z", cpu("2")), "a"}, {testPod("y", cpu("4")), "b"}},
			testPod("p", cpu("4"), priority(9)), "b", []types.UID{"y"},
		},
		"only what is needed": {
			[]bound{{testPod("x", cpu("3")), "a"}, {testPod("z", cpu("1")), "a"}, {testPod("y", cpu("4"), priority(9)), "b"}},
			testPod("p", cpu("1"), priority(9)), "a", []types.UID{"x"},
		},
		"what keeps it off": {
			[]bound{
				{testPod("x", antiAffinity("app", "p", corev1.LabelHostname)), "a"},
				{testPod("y", cpu("4"), priority(9)), "b"},
			}, testPod("p", cpu("1"), labelled("app", "p"), priority(9)), "a", []types.UID{"x"},
		},
		"nobody": {
			[]bound{{testPod("x", cpu("4"), priority(9)), "a"}, {testPod("y", cpu("4"), priority(9)), "b"}},
			testPod("p", cpu("1"), priority(9)),
			"",
			nil,
		},
		"no point": {[]bound{{testPod("x"), "a"}}, testPod("p", cpu("9"), priority(9)), "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := world([]*corev1.Node{testNode("a"), testNode("b")}, c.there...)
			_, failed := s.pick(newPodInfo(c.pod))
			require.NotNil(t, failed)
			e, _ := failed.preempt()
			if c.node == "" {
				require.Nil(t, e)
				return
			}
			require.NotNil(t, e)
			require.Equal(t, c.node, e.node.name)
			var gone []types.UID
			for _, v := range e.victims {
				gone = append(gone, v.pod.UID)
			}
			if name == "only what is needed" {
				require.Len(t, gone, 1)
				return
			}
			require.Equal(t, c.gone, gone)
		})
	}
}

// A pod waits on its nominated node for the pods that it preempted. It does not wait for other terminating pods, nor
// on a node that now rejects it for another reason.
func TestWaitsForThePreempted(t *testing.T) {
	terminating := func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }
	preempted := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler},
		}
	}
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	const waits = " preemption: not eligible due to a terminating pod on the nominated node."
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		node *corev1.Node
		text string // "": it preempts the less important pod on the other node
	}{
		"preempted":          {testPod("x", cpu("4"), priority(5), terminating, preempted), testNode("a"), waits},
		"deleted by others":  {testPod("x", cpu("4"), priority(5), terminating), testNode("a"), ""},
		"cordoned meanwhile": {testPod("x", cpu("4"), priority(5), terminating, preempted), testNode("a", cordoned), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := world([]*corev1.Node{c.node, testNode("b")}, bound{c.pod, "a"}, bound{testPod("y", cpu("4"), priority(1)), "b"})
			p := newPodInfo(testPod("p", cpu("4"), priority(9)))
			s.nominate(p, s.nodes["a"])
			_, failed := s.pick(p)
			e, text := failed.preempt()
			require.Equal(t, c.text, text)
			require.Equal(t, c.text == "", e != nil && e.node.name == "b")
		})
	}
}

// During a resize, a pod counts with the maximum of its desired, allocated and actual resources.
func TestResizesCount(t *testing.T) {
	of := func(cpu string) *corev1.ResourceRequirements {
		return &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
	}
	p := testPod("p")
	p.Spec.NodeName, p.Generation, p.Spec.Resources = "a", 1, of("2")
	version := func(change func(*corev1.Pod)) *corev1.Pod { p = p.DeepCopy(); change(p); return p }
	says := func(p *corev1.Pod, allocated, has string) {
		p.Status.ObservedGeneration, p.Status.AllocatedResources, p.Status.Resources = p.Generation, of(allocated).
			Requests, of(has)
	}
	s := world([]*corev1.Node{testNode("a")}, bound{p, "a"})
	used := func() int64 { return s.nodes["a"].used.cpu }
	s.update(s.pods[p.UID], version(func(p *corev1.Pod) { says(p, "2", "2") }))
	require.EqualValues(t, 2000, used())
	s.update(s.pods[p.UID], version(func(p *corev1.Pod) { p.Generation, p.Spec.Resources = 2, of("1") }))
	require.EqualValues(t, 2000, used(), "it has that still")
	require.True(t, s.update(s.pods[p.UID], version(func(p *corev1.Pod) { says(p, "1", "1") })),
		"done, though it was never seen under way")
	require.EqualValues(t, 1000, used())
	s.update(s.pods[p.UID], version(func(p *corev1.Pod) {
		p.Generation, p.Spec.Resources = 3, of("100")
	}))
	require.EqualValues(t, 100_000, used())
	s.update(s.pods[p.UID], version(func(p *corev1.Pod) {
		says(p, "1", "1")
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible},
		}
	}))
	require.EqualValues(t, 1000, used(), "it will not get that")
}

func TestStateCountsRight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := world(nil)
		where := map[string]string{}
		nodes := map[string]bool{}
		names := []string{"a", "b", "c"}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			node := rapid.SampledFrom(names).Draw(t, "node")
			pod := fmt.Sprint("p", rapid.IntRange(0, 9).Draw(t, "pod"))
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				s.setNode(testNode(node, zone(rapid.SampledFrom(names).Draw(t, "zone"))))
				nodes[node] = true
			case 1:
				s.removeNode(node)
				delete(nodes, node)
			case 2:
				if where[pod] == "" {
					s.assign(newPodInfo(testPod(pod, cpu("100m"), labelled("app", "x"))), node)
					where[pod] = node
				}
			case 3:
				if where[pod] != "" {
					s.remove(s.pods[types.UID(pod)])
					delete(where, pod)
				}
			}
		}
		count, groups := map[string]int{}, map[string]int{}
		for _, n := range where {
			count[n]++
		}
		for name, n := range s.nodes {
			require.Len(t, n.pods, count[name])
			require.EqualValues(t, 100*count[name], n.used.cpu)
			require.Equal(t, nodes[name], n.at >= 0)
			groups[n.zone] += count[name]
		}
		require.Len(t, s.order, len(nodes))
		for i, n := range s.order {
			require.Equal(t, i, n.at)
		}
		for _, zones := range s.siblings {
			for z, c := range zones {
				require.Equal(t, groups[z], c)
			}
		}
		require.Equal(t, len(where), s.priorities[0])
	})
}

// BenchmarkPick measures one scheduling attempt for pods of one workload, with up to 5,000 existing pods.
func BenchmarkPick(b *testing.B) {
	wants := map[string]func(*corev1.Pod){
		"plain": func(*corev1.Pod) {}, "affinity": affinity("app", "x", corev1.LabelTopologyZone),
		"anti-affinity": antiAffinity("app", "y", corev1.LabelHostname),
		"spread-zones":  spreadOver(corev1.LabelTopologyZone, "app", "x"),
		"spread-nodes":  spreadOver(corev1.LabelHostname, "app", "x"),
		"preferred":     preferring("app", "x", corev1.LabelHostname, -10),
	}
	for _, size := range []int{1000, 5000} {
		var nodes []*corev1.Node
		for i := range size {
			nodes = append(nodes, testNode(fmt.Sprint("n", i), zone(fmt.Sprint(i%3))))
		}
		for _, name := range slices.Sorted(maps.Keys(wants)) {
			b.Run(fmt.Sprint(name, "/", size), func(b *testing.B) {
				s := world(nodes)
				b.ReportAllocs()
				for i := range b.N {
					p := newPodInfo(testPod(fmt.Sprint(i), labelled("app", "x"), cpu("1m"), wants[name]))
					n, failed := s.pick(p)
					if failed != nil {
						b.Fatal(failed.message(""))
					}
					s.assign(p, n.name)
					if i%5000 == 4999 {
						b.StopTimer()
						s = world(nodes)
						b.StartTimer()
					}
				}
			})
		}
	}
}

// For any sequence of scheduling, preemption and removal: no node is overcommitted, two pods with anti-affinity
// never share a node, and a pod is unschedulable only if it fits on no node.
func TestNoNodeIsOverbooked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var nodes []*corev1.Node
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			nodes = append(nodes, testNode(fmt.Sprint("n", i), zone(fmt.Sprint(i%2))))
		}
		s := world(nodes)
		for i := range rapid.IntRange(1, 40).Draw(t, "pods") {
			change := []func(*corev1.Pod){
				cpu(fmt.Sprint(rapid.IntRange(1, 4).Draw(t, "cpu"))), priority(rapid.Int32Range(0, 2).Draw(t, "priority")),
			}
			if rapid.Bool().Draw(t, "anti-affinity") {
				change = append(change, labelled("app", "x"), antiAffinity("app", "x", corev1.LabelHostname))
			}
			p := newPodInfo(testPod(fmt.Sprint(i), change...))
			n, failed := s.pick(p)
			if failed != nil {
				c := s.cycle(p)
				active := c.prepare()
				for _, n := range s.order {
					require.GreaterOrEqual(t, c.refusedBy(active, n), 0)
				}
				before := fmt.Sprintf("%+v", *failed.cycle.state)
				e, _ := failed.preempt()
				require.Equal(t, before, fmt.Sprintf("%+v", *failed.cycle.state), "preempt changed the state")
				if e == nil {
					continue
				}
				for _, v := range e.victims {
					require.Less(t, v.priority, p.priority)
					s.remove(v)
				}
				n, failed = s.pick(p)
				require.Nil(t, failed, "the victims made room")
			}
			s.assign(p, n.name)
			for _, n := range s.order {
				require.LessOrEqual(t, n.used.cpu, n.most.cpu)
				require.LessOrEqual(t, n.siblings["default/app=x,"], 1)
			}
		}
	})
}

package scheduler

import (
	"log/slog"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/run"
)

func scheduledBy(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.SchedulerName = name }
}

func ofTask(p *corev1.Pod) {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "tasks.coracle.dev/v1alpha1", Kind: "Task", Name: "t", UID: "t", Controller: &yes},
	}
}

func ofNode(cpu, memory string, heartbeat int) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Allocatable[corev1.ResourceCPU], n.Status.Allocatable[corev1.ResourceMemory] = resource.MustParse(cpu),
			resource.MustParse(memory)
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Unix(int64(heartbeat), 0)},
		}
	}
}

func TestTheTaskProfile(t *testing.T) {
	nodes := []*corev1.Node{
		testNode("a", ofNode("4", "8Gi", 1)), testNode("b", ofNode("4", "8Gi", 3)), testNode("c", ofNode("4", "8Gi", 2)),
	}
	larger := []*corev1.Node{
		testNode("a", ofNode("4", "9Gi", 1)), testNode("b", ofNode("4", "8Gi", 3)), testNode("c", ofNode("8", "2Gi", 2)),
	}
	for name, c := range map[string]struct {
		nodes []*corev1.Node
		there []bound
		pod   *corev1.Pod
		want  string
	}{
		"all equal: the latest heartbeat": {nodes: nodes, want: "b"},
		"the most free CPU":               {nodes: larger, want: "c"},
		"the most free memory":            {nodes: larger[:2], want: "a"},
		"what others use is not free":     {nodes: nodes, there: []bound{{testPod("x", cpu("1")), "b"}}, want: "c"},
		"fewest tasks, however little it has left": {
			nodes: larger, there: []bound{{testPod("x", ofTask), "c"}, {testPod("y", scheduledBy(TaskProfile)), "a"}}, want: "b",
		},
		"others' pods are no tasks": {
			nodes: larger, there: []bound{{testPod("x"), "c"}, {testPod("y"), "c"}, {testPod("z", ofTask), "a"}}, want: "c",
		},
		"tasks that an external worker runs for others": {
			nodes: []*corev1.Node{testNode("a", ofNode("8", "8Gi", 3), func(n *corev1.Node) {
				n.Labels[tasks.External] = "true"
				n.Status.Capacity = maps.Clone(n.Status.Allocatable)
				n.Status.Capacity[corev1.ResourcePods] = resource.MustParse("111")
			}), nodes[2]}, want: "c",
		},
		"filters hold": {
			nodes: larger,
			pod: testPod("p", cpu("1"), func(p *corev1.Pod) {
				p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "b"}
			}), want: "b",
		},
		"a terminating task is still on its node": {
			nodes: nodes[:2],
			there: []bound{{testPod("x", ofTask, func(p *corev1.Pod) { at := metav1.Now(); p.DeletionTimestamp = &at }), "b"}},
			want:  "a",
		},
		"the default profile counts no tasks first": {
			nodes: larger, there: []bound{{testPod("x", ofTask), "c"}}, pod: testPod("p", cpu("1")), want: "c",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := world(c.nodes, c.there...)
			p := c.pod
			if p == nil {
				p = testPod("p")
			}
			if name[:11] != "the default" {
				p.Spec.SchedulerName = TaskProfile
			}
			n, failed := s.pick(newPodInfo(p))
			require.Nil(t, failed)
			require.Equal(t, c.want, n.name)
		})
	}
}

// Tasks are counted on all nodes, also in a cluster where other profiles look at a sample.
func TestTasksAreCountedOnAllNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newState(1, func(string) map[string]string { return nil })
		count := rapid.IntRange(101, 300).Draw(t, "nodes")
		for i := range count {
			s.setNode(testNode("n" + time.Duration(i).String()))
		}
		tasks := rapid.IntRange(0, 2*count).Draw(t, "tasks")
		for i := range tasks {
			p := newPodInfo(testPod(time.Duration(i).String(), scheduledBy(TaskProfile)))
			n, failed := s.pick(p)
			require.Nil(t, failed)
			s.assign(p, n.name)
		}
		for _, n := range s.order {
			require.InDelta(t, float64(tasks)/float64(count), n.tasks, 0.9999, "tasks are even")
		}
	})
}

func TestProfilesByName(t *testing.T) {
	s := &Scheduler{
		log:   slog.New(slog.DiscardHandler),
		queue: newQueue(),
		state: newState(10, func(string) map[string]string { return nil }),
	}
	s.guard = run.Guard{Log: s.log}
	defer s.drop()
	for name, taken := range map[string]bool{"default-scheduler": true, "task": true, "other": false, "": false} {
		p := testPod("p-"+name, scheduledBy(name))
		podHandler{s}.OnAdd(p, false)
		require.Equal(t, taken, s.queue.pods[p.UID] != nil, name)
	}
}

// No task is placed on a node that is about to be declared lost. Without another node, it waits for the node's next
// heartbeat. Other pods depend only on conditions and taints.
func TestNoTaskGoesToASilentNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Scheduler{
			log:   slog.New(slog.DiscardHandler),
			queue: newQueue(),
			state: newState(10, func(string) map[string]string { return nil }),
		}
		s.guard = run.Guard{Log: s.log}
		asked, synced := 0, false // whether leases are watched, and known
		s.heartbeats.patience, s.heartbeats.start, s.heartbeats.synced = tasks.DefaultPatience, func() {
			asked++
		}, func() bool { return synced }
		s.state.silent = s.heartbeats.silent
		defer s.drop()
		beat := func(node string) {
			renewed := metav1.NewMicroTime(time.Now().Add(-time.Hour)) // the node's clock is wrong
			leaseHandler{s}.OnUpdate(&coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node},
			},
				&coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node},
					Spec:       coordinationv1.LeaseSpec{RenewTime: &renewed},
				})
		}
		place := func(p *corev1.Pod) string {
			n, failed := s.state.pick(newPodInfo(p))
			if failed != nil {
				return failed.message("")
			}
			return n.name
		}
		task := testPod("p", scheduledBy(TaskProfile))
		nodeHandler{s}.OnAdd(testNode("a"), false)
		nodeHandler{s}.OnAdd(testNode("b"), false)
		s.state.assign(newPodInfo(testPod("x", ofTask)), "b")
		require.Equal(t, "a", place(testPod("p")))
		require.Zero(t, asked, "leases are watched for tasks only")
		require.Equal(t, "a", place(task))
		require.Positive(t, asked)
		time.Sleep(time.Hour)
		require.Equal(t, "a", place(task), "before leases are known, nothing is said of a node that was not heard of")
		synced = true
		for _, node := range []string{"a", "b"} {
			beat(node)
		}
		time.Sleep(20 * time.Second)
		beat("b")
		require.Equal(t, "a", place(task), "it may still be heard of in time")
		time.Sleep(9 * time.Second)
		require.Equal(t, "b", place(task), "though it has a task already")
		require.Equal(t, "a", place(testPod("p")))
		beat("a")
		require.Equal(t, "a", place(task))

		time.Sleep(time.Minute)
		require.Equal(t, "0/2 nodes are available: 2 node(s) sent no heartbeat.", place(task))
		podHandler{s}.OnAdd(task, false)
		p := s.queue.pop()
		s.queue.put(p)
		beat("c")
		require.Equal(t, unschedulable, p.where)
		beat("b")
		require.Equal(t, active, p.where)
	})
}

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// The start index of the next cycle stays valid after a node is removed.
func TestADeletedNodeIsNotLookedAt(t *testing.T) {
	s := world([]*corev1.Node{testNode("stays"), testNode("goes")})
	n, failed := s.pick(newPodInfo(testPod("first")))
	require.Nil(t, failed)
	s.assign(newPodInfo(testPod("first")), n.name)
	s.removeNode("goes")
	n, failed = s.pick(newPodInfo(testPod("second")))
	require.Nil(t, failed)
	require.Equal(t, "stays", n.name)
}

// model is a cluster of a few nodes and pods as a naive scheduler sees it. It is also the client of the scheduler
// under test. Writes come back as events, in order but later.
type model struct {
	client.Interface
	*rapid.T
	s *Scheduler

	nodes map[string]*corev1.Node
	pods  map[string]*corev1.Pod // the server's state
	// seen contains the pods that were delivered to the scheduler, assumed the pods that it has placed but whose
	// binding it has not seen.
	seen    map[string]*corev1.Pod
	assumed map[string]*corev1.Pod
	events  []func()
	writes  []func(context.Context)
	refuse  error // the error of the next bindings
	next    int
}

func (m *model) SubResource(string) ctrl.SubResourceClient { return binder{m: m} }
func (m *model) Status() ctrl.SubResourceWriter            { return binder{m: m} }

func (m *model) Delete(_ context.Context, o ctrl.Object, _ ...ctrl.DeleteOption) error {
	if m.pods[o.GetName()] == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, o.GetName())
	}
	m.remove(o.GetName())
	return nil
}

type binder struct {
	ctrl.SubResourceClient
	m *model
}

func (binder) Update(context.Context, ctrl.Object, ...ctrl.SubResourceUpdateOption) error {
	return nil
}

func (binder) Patch(context.Context, ctrl.Object, ctrl.Patch, ...ctrl.SubResourcePatchOption) error {
	return nil
}

func (b binder) Create(_ context.Context, o, sub ctrl.Object, _ ...ctrl.SubResourceCreateOption) error {
	m, name, node := b.m, o.GetName(), sub.(*corev1.Binding).Target.Name
	pod := m.pods[name]
	switch {
	case pod == nil:
		delete(m.assumed, name)
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	case pod.Spec.NodeName != "":
		delete(m.assumed, name)
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, name, errors.New("bound already"))
	case m.refuse != nil:
		delete(m.assumed, name)
		return m.refuse
	}
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	m.update(pod)
	return nil
}

func (m *model) update(pod *corev1.Pod) {
	was := m.pods[pod.Name]
	m.pods[pod.Name] = pod
	m.events = append(m.events, func() {
		if m.seen[pod.Name] = pod; pod.Spec.NodeName != "" {
			delete(m.assumed, pod.Name)
		}
		if was == nil {
			podHandler{m.s}.OnAdd(pod, false)
		} else {
			podHandler{m.s}.OnUpdate(was, pod)
		}
	})
}

func (m *model) remove(name string) {
	pod := m.pods[name]
	delete(m.pods, name)
	m.events = append(m.events, func() {
		delete(m.seen, name)
		delete(m.assumed, name)
		podHandler{m.s}.OnDelete(pod)
	})
}

func (m *model) deliver() {
	if len(m.events) > 0 {
		f := m.events[0]
		m.events = m.events[1:]
		f()
	}
}

// known returns a pod as the scheduler accounts it.
func (m *model) known(name string) *corev1.Pod {
	if p := m.assumed[name]; p != nil {
		return p
	}
	return m.seen[name]
}

// where returns the node that a pod is accounted to as far as the scheduler can know, or "".
func (m *model) where(name string) string { return m.known(name).Spec.NodeName }

func cpuOf(p *corev1.Pod) int64 { return p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue() }

// fits reports whether a pod fits on a node, by looking at everything.
func (m *model) fits(pod *corev1.Pod, node *corev1.Node) bool {
	if node.Spec.Unschedulable {
		return false
	}
	left := node.Status.Allocatable.Cpu().MilliValue() - cpuOf(pod)
	for name, other := range m.seen {
		n := m.s.state.nominations[other.UID]
		promised := n != nil && n.name == node.Name && *other.Spec.Priority >= *pod.Spec.Priority
		if name == pod.Name || m.where(name) != node.Name && !promised {
			continue
		}
		left -= cpuOf(m.known(name))
	}
	return left >= 0 && !m.crowded(pod, node)
}

// crowded reports whether the node's zone has another pod with anti-affinity to this one.
func (m *model) crowded(pod *corev1.Pod, node *corev1.Node) bool {
	if pod.Labels["app"] == "" {
		return false
	}
	for name, other := range m.seen {
		n := m.nodes[m.where(name)]
		if n != nil && name != pod.Name && other.Labels["app"] != "" &&
			n.Labels[corev1.LabelTopologyZone] == node.Labels[corev1.LabelTopologyZone] {
			return true
		}
	}
	return false
}

// schedule makes the scheduler decide about one pod and checks the decision. It returns false if no pod was active.
func (m *model) schedule() bool {
	if len(m.s.queue.heap) == 0 {
		require.Nil(m, m.s.next())
		return false
	}
	p := m.s.queue.heap[0]
	for _, q := range m.s.queue.heap {
		require.GreaterOrEqual(m, p.info.priority, q.info.priority, "the most important comes first")
	}
	pod := p.info.pod
	promised := m.s.state.nominations[pod.UID]
	write := m.s.next()
	require.NotNil(m, write)
	m.writes = append(m.writes, write)
	if n := p.info.node; n != nil {
		require.NotNil(m, m.nodes[n.name], "%s was put on %s, which is not there", pod.Name, n.name)
		require.True(m, m.fits(pod, m.nodes[n.name]), "%s does not fit on %s", pod.Name, n.name)
		assumed := pod.DeepCopy()
		assumed.Spec.NodeName = n.name
		m.assumed[pod.Name] = assumed
		return true
	}
	for name, node := range m.nodes {
		require.False(m, m.fits(pod, node), "%s was refused by %s, where it fits (promised: %v)", pod.Name, name, promised)
	}
	return true
}

func (m *model) write(i int) {
	f := m.writes[i]
	m.writes = slices.Delete(m.writes, i, i+1)
	f(context.Background())
}

func (m *model) check() {
	s := m.s.state
	require.Len(m, s.order, len(m.nodes))
	for i, n := range s.order {
		require.Equal(m, i, n.at)
		require.Same(m, s.nodes[n.name], n)
		require.NotNil(m, m.nodes[n.name])
	}
	count, used := map[string]int{}, map[string]int64{}
	for name, pod := range m.seen {
		if where := m.where(name); where != "" {
			count[where]++
			used[where] += cpuOf(m.known(name))
		} else if len(pod.Spec.SchedulingGates) > 0 {
			n := s.nodes[pod.Status.NominatedNodeName]
			if n != nil && n.at < 0 {
				n = nil
			}
			require.Equal(m, n, s.nominations[pod.UID], "%s is expected elsewhere", name)
		} else if m.pods[name] != nil {
			require.NotNil(m, m.s.queue.pods[pod.UID], "%s was lost", name)
		}
	}
	for name, n := range s.nodes {
		require.Len(m, n.pods, count[name], name)
		require.Equal(m, used[name], n.used.cpu, name)
		require.True(m, n.at >= 0 || len(n.pods) > 0, "%s is kept for nothing", name)
		for uid := range n.nominated {
			require.Same(m, n, s.nominations[uid])
		}
	}
	require.Len(m, s.pods, func() (sum int) {
		for _, c := range count {
			sum += c
		}
		return sum
	}())
	for uid, n := range s.nominations {
		require.GreaterOrEqual(m, n.at, 0, "%s is nominated to a node that is gone", uid)
		require.NotNil(m, n.nominated[uid])
		require.True(m, m.s.queue.pods[uid] != nil || s.gated[uid] != nil)
	}
	for uid := range s.gated {
		require.Nil(m, m.s.queue.pods[uid])
	}
	wide := 0
	for p := range m.s.queue.unschedulable {
		require.Same(m, p, m.s.queue.pods[p.info.pod.UID])
		require.Equal(m, unschedulable, p.where)
		if p.wide {
			wide++
		}
	}
	require.Equal(m, wide, m.s.queue.wide)
	for i, p := range m.s.queue.heap {
		require.Equal(m, i, p.index)
	}
}

// settle completes all pending writes and events. Then every waiting pod must have a reason to wait.
func (m *model) settle() {
	m.refuse = nil
	for range 10_000 {
		switch {
		case len(m.events) > 0:
			m.deliver()
		case len(m.writes) > 0:
			m.write(0)
		case m.schedule():
		case m.fire():
		default:
			for name, pod := range m.seen {
				if m.where(name) != "" || len(pod.Spec.SchedulingGates) > 0 {
					continue
				}
				for _, node := range m.nodes {
					require.False(m, m.fits(pod, node), "%s waits though it fits on %s", name, node.Name)
				}
			}
			return
		}
	}
	m.Fatal("it does not settle")
}

// fire ends the back-off of a pod. It returns false if none backs off.
func (m *model) fire() bool {
	for _, p := range m.s.queue.pods {
		if p.where == backingOff {
			m.s.backedOff(p)
			return true
		}
	}
	return false
}

// For any sequence of changes to nodes and pods, however late the scheduler sees them: pods are placed only where
// they fit, no pod is lost, and no pod stays pending that would fit.
func TestNodesComeAndGo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{
			T:       t,
			nodes:   map[string]*corev1.Node{},
			pods:    map[string]*corev1.Pod{},
			seen:    map[string]*corev1.Pod{},
			assumed: map[string]*corev1.Pod{},
		}
		m.s = &Scheduler{client: m, log: slog.New(slog.DiscardHandler), queue: newQueue(),
			state: newState(10, func(string) map[string]string { return nil })}
		m.s.metrics = newMetrics(nil, m.s)
		m.s.queue.later = func(*pending) {} // settle and the action "fire" are the clock
		defer m.s.drop()
		pick := func(pods map[string]*corev1.Pod) *corev1.Pod {
			names := make([]string, 0, len(pods))
			for name := range pods {
				names = append(names, name)
			}
			if len(names) == 0 {
				t.Skip("no pods")
			}
			slices.Sort(names)
			return pods[rapid.SampledFrom(names).Draw(t, "pod")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { m.check() },
			"node": func(t *rapid.T) {
				node := testNode(rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "node"),
					zone(rapid.SampledFrom([]string{"1", "2"}).Draw(t, "zone")))
				node.Status.Allocatable[corev1.ResourceCPU] = *resource.NewQuantity(rapid.Int64Range(1, 4).Draw(t, "cpu"),
					resource.DecimalSI)
				node.Spec.Unschedulable = rapid.IntRange(0, 4).Draw(t, "cordon") == 0
				was := m.nodes[node.Name]
				if m.nodes[node.Name] = node; was == nil {
					nodeHandler{m.s}.OnAdd(node, false)
				} else {
					nodeHandler{m.s}.OnUpdate(was, node)
				}
			},
			"node goes": func(t *rapid.T) {
				if node := m.nodes[rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "node")]; node != nil {
					delete(m.nodes, node.Name)
					nodeHandler{m.s}.OnDelete(node)
				}
			},
			"pod": func(t *rapid.T) {
				change := []func(*corev1.Pod){
					cpu(fmt.Sprint(rapid.IntRange(1, 4).Draw(t, "cpu"))), priority(rapid.Int32Range(0, 2).Draw(t, "priority")),
				}
				if rapid.IntRange(0, 3).Draw(t, "anti-affinity") == 0 {
					change = append(change, labelled("app", "x"), antiAffinity("app", "x", corev1.LabelTopologyZone))
				}
				if rapid.IntRange(0, 3).Draw(t, "gated") == 0 {
					change = append(change, func(p *corev1.Pod) {
						p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "gate"}}
					})
				}
				m.next++
				m.update(testPod(fmt.Sprint("p", m.next), change...))
			},
			"pod of others": func(t *rapid.T) { // another client binds it, perhaps to a missing node
				pod := pick(m.pods)
				if pod.Spec.NodeName != "" {
					t.Skip("bound")
				}
				pod = pod.DeepCopy()
				pod.Spec.SchedulingGates = nil
				pod.Spec.NodeName = rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "node")
				m.update(pod)
			},
			"pod is expected": func(t *rapid.T) { // another client nominates it, perhaps to a missing node
				pod := pick(m.pods).DeepCopy()
				pod.Status.NominatedNodeName = rapid.SampledFrom([]string{"", "a", "b", "c", "d"}).Draw(t, "node")
				m.update(pod)
			},
			"pod is admitted": func(t *rapid.T) {
				pod := pick(m.pods).DeepCopy()
				pod.Spec.SchedulingGates = nil
				m.update(pod)
			},
			"pod shrinks": func(t *rapid.T) {
				pod := pick(m.pods).DeepCopy()
				pod.Generation++
				pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
				m.update(pod)
			},
			"pod ends": func(t *rapid.T) {
				pod := pick(m.pods).DeepCopy()
				at := metav1.NewTime(time.Now())
				pod.DeletionTimestamp = &at
				if pod.Spec.NodeName != "" {
					m.update(pod)
				}
				m.remove(pod.Name)
			},
			"deliver":  func(*rapid.T) { m.deliver() },
			"schedule": func(*rapid.T) { m.schedule() },
			"fire":     func(*rapid.T) { m.fire() },
			"write": func(t *rapid.T) {
				if len(m.writes) == 0 {
					t.Skip("nothing to write")
				}
				m.refuse = nil
				switch rapid.IntRange(0, 5).Draw(t, "refused") {
				case 0:
					m.refuse = errors.New("the server is busy")
				case 1:
					m.refuse = errClaimsWait
				}
				m.write(rapid.IntRange(0, len(m.writes)-1).Draw(t, "which"))
			},
		})
		m.settle()
		m.check()
	})
}

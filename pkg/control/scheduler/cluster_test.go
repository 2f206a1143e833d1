package scheduler_test

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/scheduler"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

type cluster struct {
	testing.TB
	client.Interface
	engine *registrytest.Engine
	ctx    context.Context
}

func start(t testing.TB) *cluster {
	e := registrytest.Start(t, registrytest.Options{Kinds: assembled.Kinds()})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c := &cluster{t, e.As("admin"), e, ctx}
	require.NoError(t, c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}))
	require.NoError(t,
		c.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}))
	return c
}

// schedule starts a scheduler, which the returned function stops.
func (c *cluster) schedule() (stop func()) {
	s, err := scheduler.New(scheduler.Config{Client: c.engine.Clients.For(&user.DefaultInfo{Name: scheduler.Identity})})
	require.NoError(c, err)
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-ended:
		c.Fatal(err)
	}
	return func() { cancel(); require.NoError(c, <-ended) }
}

func (c *cluster) node(name, cpu string, zone ...string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	for _, z := range zone {
		n.Labels[corev1.LabelTopologyZone] = z
	}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	n.Status.Capacity = n.Status.Allocatable
	require.NoError(c, c.Create(c.ctx, n))
	n.Spec.Taints = nil // the node life cycle controller does so once the node is ready
	require.NoError(c, c.Update(c.ctx, n))
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "x"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{
				{
					Name: "c", Image: "x",
					Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")},
					},
				},
			},
		},
	}
}

const patience = 5 * time.Minute

// wait waits until ok accepts n pods.
func (c *cluster) wait(n int, ok func(*corev1.Pod) bool) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	w, err := c.Watch(ctx, &corev1.PodList{})
	require.NoError(c, err)
	defer w.Stop()
	seen := map[types.UID]bool{}
	var last *corev1.Pod
	for len(seen) < n {
		select {
		case <-ctx.Done():
			require.FailNow(c, "it did not come so far", "%d of %d; last %+v", len(seen), n, last)
		case e := <-w.ResultChan():
			if p, is := e.Object.(*corev1.Pod); is {
				last = p
				if ok(p) {
					seen[p.UID] = true
				}
			}
		}
	}
}

func isBound(p *corev1.Pod) bool { return p.Spec.NodeName != "" }

func (c *cluster) event(reason, text string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	w, err := c.Watch(ctx, &corev1.EventList{}, ctrl.InNamespace("default"))
	require.NoError(c, err)
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			require.FailNow(c, "no event "+reason+": "+text)
		case e := <-w.ResultChan():
			if ev, ok := e.Object.(*corev1.Event); ok && ev.Reason == reason && strings.Contains(ev.Message, text) {
				return
			}
		}
	}
}

func TestPodsAreBoundAndItIsSaidWhyNot(t *testing.T) {
	c := start(t)
	stop := c.schedule()
	require.NoError(t, c.Create(c.ctx, pod("early")))
	c.wait(1, func(p *corev1.Pod) bool {
		for _, k := range p.Status.Conditions {
			if k.Type == corev1.PodScheduled && k.Reason == corev1.PodReasonUnschedulable {
				return k.Message == "no nodes available to schedule pods"
			}
		}
		return false
	})
	c.node("a", "1")
	c.wait(1, isBound)
	c.event("Scheduled", "Successfully assigned default/early to a")

	big := pod("big")
	big.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("8")
	require.NoError(t, c.Create(c.ctx, big))
	c.event("FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu.")
	stop()

	gated := pod("gated")
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
	require.NoError(t, c.Create(c.ctx, gated))
	require.NoError(t, c.Create(c.ctx, pod("later")))
	defer c.schedule()() // a new scheduler continues the old one's work
	c.wait(2, isBound)
	require.NoError(t, c.Get(c.ctx, ctrl.ObjectKeyFromObject(gated), gated))
	require.Empty(t, gated.Spec.NodeName)
	gated = gated.DeepCopy()
	gated.Spec.SchedulingGates = nil
	require.NoError(t, c.Update(c.ctx, gated))
	c.wait(3, isBound)
}

func TestHigherPriorityPreempts(t *testing.T) {
	c := start(t)
	require.NoError(t,
		c.Create(c.ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}))
	c.node("a", "1")
	defer c.schedule()()
	low := pod("low")
	low.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1")
	require.NoError(t, c.Create(c.ctx, low))
	c.wait(1, isBound)
	high := pod("high")
	high.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1")
	n := int32(1000)
	high.Spec.Priority = &n
	high.Spec.PriorityClassName = "high"
	require.NoError(t, c.Create(c.ctx, high))
	c.wait(1, func(p *corev1.Pod) bool { return p.Name == "high" && p.Status.NominatedNodeName == "a" })
	c.wait(1, func(p *corev1.Pod) bool { return p.Name == "low" && p.DeletionTimestamp != nil })
	c.event("Preempted", "Preempted by pod "+string(high.UID)+" on node a: pod high")
	require.NoError(t, c.Delete(c.ctx, low, ctrl.GracePeriodSeconds(0)))
	c.wait(1, func(p *corev1.Pod) bool { return p.Name == "high" && isBound(p) })
}

// BenchmarkBind measures the pods bound per second, on 1,000 and 5,000 nodes in three zones: existing pods of
// several workloads, and pods that 32 writers create meanwhile.
func BenchmarkBind(b *testing.B) {
	app := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	wants := map[string]func(spec *corev1.PodSpec, pod int){
		"plain": func(*corev1.PodSpec, int) {},
		"affinity": func(s *corev1.PodSpec, _ int) {
			s.Affinity = &corev1.Affinity{
				PodAffinity: &corev1.PodAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
						{LabelSelector: app, TopologyKey: corev1.LabelTopologyZone},
					},
				},
			}
		},
		"spread": func(s *corev1.PodSpec, _ int) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
				{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: app},
				{MaxSkew: 5, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: app},
			}
		},
		"selector": func(s *corev1.PodSpec, _ int) { s.NodeSelector = map[string]string{corev1.LabelTopologyZone: "z1"} },
		"named": func(s *corev1.PodSpec, pod int) { // like a DaemonSet
			s.Affinity = &corev1.Affinity{
				NodeAffinity: &corev1.NodeAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchFields: []corev1.NodeSelectorRequirement{
							{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{fmt.Sprint("n", pod)}},
						}}}},
				},
			}
		},
	}
	fill := func(b *testing.B, c *cluster, n int, want func(*corev1.PodSpec, int)) {
		var wg sync.WaitGroup
		for w := range 32 {
			wg.Go(func() {
				for i := w; i < n; i += 32 {
					p := pod(fmt.Sprint("p", i))
					want(&p.Spec, i)
					if err := c.Create(c.ctx, p); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	const pods = 5000
	for _, r := range []struct {
		name  string
		nodes int
		there bool
	}{{
		"plain", 1000, true,
	}, {"affinity", 1000, true}, {"spread", 1000, true}, {"plain", 5000, true}, {"affinity", 5000, true},
		{"spread", 5000, true}, {"selector", 5000, true}, {"named", 5000, true}, {"plain", 1000, false}} {
		b.Run(fmt.Sprint(map[bool]string{true: "there", false: "created"}[r.there], "/", r.name, "/", r.nodes),
			func(b *testing.B) {
				for range b.N {
					b.StopTimer()
					c := start(b)
					var wg sync.WaitGroup
					for w := range 32 {
						wg.Go(func() {
							for i := w; i < r.nodes; i += 32 {
								c.node(fmt.Sprint("n", i), "32", fmt.Sprint("z", i%3))
							}
						})
					}
					wg.Wait()
					if r.there {
						fill(b, c, pods, wants[r.name])
					}
					b.StartTimer()
					began := time.Now()
					stop := c.schedule()
					if !r.there {
						fill(b, c, pods, wants[r.name])
					}
					c.wait(pods, isBound)
					b.ReportMetric(pods/time.Since(began).Seconds(), "pods/s")
					b.StopTimer()
					stop()
				}
			})
	}
}

func BenchmarkLatency(b *testing.B) {
	c := start(b)
	for i := range 10 {
		c.node(fmt.Sprint("n", i), "320")
	}
	defer c.schedule()()
	w, err := c.Watch(c.ctx, &corev1.PodList{})
	require.NoError(b, err)
	defer w.Stop()
	var took []time.Duration
	i := 0
	for b.Loop() {
		i++
		began := time.Now()
		require.NoError(b, c.Create(c.ctx, pod(fmt.Sprint("p", i))))
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && p.Name == fmt.Sprint("p", i) && isBound(p) {
				break
			}
		}
		took = append(took, time.Since(began))
	}
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}

// Pods of the profile "task" run on the node with the latest heartbeat. Events name the profile.
func TestTasks(t *testing.T) {
	c := start(t)
	require.NoError(t, c.Create(c.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}}))
	for i, name := range []string{"a", "b", "c"} {
		c.node(name, "4")
		renewed := metav1.NewMicroTime(time.Unix(int64(i%2), 0)) // b has the latest heartbeat
		require.NoError(t,
			c.Create(c.ctx, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name},
				Spec:       coordinationv1.LeaseSpec{RenewTime: &renewed},
			}))
	}
	defer c.schedule()()
	for i := range 2 {
		p := pod(fmt.Sprint("task", i))
		p.Spec.SchedulerName = scheduler.TaskProfile
		require.NoError(t, c.Create(c.ctx, p))
		c.wait(i+1, isBound)
	}
	var pods corev1.PodList
	require.NoError(t, c.List(c.ctx, &pods))
	require.Equal(t, "b", pods.Items[0].Spec.NodeName)
	require.NotEqual(t, "b", pods.Items[1].Spec.NodeName, "it has a task already")
	c.event("Scheduled", "Successfully assigned default/task0 to b")
	var events corev1.EventList
	require.NoError(t, c.List(c.ctx, &events))
	require.Equal(t, scheduler.TaskProfile, events.Items[0].Source.Component)
}

package pod

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// shared returns a pod with pod-level resources. Container a has a smaller limit of its own, b has none.
func shared(name, cpu, memory string) *corev1.Pod {
	p := podOf(name, "sleep", "100000")
	p.Spec.Resources = ofPod(cpu, memory)
	a := containerNamed("a", "sleep", "100000")
	a.Resources = needs("100m", "16Mi")
	p.Spec.Containers = []corev1.Container{a, containerNamed("b", "sleep", "100000")}
	return p
}

func ofPod(cpu, memory string) *corev1.ResourceRequirements {
	r := needs(cpu, memory)
	return &r
}

func (r *rig) limits(pod string) runtime.PodLimits {
	return r.runtime.Limits(r.m.cgroup(types.UID("uid-" + pod)))
}

func (r *rig) given(pod, container string) runtime.Resources {
	return r.runtime.Resources(strings.TrimPrefix(r.status(pod, container).ContainerID, "containerd://"))
}

// The pod's cgroup changes and so do containers without their own limit. Nothing restarts.
func TestResizeOfThePodItself(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		p := r.create(shared("web", "500m", "64Mi"))
		require.Equal(t, runtime.PodLimits{CPUShares: 512, CPUQuota: 50_000, MemoryBytes: 64 << 20}, r.limits("web"))
		requireAmounts(t, amountOf("500m", "64Mi"), p.Status.AllocatedResources)
		requireAmounts(t, amountOf("500m", "64Mi"), p.Status.Resources.Limits)
		ids := [2]string{r.status("web", "a").ContainerID, r.status("web", "b").ContainerID}
		for _, to := range [][2]string{{"1", "128Mi"}, {"250m", "32Mi"}, {"1", "32Mi"}} {
			p = r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod(to[0], to[1]) })
			cpu, memory := p.Spec.Resources.Limits.Cpu().MilliValue(), p.Spec.Resources.Limits.Memory().Value()
			require.Equal(t, runtime.PodLimits{CPUShares: uint64(cpu * 1024 / 1000), CPUQuota: cpu * 100, MemoryBytes: memory},
				r.limits("web"))
			require.EqualValues(t, cpu*100, r.given("web", "b").CPUQuota)
			require.Equal(t, memory, r.given("web", "b").MemoryBytes)
			require.EqualValues(t, 10_000, r.given("web", "a").CPUQuota, "it has a limit of its own")
			requireAmounts(t, amountOf(to[0], to[1]), p.Status.AllocatedResources)
			requireAmounts(t, amountOf(to[0], to[1]), p.Status.Resources.Requests)
			requireAmounts(t, amountOf(to[0], to[1]), p.Status.Resources.Limits)
			require.Nil(t, conditionIn(p.Status.Conditions, corev1.PodResizeInProgress))
			require.Equal(t, p.Generation, p.Status.ObservedGeneration)
		}
		require.Equal(t, ids, [2]string{r.status("web", "a").ContainerID, r.status("web", "b").ContainerID})
		text := r.events.text()
		require.Contains(t, text,
			`ResizeStarted: Pod resize started: {"resources":{"limits":{"cpu":"1","memory":"128Mi"},"requests":{"cpu":"1","memory":"128Mi"}},"containers":[{"name":"a","resources":{"limits":{"cpu":"100m","memory":"16Mi"},"requests":{"cpu":"100m","memory":"16Mi"}}},{"name":"b","resources":{}}],"generation":2}`)
		require.Contains(t, text,
			`ResizeCompleted: Pod resize completed: {"resources":{"limits":{"cpu":"250m","memory":"32Mi"}`)
		require.Equal(t, 3, strings.Count(text, "ResizeCompleted: "))
		r.delete("web", 0)
		r.pass(time.Minute)
		r.requireNothingLeft()
	})
}

// A container whose resize policy demands it restarts once, for any change, with its new resources.
func TestResizeThatRestartsContainers(t *testing.T) {
	for name, to := range map[string][2]string{"more": {"1", "128Mi"}, "less": {"250m", "32Mi"}, "both": {"1", "32Mi"}} {
		t.Run(name, func(t *testing.T) {
			with(t, fake.Config{}, func(r *rig) {
				p := shared("web", "500m", "64Mi")
				p.Spec.Containers[1].ResizePolicy = []corev1.ContainerResizePolicy{
					{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer},
					{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
				r.create(p)
				p = r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod(to[0], to[1]) })
				r.pass(time.Minute)
				cpu, memory := p.Spec.Resources.Limits.Cpu().MilliValue(), p.Spec.Resources.Limits.Memory().Value()
				require.EqualValues(t, 1, r.status("web", "b").RestartCount)
				require.Zero(t, r.status("web", "a").RestartCount)
				require.EqualValues(t, cpu*100, r.given("web", "b").CPUQuota)
				require.Equal(t, memory, r.given("web", "b").MemoryBytes)
				require.Equal(t, cpu*100, r.limits("web").CPUQuota)
				require.Nil(t, conditionIn(r.pod("web").Status.Conditions, corev1.PodResizeInProgress))
			})
		})
	}
}

// A limit below the memory usage is refused before anything changes, and retried.
func TestResizeBelowWhatIsUsed(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.create(shared("web", "500m", "64Mi"))
		id := strings.TrimPrefix(r.status("web", "b").ContainerID, "containerd://")
		r.runtime.Use(id, func(s *fake.Used) { s.Memory = 40 << 20 })
		p := r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod("1", "32Mi") })
		c := conditionOf(p, corev1.PodResizeInProgress)
		require.Equal(t, corev1.PodReasonError, c.Reason)
		require.Contains(t, c.Message,
			"cannot decrease memory limits: attempting to set pod memory limit (33554432) below current usage (44040192)\n"+
				`attempting to set container "b" memory limit (33554432) below current usage (41943040)`)
		require.Contains(t, r.events.text(), "ResizeError: Pod resize error: ")
		require.Equal(t, runtime.PodLimits{CPUShares: 512, CPUQuota: 50_000, MemoryBytes: 64 << 20}, r.limits("web"),
			"nothing has changed")
		requireAmounts(t, amountOf("1", "32Mi"), p.Status.AllocatedResources)
		requireAmounts(t, amountOf("500m", "64Mi"), p.Status.Resources.Limits)
		r.runtime.Use(id, func(s *fake.Used) { s.Memory = 10 << 20 })
		r.pass(3 * time.Minute)
		require.Equal(t, runtime.PodLimits{CPUShares: 1024, CPUQuota: 100_000, MemoryBytes: 32 << 20}, r.limits("web"))
		require.Nil(t, conditionIn(r.pod("web").Status.Conditions, corev1.PodResizeInProgress))

		r.runtime.Use(id, func(s *fake.Used) { s.Memory = 30 << 20 })
		r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod("1", "16Mi") })
		r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod("1", "48Mi") })
		require.EqualValues(t, 48<<20, r.limits("web").MemoryBytes)
	})
}

// A pending resize does not count, neither in the node's room nor for containers of the pod that restart.
func TestWhatIsNotAllocatedIsNotUsed(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.create(shared("web", "500m", "64Mi"))
		r.create(shared("other", "1", "64Mi"))
		p := r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod("1500m", "64Mi") })
		c := conditionOf(p, corev1.PodResizePending)
		require.Equal(t, corev1.PodReasonDeferred, c.Reason)
		require.Equal(t, "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000", c.Message)
		require.Contains(t, r.events.text(), "ResizeDeferred: Pod resize Deferred: ")
		requireAmounts(t, amountOf("500m", "64Mi"), p.Status.AllocatedResources)
		third := r.create(shared("third", "400m", "64Mi"))
		require.Equal(t, corev1.PodRunning, third.Status.Phase, "there is room for it")

		id := r.status("web", "b").ContainerID
		require.NoError(t, r.runtime.Signal(t.Context(), strings.TrimPrefix(id, "containerd://"), 9, true))
		r.pass(time.Second)
		require.EqualValues(t, 1, r.status("web", "b").RestartCount)
		require.EqualValues(t, 50_000, r.given("web", "b").CPUQuota)
		r.restart()
		require.Equal(t, corev1.PodReasonDeferred, conditionOf(r.pod("web"), corev1.PodResizePending).Reason)
		require.EqualValues(t, 50_000, r.limits("web").CPUQuota)
		requireAmounts(t, amountOf("500m", "64Mi"), r.pod("web").Status.AllocatedResources)

		// When another pod ends, the resizes are granted, the one that requests less first.
		r.change("third", func(p *corev1.Pod) { p.Spec.Resources = ofPod("600m", "64Mi") })
		r.delete("other", 0)
		require.Nil(t, r.pod("other"))
		require.EqualValues(t, 150_000, r.limits("web").CPUQuota)
		require.EqualValues(t, 40_000, r.limits("third").CPUQuota, "no room is left for it")
		r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod("1", "64Mi") })
		require.EqualValues(t, 60_000, r.limits("third").CPUQuota, "the other one gave it back")
	})
}

func TestResizeTakenBack(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.create(shared("web", "500m", "64Mi"))
		p := r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod("100", "64Mi") })
		require.Equal(t, corev1.PodReasonInfeasible, conditionOf(p, corev1.PodResizePending).Reason)
		require.EqualValues(t, 2, conditionOf(p, corev1.PodResizePending).ObservedGeneration)
		p = r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod("500m", "64Mi") })
		require.Nil(t, conditionIn(p.Status.Conditions, corev1.PodResizePending))
		require.NotContains(t, r.events.text(), "ResizeStarted")
	})
}

func TestResizeBeforeTheStart(t *testing.T) {
	var there atomic.Bool
	with(t, fake.Config{Pull: pulls(&there)}, func(r *rig) {
		p := shared("web", "500m", "64Mi")
		p.Spec.Containers[1].Image = "example.com/slow"
		p.Spec.Containers = p.Spec.Containers[1:]
		r.create(p)
		r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod("1", "128Mi") })
		require.Nil(t, conditionIn(r.pod("web").Status.Conditions, corev1.PodResizeInProgress))
		there.Store(true)
		r.pass(time.Minute)
		require.Equal(t, runtime.PodLimits{CPUShares: 1024, CPUQuota: 100_000, MemoryBytes: 128 << 20}, r.limits("web"))
		require.EqualValues(t, 128<<20, r.given("web", "b").MemoryBytes)
	})
}

func TestDownwardVolumeFollowsAResize(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		p := podOf("web", "sleep", "100000")
		p.Spec.Containers[0].Resources = needs("100m", "64Mi")
		p.Spec.Volumes = []corev1.Volume{
			{Name: "info", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
				Items: []corev1.DownwardAPIVolumeFile{
					{
						Path: "memory", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.memory"},
					},
				}}}},
		}
		r.create(p)
		read := func() string {
			files, err := filepath.Glob(filepath.Join(r.dir, "run", "volumes", "uid-web", "info", "memory"))
			require.NoError(t, err)
			require.Len(t, files, 1)
			data, err := os.ReadFile(files[0])
			require.NoError(t, err)
			return string(data)
		}
		require.Equal(t, "67108864", read())
		r.change("web", func(p *corev1.Pod) { p.Spec.Containers[0].Resources = needs("100m", "128Mi") })
		require.Equal(t, "134217728", read())
	})
}

// Wherever an agent is killed between the allocation of a resize and its end, the next one finishes the resize.
func TestKilledWhileItResizes(t *testing.T) {
	for _, to := range [][2]string{{"1", "128Mi"}, {"250m", "32Mi"}} {
		points := resizeWith(t, to, "", 0)
		require.Greater(t, len(points), 5)
		count := map[string]int{}
		for _, point := range points {
			count[point]++
			t.Run(to[0]+" "+point, func(t *testing.T) { resizeWith(t, to, point, count[point]) })
		}
	}
}

// resizeWith resizes a pod, kills the Manager at the nth hit of a failpoint, and returns all failpoints. The pod
// requests something else before the next Manager starts.
func resizeWith(t *testing.T, to [2]string, at string, nth int) (points []string) {
	with(t, fake.Config{}, func(r *rig) {
		r.create(shared("web", "500m", "64Mi"))
		killed := make(chan struct{})
		var mu sync.Mutex
		seen := 0
		kill := sync.OnceFunc(func() { r.stop(); close(killed) })
		r.failpoints = func(point string) error {
			mu.Lock()
			defer mu.Unlock()
			points = append(points, point)
			if point == at {
				if seen++; seen == nth {
					go kill()
				}
			}
			if at != "" && seen >= nth {
				return errors.New("the process was killed")
			}
			return nil
		}
		r.restart()
		r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod(to[0], to[1]) })
		last := to
		if at != "" {
			<-killed
			synctest.Wait()
			last = [2]string{"750m", "48Mi"}
			r.failpoints = nil
			r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod(last[0], last[1]) })
			r.start()
		}
		r.pass(time.Minute)
		want := ofPod(last[0], last[1])
		require.Equal(t, want.Limits.Cpu().MilliValue()*100, r.limits("web").CPUQuota)
		require.Equal(t, want.Limits.Memory().Value(), r.limits("web").MemoryBytes)
		require.Equal(t, want.Limits.Memory().Value(), r.given("web", "b").MemoryBytes)
		p := r.pod("web")
		requireAmounts(t, want.Requests, p.Status.AllocatedResources)
		requireAmounts(t, want.Limits, p.Status.Resources.Limits)
		require.Nil(t, conditionIn(p.Status.Conditions, corev1.PodResizeInProgress))
		require.Nil(t, conditionIn(p.Status.Conditions, corev1.PodResizePending))
		require.Zero(t, r.status("web", "b").RestartCount)
	})
	return points
}

// No status has a generation whose resize is undecided: clients take one without a condition for a complete resize.
func TestResizeIsDecidedBeforeItsGenerationIsObserved(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.failpoints = func(point string) error {
			if point == "pod.reallocated" {
				time.Sleep(10 * time.Second)
			}
			return nil
		}
		r.restart()
		r.create(shared("web", "500m", "64Mi"))
		r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod("1", "128Mi") })
		r.pass(5 * time.Second)
		require.EqualValues(t, 1, r.pod("web").Status.ObservedGeneration)
		r.pass(10 * time.Second)
		p := r.pod("web")
		require.EqualValues(t, 2, p.Status.ObservedGeneration)
		requireAmounts(t, amountOf("1", "128Mi"), p.Status.AllocatedResources)
		r.delete("web", 0)
		r.pass(time.Minute)
		r.requireNothingLeft()
	})
}

// After a restore of the API's data, the same generation may request other resources.
func TestResizeOfAPodThatWasRestored(t *testing.T) {
	for _, generation := range []int64{0, 1, 2, 3} {
		with(t, fake.Config{}, func(r *rig) {
			r.create(shared("web", "500m", "64Mi"))
			r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod("1", "128Mi") })
			r.stop()
			r.change("web", func(p *corev1.Pod) { p.Generation, p.Spec.Resources = generation-1, ofPod("500m", "64Mi") })
			r.start()
			r.pass(time.Minute)
			require.Equal(t, runtime.PodLimits{CPUShares: 512, CPUQuota: 50_000, MemoryBytes: 64 << 20}, r.limits("web"),
				generation)
			require.EqualValues(t, 64<<20, r.given("web", "b").MemoryBytes)
			requireAmounts(t, amountOf("500m", "64Mi"), r.pod("web").Status.AllocatedResources)
			p := r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod("1", "128Mi") })
			requireAmounts(t, amountOf("1", "128Mi"), p.Status.Resources.Limits)
			require.EqualValues(t, 128<<20, r.given("web", "b").MemoryBytes)
		})
	}
}

// Without a readable record the pod has the resources in its status.
func TestUnreadableAllocation(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.create(shared("web", "500m", "64Mi"))
		require.NoError(t,
			os.WriteFile(filepath.Join(r.dir, "data", "pods", "uid-web", allocationFile), []byte(`{"generation":`), 0o600))
		r.restart()
		require.Equal(t, corev1.ConditionTrue, conditionOf(r.pod("web"), corev1.PodReady).Status)
		r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod("1", "64Mi") })
		require.EqualValues(t, 100_000, r.limits("web").CPUQuota)
	})
}

func TestResizeToNoLimit(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.create(shared("web", "500m", "64Mi"))
		p := r.change("web", func(p *corev1.Pod) {
			p.Spec.Resources = ofPod("0", "0")
			p.Spec.Containers[0].Resources = needs("0", "0")
		})
		require.Equal(t, runtime.PodLimits{CPUShares: 2}, r.limits("web"))
		for _, name := range []string{"a", "b"} {
			require.Equal(t, int64(runtime.Unlimited), r.given("web", name).CPUQuota)
			require.Equal(t, int64(runtime.Unlimited), r.given("web", name).MemoryBytes)
		}
		require.Nil(t, conditionIn(p.Status.Conditions, corev1.PodResizeInProgress))
		require.Equal(t, 1, strings.Count(r.events.text(), "ResizeCompleted: "))

		r.change("web", func(p *corev1.Pod) { p.Spec.Resources = ofPod("250m", "32Mi") })
		require.Equal(t, runtime.PodLimits{CPUShares: 256, CPUQuota: 25_000, MemoryBytes: 32 << 20}, r.limits("web"))
		require.EqualValues(t, 25_000, r.given("web", "b").CPUQuota)
	})
}

package agent

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	fakeruntime "github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

func TestChangedImageReplacesTheContainer(t *testing.T) {
	node(t, fakeruntime.Config{Images: []string{"docker.io/library/busybox:latest", "docker.io/library/busybox:2"}},
		func(b *bench) {
			p := b.create(simple("web", "sleep", "1000000"))
			p.Spec.Containers[0].Image = "busybox:2"
			p.Generation++
			require.NoError(t, b.cluster.Update(b.ctx, p))
			b.settle()
			s := b.pod("web").Status.ContainerStatuses[0]
			require.EqualValues(t, 1, s.RestartCount)
			require.Equal(t, "busybox:2", s.Image)
			require.True(t, s.Ready)
		})
}

func TestResizeInPlace(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		amount := func(cpu, memory string) corev1.ResourceRequirements {
			l := corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
			}
			return corev1.ResourceRequirements{Limits: l, Requests: l}
		}
		p := simple("web", "sleep", "1000000")
		p.Spec.Containers[0].Resources = amount("10m", "16Mi")
		p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
			{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired},
			{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
		p = b.create(p)
		resize := func(r corev1.ResourceRequirements) corev1.ContainerStatus {
			p := b.pod("web")
			p.Spec.Containers[0].Resources = r
			p.Generation++
			require.NoError(t, b.cluster.Update(b.ctx, p))
			b.settle()
			return b.pod("web").Status.ContainerStatuses[0]
		}
		s := resize(amount("20m", "16Mi"))
		require.Equal(t, p.Status.ContainerStatuses[0].ContainerID, s.ContainerID, "not restarted")
		require.Equal(t, "20m", s.Resources.Limits.Cpu().String())
		require.Equal(t, "20m", s.AllocatedResources.Cpu().String())
		s = resize(amount("20m", "32Mi"))
		require.EqualValues(t, 1, s.RestartCount)
		require.Equal(t, "32Mi", s.Resources.Limits.Memory().String())
		s = resize(amount("100000", "32Mi"))
		require.Equal(t, "20m", s.Resources.Limits.Cpu().String())
		require.Equal(t, corev1.ConditionTrue, podCondition(b.pod("web"), corev1.PodResizePending))
	})
}

// A running init container is resized in place. One that has ended is not affected by a resize.
func TestResizeOfInitContainers(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("web", "sleep", "1000000")
		amount := func(cpu string) corev1.ResourceRequirements {
			return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
		}
		p.Spec.InitContainers = []corev1.Container{
			{Name: "init", Image: p.Spec.Containers[0].Image, Command: []string{"sleep", "60"}, Resources: amount("10m")},
		}
		p = b.create(p)
		resize := func(cpu string) corev1.ContainerStatus {
			p := b.pod("web")
			p.Spec.InitContainers[0].Resources = amount(cpu)
			p.Generation++
			require.NoError(t, b.cluster.Update(b.ctx, p))
			b.settle()
			return b.pod("web").Status.InitContainerStatuses[0]
		}
		s := resize("20m")
		require.Equal(t, p.Status.InitContainerStatuses[0].ContainerID, s.ContainerID)
		require.Equal(t, "20m", s.Resources.Requests.Cpu().String())
		b.pass(2 * time.Minute)
		require.True(t, b.pod("web").Status.ContainerStatuses[0].Ready)
		s = resize("30m")
		require.NotNil(t, s.State.Terminated)
		require.Zero(t, s.RestartCount)
		require.Empty(t, podCondition(b.pod("web"), corev1.PodResizeInProgress))
	})
}

// The status reports PodResizeInProgress until all containers are resized.
func TestResizeOfSeveralContainers(t *testing.T) {
	amount := func(cpu, memory string) corev1.ResourceRequirements {
		l := corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		}
		return corev1.ResourceRequirements{Limits: l, Requests: l}
	}
	wants := map[string]corev1.ResourceRequirements{
		"c1": amount("20m", "32Mi"),
		"c2": amount("5m", "32Mi"),
		"c3": amount("20m", "8Mi"),
	}
	var busy atomic.Bool // the kernel refuses to shrink the memory of c3
	busy.Store(true)
	node(t, fakeruntime.Config{Update: func(_ string, r runtime.Resources) error {
		time.Sleep(time.Duration(r.CPUQuota) * time.Millisecond) // each update takes a while
		if r.MemoryBytes == 8<<20 && busy.Load() {
			return errors.New("device or resource busy")
		}
		return nil
	}}, func(b *bench) {
		p := simple("web", "sleep", "1000000")
		main := p.Spec.Containers[0]
		p.Spec.Containers = nil
		for _, name := range []string{"c1", "c2", "c3"} {
			main.Name, main.Resources = name, amount("10m", "16Mi")
			p.Spec.Containers = append(p.Spec.Containers, main)
		}
		p = b.create(p)
		require.Empty(t, podCondition(p, corev1.PodResizeInProgress))
		for i := range p.Spec.Containers {
			p.Spec.Containers[i].Resources = wants[p.Spec.Containers[i].Name]
		}
		p.Generation++
		require.NoError(t, b.cluster.Update(b.ctx, p))
		changing := func() bool {
			p = b.pod("web")
			if p.Status.ObservedGeneration != p.Generation {
				return true
			}
			done := true
			for _, s := range p.Status.ContainerStatuses {
				done = done && equality.Semantic.DeepEqual(*s.Resources, wants[s.Name])
			}
			progress := podCondition(p, corev1.PodResizeInProgress) == corev1.ConditionTrue
			require.Equal(t, !done, progress, "after %s", p.Status.ContainerStatuses)
			return progress
		}
		for range 10 {
			b.pass(500 * time.Millisecond)
			require.True(t, changing())
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodResizeInProgress {
				require.Equal(t, corev1.PodReasonError, c.Reason)
				require.Equal(t, "device or resource busy", c.Message)
			}
		}
		busy.Store(false)
		b.pass(time.Minute)
		require.False(t, changing())
		for _, s := range p.Status.ContainerStatuses {
			require.Zero(t, s.RestartCount)
		}
	})
}

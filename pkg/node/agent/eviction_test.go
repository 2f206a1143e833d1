package agent

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	fakeruntime "github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// scarce is a machine with 1000 bytes of memory and 1000 of disk.
type scarce struct {
	mu           sync.Mutex
	memory, disk int64
	enough       func() bool // if set, reports that the disk is empty again
}

func (s *scarce) Read() map[config.Signal]eviction.Reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.enough != nil && s.enough() {
		s.disk = 900
	}
	return map[config.Signal]eviction.Reading{
		config.MemoryAvailable:  {Available: s.memory, Capacity: 1 << 30},
		config.NodeFsAvailable:  {Available: s.disk, Capacity: 1000},
		config.ImageFsAvailable: {Available: s.disk, Capacity: 1000},
	}
}

func (s *scarce) Watch(ctx context.Context, _ int64, _ func()) { <-ctx.Done() }

func (s *scarce) set(memory, disk int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory, s.disk = memory, disk
}

// short gives the bench a machine that can run out of resources.
func (b *bench) short() *scarce {
	s := &scarce{memory: 1 << 29, disk: 900}
	b.stop()
	b.machine = s
	b.start()
	b.settle()
	return s
}

func (b *bench) node() *corev1.Node {
	n := &corev1.Node{}
	require.NoError(b, b.cluster.Get(b.ctx, types.NamespacedName{Name: "node"}, n))
	return n
}

func (b *bench) nodeCondition(kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range b.node().Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	b.Fatal("no condition " + kind)
	return corev1.NodeCondition{}
}

func TestEmptyDirBeyondItsLimit(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("web", "sleep", "1000000")
		limit := resource.MustParse("100Ki")
		p.Spec.Volumes = []corev1.Volume{
			{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}},
		}
		p = b.create(p)
		dir := filepath.Join(b.dir, "data", "pods", string(p.UID), "volumes", "cache")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "little"), make([]byte, 50<<10), 0o600))
		b.pass(time.Minute)
		require.Equal(t, corev1.PodRunning, b.pod("web").Status.Phase)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "much"), make([]byte, 60<<10), 0o600))
		b.pass(15 * time.Second)

		p = b.pod("web")
		require.Equal(t, corev1.PodFailed, p.Status.Phase)
		require.Equal(t, "Evicted", p.Status.Reason)
		require.Equal(t, `Usage of EmptyDir volume "cache" exceeds the limit "100Ki". `, p.Status.Message)
		require.NotNil(t, p.Status.ContainerStatuses[0].State.Terminated)
		require.Empty(t, podCondition(p, corev1.DisruptionTarget), "it was its own doing")
		require.Contains(t, b.events.list(), `Evicted: Usage of EmptyDir volume "cache" exceeds the limit "100Ki". `)
		require.Empty(t, b.containers(), "what it took is given back")
		require.NoDirExists(t, dir)
		b.stop()
		b.start()
		b.pass(time.Minute)
		require.Equal(t, p.Status, b.pod("web").Status)
		require.Empty(t, b.containers())
	})
}

func TestEphemeralStorageLimit(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("web", "sleep", "1000000")
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
			corev1.ResourceEphemeralStorage: resource.MustParse("1Mi"),
		}
		b.create(p)
		b.runtime.Use(b.containers()[0].ID, func(s *fakeruntime.Used) { s.Disk = 2 << 20 })
		b.pass(15 * time.Second)
		require.Equal(t, "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
			b.pod("web").Status.Message)
		require.Equal(t, corev1.PodFailed, b.pod("web").Status.Phase)
	})
}

// Under disk pressure unused data is removed first, then one pod is evicted; meanwhile no pod is admitted.
func TestDiskPressure(t *testing.T) {
	node(t, fakeruntime.Config{Images: []string{"busybox", "unused:1"}}, func(b *bench) {
		machine := b.short()
		require.Equal(t, corev1.ConditionFalse, b.nodeCondition(corev1.NodeDiskPressure).Status)
		ended := simple("ended", "true")
		ended.Spec.RestartPolicy = corev1.RestartPolicyNever
		b.create(ended)
		b.create(simple("small", "sleep", "1000000"))
		b.create(simple("large", "sleep", "1000000"))
		for _, c := range b.containers() {
			if c.PodUID == string(b.pod("large").UID) {
				b.runtime.Use(c.ID, func(s *fakeruntime.Used) { s.Disk = 9 << 20 })
			}
		}
		b.pass(5 * time.Minute)
		require.Len(t, b.containers(), 3)
		machine.set(1<<29, 40)
		b.pass(9 * time.Second)
		machine.set(1<<29, 900)
		b.pass(time.Second)
		require.Len(t, b.containers(), 3, "a moment between two looks")

		large := string(b.pod("large").UID)
		machine.mu.Lock()
		machine.enough = func() bool {
			return !slices.ContainsFunc(b.containers(), func(c runtime.Container) bool { return c.PodUID == large })
		}
		machine.mu.Unlock()
		machine.set(1<<29, 40)
		b.pass(10 * time.Second)
		require.Equal(t, corev1.PodRunning, b.pod("small").Status.Phase)
		require.Equal(t, "Evicted", b.pod("large").Status.Reason)
		require.Equal(t, corev1.ConditionTrue, podCondition(b.pod("large"), corev1.DisruptionTarget))
		require.Regexp(t,
			`^The node was low on resource: ephemeral-storage. Threshold quantity: 50, available: 40. Container main was using 9\d*[KM]i, request is 0, `,
			b.pod("large").Status.Message)
		require.Equal(t, corev1.PodSucceeded, b.pod("ended").Status.Phase)
		_, err := b.runtime.Images().Get(b.ctx, "unused:1")
		require.ErrorIs(t, err, runtime.ErrNotFound)
		_, err = b.runtime.Images().Get(b.ctx, "busybox")
		require.NoError(t, err)
		c := b.nodeCondition(corev1.NodeDiskPressure)
		require.Equal(t, corev1.ConditionTrue, c.Status)
		require.Contains(t, c.Message, "nodefs.available was")
		require.Contains(t, b.events.list(), "EvictionThresholdMet: Attempting to reclaim ephemeral-storage")

		late := b.create(simple("late", "sleep", "1000000"))
		require.Equal(t, corev1.PodFailed, late.Status.Phase)
		require.Equal(t, "Pod was rejected: The node had condition: [DiskPressure]. ", late.Status.Message)

		b.pass(6 * time.Minute)
		require.Equal(t, corev1.ConditionFalse, b.nodeCondition(corev1.NodeDiskPressure).Status)
		require.Equal(t, corev1.PodRunning, b.create(simple("again", "sleep", "1000000")).Status.Phase)
	})
}

func TestMemoryPressureRefusesBestEffort(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		machine := b.short()
		machine.set(1<<20, 900)
		b.pass(15 * time.Second)
		require.Equal(t, corev1.ConditionTrue, b.nodeCondition(corev1.NodeMemoryPressure).Status)
		machine.set(1<<29, 900)
		require.Equal(t, corev1.PodFailed, b.create(simple("plain", "sleep", "1000000")).Status.Phase)
		p := simple("asks", "sleep", "1000000")
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}
		require.Equal(t, corev1.PodRunning, b.create(p).Status.Phase)
	})
}

// A restarted agent completes an eviction.
func TestEvictionOutlivesTheAgent(t *testing.T) {
	stays := func(ctx context.Context, _ *fakeruntime.Process) int { <-ctx.Done(); return 0 }
	node(t, fakeruntime.Config{Programs: map[string]fakeruntime.Program{"stays": stays}}, func(b *bench) {
		b.create(simple("web", "stays"))
		p := b.pod("web")
		p.Status.Reason, p.Status.Message = "Evicted", "why"
		b.stop()
		require.NoError(t, b.cluster.Status().Update(b.ctx, p))
		b.start()
		b.pass(5 * time.Second)
		p = b.pod("web")
		require.Equal(t, corev1.PodFailed, p.Status.Phase)
		require.Equal(t, "why", p.Status.Message)
		require.Empty(t, b.containers())
	})
}

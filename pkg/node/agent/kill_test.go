package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	insideEnv = "CORACLE_TEST_KILL_INSIDE" // the directory of a test process with its own network and mount namespaces
	lifeEnv   = "CORACLE_TEST_KILL_LIFE"   // the life of an agent process, as JSON
)

func await(w watch.Interface, pods []*corev1.Pod, done func(watch.Event, *corev1.Pod) bool) {
	waiting := map[string]bool{}
	for _, p := range pods {
		waiting[p.Name] = true
	}
	for len(waiting) > 0 {
		e := <-w.ResultChan()
		if p, ok := e.Object.(*corev1.Pod); ok && done(e, p) {
			delete(waiting, p.Name)
		}
	}
}

// everything returns a pod that acquires every kind of resource and restarts all containers once. Every other pod has a
// user namespace.
func everything(i int) *corev1.Pod {
	name := fmt.Sprint("p", i)
	p := simple(name, "sh", "-c", "test -e /disk/again || { touch /disk/again; exit 42; }; exec sleep 1000")
	p.Namespace, p.Finalizers, p.UID = "default", []string{hold}, types.UID("00000000-0000-0000-0000-00000000000"+
		fmt.Sprint(i))
	none, share := int64(0), true
	p.Spec.HostUsers = new(i%2 == 0)
	p.Spec.NodeName, p.Spec.TerminationGracePeriodSeconds, p.Spec.ShareProcessNamespace = "node", &none, &share
	p.Spec.Volumes = []corev1.Volume{
		{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{
			Name:         "memory",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}},
		},
		{
			Name: "config",
			VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}},
			},
		},
		{
			Name: "image",
			VolumeSource: corev1.VolumeSource{
				Image: &corev1.ImageVolumeSource{Reference: "busybox", PullPolicy: corev1.PullIfNotPresent},
			},
		},
	}
	p.Spec.Resources = amounts("100m", "64Mi")
	c := &p.Spec.Containers[0]
	c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
			Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42},
		}}}
	claim := claimOf(p)
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "claim", ResourceClaimName: &claim.Name}}
	c.Resources.Claims = []corev1.ResourceClaim{{Name: "claim"}}
	c.Resources.Limits = corev1.ResourceList{gadget: resource.MustParse("1")}
	c.Image, c.ImagePullPolicy, c.TerminationMessagePath = "busybox", corev1.PullIfNotPresent, "/dev/termination-log"
	c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: int32(18080 + i), Protocol: corev1.ProtocolTCP}}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "disk", MountPath: "/disk"}, {Name: "memory", MountPath: "/memory"},
		{Name: "config", MountPath: "/config"}, {Name: "memory", MountPath: "/sub", SubPath: "a/b"},
		{Name: "image", MountPath: "/image"}}
	return p
}

func amounts(cpu, memory string) *corev1.ResourceRequirements {
	l := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}
	return &corev1.ResourceRequirements{Requests: l, Limits: l}
}

// claimOf returns the pod's claim, allocated and reserved.
func claimOf(p *corev1.Pod) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "claim-of-" + p.Name, UID: "claim-" + p.UID},
	}
	c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: p.Name, UID: p.UID}}
	c.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "r", Driver: driverName, Pool: "node", Device: p.Name}}},
	}
	return c
}

// Wherever the agent is killed while a pod starts, restarts, is resized or ends, the next agent brings up or releases
// the pod, and in the end nothing is left on the machine. Each acquisition may also fail once.
func TestKilledAtEachAcquisition(t *testing.T) {
	dir := os.Getenv(insideEnv)
	if dir == "" {
		runInside(t)
		return
	}
	shard := int(dir[len(dir)-1] - '0')
	l := life{Dir: dir, Pods: 2}
	prepare(t, l)
	points, err := l.run(t)
	require.NoError(t, err)
	l.leavesNothing(t)
	require.Greater(t, len(points), 50)
	for _, p := range []string{"claim.recorded", "claim.prepared", "claim.ready", "claim.unprepared", "claim.released",
		"device.assigned", "device.allocated", "device.recorded", "device.released",
		"network.users", "network.users-started", "network.namespace-user", "network.unmounted-user",
		"pod.allocated", "pod.limited", "pod.reallocated", "pod.resized", "pod.container-resized"} {
		require.Contains(t, points, p)
	}

	count := map[string]int{}
	for _, p := range points {
		count[p]++
	}
	names := slices.Sorted(func(yield func(string) bool) {
		for p := range count {
			if !yield(p) {
				return
			}
		}
	})
	for i, point := range names {
		if i%shards != shard || i/shards%stride() != 0 {
			continue
		}
		for j, nth := range slices.Compact([]int{1, count[point]}) {
			pods, next := l.Pods, "come up"
			if (i/shards/stride()+j)%2 == 1 {
				pods, next = 0, "are released"
			}
			t.Run(fmt.Sprintf("%s %d, then the pods %s", point, nth, next), func(t *testing.T) {
				first := l
				first.KillAt, first.Nth = point, nth
				points, err := first.run(t)
				if err != nil {
					var exit *exec.ExitError
					require.ErrorAs(t, err, &exit)
					require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())
				} else { // the number of retries varies
					reached := slices.DeleteFunc(points, func(p string) bool { return p != point })
					require.Less(t, len(reached), nth)
					require.NotEmpty(t, reached, "only %v were reached", points)
				}
				second := l
				second.Pods = pods
				_, err = second.run(t)
				require.NoError(t, err)
				l.leavesNothing(t)
			})
		}
	}
	t.Run("each fails once", func(t *testing.T) {
		if shard != 0 {
			t.Skip("the first shard does it")
		}
		l := l
		l.Pods, l.Fail = 5, true
		_, err := l.run(t)
		require.NoError(t, err)
		l.leavesNothing(t)
	})
}

// shards is the number of processes that share the failpoints, each in its own namespaces.
const shards = 2

// allEnv makes the test use every failpoint (three minutes, `make nightly`), not every fifth (half a minute).
const allEnv = "CORACLE_TEST_ALL_KILLS"

func stride() int {
	if os.Getenv(allEnv) != "" {
		return 1
	}
	return 5
}

// runInside runs the test in processes with their own namespaces.
func runInside(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts some hundred processes")
	}
	dir, err := os.MkdirTemp("", "coracle-kill-")
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	images := exec.Command("go", "run", "./hack/images", "-out", dir)
	images.Dir = "../../.."
	out, err := images.CombinedOutput()
	require.NoError(t, err, string(out))
	var group errgroup.Group
	for i := range shards {
		own := filepath.Join(dir, fmt.Sprint(filepath.Base(dir), "-", i))
		require.NoError(t, os.Mkdir(own, 0o755))
		require.NoError(t, os.Link(filepath.Join(dir, "busybox.tar"), filepath.Join(own, "busybox.tar")))
		group.Go(func() error {
			cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.timeout=15m",
				fmt.Sprintf("-test.v=%t", testing.Verbose()))
			cmd.Env = append(os.Environ(), insideEnv+"="+own)
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
			return cmd.Run()
		})
	}
	require.NoError(t, group.Wait())
}

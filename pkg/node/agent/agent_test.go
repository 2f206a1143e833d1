package agent

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	fakeruntime "github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

func simple(name string, command ...string) *corev1.Pod {
	grace := int64(30)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace, DNSPolicy: corev1.DNSDefault,
		Containers: []corev1.Container{{Name: "main", Command: command}},
	}}
}

func podCondition(p *corev1.Pod, t corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == t {
			return c.Status
		}
	}
	return ""
}

func TestPodRunsAndIsReleased(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		began := time.Now()
		p := b.create(simple("web", "sleep", "1000000"))
		require.Zero(t, time.Since(began), "nothing on the way to Running may wait for a timer")
		require.Equal(t, corev1.PodRunning, p.Status.Phase)
		require.Equal(t, "10.0.0.1", p.Status.PodIP)
		require.Equal(t, "192.0.2.1", p.Status.HostIP)
		require.Equal(t, corev1.ConditionTrue, podCondition(p, corev1.PodReady))
		require.Equal(t, corev1.ConditionTrue, podCondition(p, corev1.PodReadyToStartContainers))
		require.Contains(t, p.Status.ContainerStatuses[0].ContainerID, "containerd://")

		require.NoError(t, b.cluster.Delete(b.ctx, b.pod("web")))
		b.settle()
		err := b.cluster.Get(b.ctx, types.NamespacedName{Namespace: "default", Name: "web"}, &corev1.Pod{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		require.Empty(t, b.containers())
		require.Empty(t, b.network.sandboxes)
		left, err := os.ReadDir(filepath.Join(b.dir, "data", "pods"))
		require.NoError(t, err)
		require.Empty(t, left)
		require.Contains(t, b.events.list(), "Killing: Stopping container main")
	})
}

// The node may get its podCIDR, and OnPodCIDR be called, before the creation of the node returns.
func TestPodCIDRBeforeTheRegistrationReturns(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		b.stop()
		require.NoError(t, b.cluster.Delete(b.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}))
		b.settle()
		var got netip.Prefix
		b.onPodCIDR = func(_ context.Context, p netip.Prefix) error { got = p; return nil }
		b.cluster.created = func(o ctrl.Object) {
			if n, ok := o.(*corev1.Node); ok {
				given := n.DeepCopy()
				given.Spec.PodCIDR = "10.42.7.0/24"
				require.NoError(t, b.cluster.Update(b.ctx, given))
				synctest.Wait()
			}
		}
		began := time.Now()
		b.start()
		require.Zero(t, time.Since(began))
		require.Equal(t, "10.42.7.0/24", got.String())
	})
}

// A Node that is deleted while its agent runs is created again immediately, not at the next heartbeat.
func TestDeletedNodeIsRegisteredAgain(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		began := time.Now()
		require.NoError(t, b.cluster.Delete(b.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}))
		b.settle()
		require.NoError(t, b.cluster.Get(b.ctx, types.NamespacedName{Name: "node"}, &corev1.Node{}))
		require.Zero(t, time.Since(began))
	})
}

func TestAgentRestartLeavesContainersAlone(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("web", "sleep", "1000000")
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1,
			ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
		b.create(p)
		b.pass(time.Second)
		before := b.pod("web")
		require.Equal(t, corev1.ConditionTrue, podCondition(before, corev1.PodReady))
		b.stop()
		b.start()
		b.settle()
		after := b.pod("web")
		require.Equal(t, before.Status.ContainerStatuses, after.Status.ContainerStatuses)
		require.Equal(t, before.Status.Conditions, after.Status.Conditions)
		require.Len(t, b.containers(), 1)
	})
}

func TestOrphansAreReleasedAtStart(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		b.create(simple("web", "sleep", "1000000"))
		b.stop()
		p := b.pod("web")
		zero := int64(0)
		require.NoError(t, b.cluster.Delete(b.ctx, p, &ctrl.DeleteOptions{GracePeriodSeconds: &zero}))
		b.start()
		b.pass(time.Minute)
		require.Empty(t, b.containers())
		require.Empty(t, b.network.sandboxes)
	})
}

func TestCrashLoopBacksOff(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := b.create(simple("crash", "false"))
		s := p.Status.ContainerStatuses[0]
		require.EqualValues(t, 1, s.RestartCount, "the first restart is immediate")
		require.Equal(t, "CrashLoopBackOff", s.State.Waiting.Reason)
		require.EqualValues(t, 1, s.LastTerminationState.Terminated.ExitCode)
		for i, wait := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
			b.pass(wait*time.Second - time.Millisecond)
			require.EqualValues(t, i+1, b.pod("crash").Status.ContainerStatuses[0].RestartCount)
			b.pass(time.Millisecond)
			require.EqualValues(t, i+2, b.pod("crash").Status.ContainerStatuses[0].RestartCount)
		}
		require.LessOrEqual(t, len(b.containers()), 2, "old runs are removed")
	})
}

func TestTerminalPods(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("done", "true")
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p = b.create(p)
		require.Equal(t, corev1.PodSucceeded, p.Status.Phase)
		require.Equal(t, "Completed", p.Status.ContainerStatuses[0].State.Terminated.Reason)
		require.Empty(t, b.network.sandboxes)

		p = simple("fail", "sh", "-c", "exit 3")
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p = b.create(p)
		require.Equal(t, corev1.PodFailed, p.Status.Phase)
		require.EqualValues(t, 3, p.Status.ContainerStatuses[0].State.Terminated.ExitCode)
	})
}

func TestInitContainersRunInOrder(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		always := corev1.ContainerRestartPolicyAlways
		p := simple("init", "sleep", "1000000")
		p.Spec.InitContainers = []corev1.Container{
			{Name: "one", Command: []string{"sleep", "5"}},
			{Name: "side", Command: []string{"sleep", "1000000"}, RestartPolicy: &always},
			{Name: "two", Command: []string{"sleep", "5"}},
		}
		p = b.create(p)
		require.Equal(t, corev1.PodPending, p.Status.Phase)
		require.Equal(t, "PodInitializing", p.Status.ContainerStatuses[0].State.Waiting.Reason)
		require.NotNil(t, p.Status.InitContainerStatuses[0].State.Running)
		require.NotNil(t, p.Status.InitContainerStatuses[1].State.Waiting)
		b.pass(5 * time.Second)
		p = b.pod("init")
		require.NotNil(t, p.Status.InitContainerStatuses[1].State.Running)
		require.NotNil(t, p.Status.InitContainerStatuses[2].State.Running)
		b.pass(5 * time.Second)
		p = b.pod("init")
		require.Equal(t, corev1.PodRunning, p.Status.Phase)
		require.Equal(t, corev1.ConditionTrue, podCondition(p, corev1.PodReady))
	})
}

func TestMissingConfigMapThenThere(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("web", "sleep", "1000000")
		p.Spec.Volumes = []corev1.Volume{
			{Name: "text", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "text"}}}},
		}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "text", MountPath: "/text"}}
		p = b.create(p)
		require.Equal(t, "ContainerCreating", p.Status.ContainerStatuses[0].State.Waiting.Reason)
		require.Contains(t, strings.Join(b.events.list(), "\n"), "FailedMount: ")
		blocked := b.agent.Blocked()
		require.Len(t, blocked, 1)
		require.Equal(t, "default/web FailedMount", blocked[0].Namespace+"/"+blocked[0].Name+" "+blocked[0].Reason)
		require.Contains(t, blocked[0].Message, "text")
		cm := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "text"}, Data: map[string]string{"a": "one"},
		}
		require.NoError(t, b.cluster.Create(b.ctx, cm))
		b.settle()
		require.Equal(t, corev1.PodRunning, b.pod("web").Status.Phase)
		require.Empty(t, b.agent.Blocked())
		file := filepath.Join(b.dir, "run", "volumes", string(p.UID), "text", "a")
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, "one", string(got))
		cm.Data["a"] = "two"
		require.NoError(t, b.cluster.Update(b.ctx, cm))
		b.settle()
		got, err = os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, "two", string(got))
	})
}

func TestImagePullBackOff(t *testing.T) {
	var fail atomic.Bool
	fail.Store(true)
	node(t, fakeruntime.Config{Images: []string{}, Pull: func(c context.Context, ref string) error {
		if fail.Load() {
			return errors.New("registry is away")
		}
		return nil
	}}, func(b *bench) {
		p := b.create(simple("web", "sleep", "1000000"))
		require.Equal(t, "ErrImagePull", p.Status.ContainerStatuses[0].State.Waiting.Reason)
		b.pass(2 * time.Second)
		require.Equal(t, "ImagePullBackOff", b.pod("web").Status.ContainerStatuses[0].State.Waiting.Reason)
		fail.Store(false)
		b.pass(10 * time.Second)
		require.Equal(t, corev1.PodRunning, b.pod("web").Status.Phase)
	})
}

func TestLivenessRestarts(t *testing.T) {
	var healthy atomic.Bool
	healthy.Store(true)
	node(t,
		fakeruntime.Config{Programs: map[string]fakeruntime.Program{"check": func(context.Context, *fakeruntime.Process) int {
			if healthy.Load() {
				return 0
			}
			return 1
		}}}, func(b *bench) {
			p := simple("web", "sleep", "1000000")
			p.Spec.Containers[0].LivenessProbe = &corev1.Probe{PeriodSeconds: 10, FailureThreshold: 3,
				ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check"}}}}
			b.create(p)
			b.pass(time.Minute)
			require.EqualValues(t, 0, b.pod("web").Status.ContainerStatuses[0].RestartCount)
			healthy.Store(false)
			b.pass(31 * time.Second)
			s := b.pod("web").Status.ContainerStatuses[0]
			require.EqualValues(t, 1, s.RestartCount)
			require.NotNil(t, s.State.Running)
			require.Contains(t, b.events.list(), "Killing: Container main failed liveness probe, will be restarted")
		})
}

func TestPreStopAndGrace(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("stubborn", "sh", "-c", "trap '' TERM; sleep 1000000")
		grace := int64(20)
		p.Spec.TerminationGracePeriodSeconds = &grace
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
			PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}},
		}
		b.create(p)
		require.NoError(t, b.cluster.Delete(b.ctx, b.pod("stubborn")))
		b.pass(4 * time.Second)
		require.NotNil(t, b.pod("stubborn").Status.ContainerStatuses[0].State.Running)
		b.pass(17 * time.Second)
		require.Empty(t, b.containers())
	})
}

func TestNodeAndLease(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		n := &corev1.Node{}
		require.NoError(t, b.cluster.Get(b.ctx, types.NamespacedName{Name: "node"}, n))
		require.True(t, nodestate.Ready(n))
		require.Equal(t, "node", n.Labels[corev1.LabelHostname])
		require.Equal(t, "fake://1.0.0", n.Status.NodeInfo.ContainerRuntimeVersion)
		require.Contains(t, n.Status.DeclaredFeatures, "InPlacePodVerticalScalingInitContainers")
		require.True(t, *n.Status.Features.SupplementalGroupsPolicy)
		first := n.Status.Conditions[0].LastHeartbeatTime
		b.pass(4 * time.Minute)
		require.NoError(t, b.cluster.Get(b.ctx, types.NamespacedName{Name: "node"}, n))
		require.Equal(t, first, n.Status.Conditions[0].LastHeartbeatTime, "no heartbeat before five minutes")
		b.pass(2 * time.Minute)
		require.NoError(t, b.cluster.Get(b.ctx, types.NamespacedName{Name: "node"}, n))
		require.NotEqual(t, first, n.Status.Conditions[0].LastHeartbeatTime)
	})
}

// TestNodeOfAnotherMachine checks that an agent whose node name is taken ends with an error and changes nothing.
func TestNodeOfAnotherMachine(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		b.stop()
		before := &corev1.Node{}
		require.NoError(t, b.cluster.Get(b.ctx, types.NamespacedName{Name: "node"}, before))
		a, err := New(Config{
			Environment: pod.Environment{
				Client:   b.cluster,
				Runtime:  b.runtime,
				Network:  b.network,
				NodeName: "node",
				DataDir:  filepath.Join(b.dir, "data"),
				RunDir:   filepath.Join(b.dir, "run"),
				LogDir:   filepath.Join(b.dir, "log"),
				Recorder: b.events,
			},
			NodeIP:      netip.MustParseAddr("192.0.2.2"),
			Annotations: map[string]string{"owner": "b"},
			VerifyNode:  func(n *corev1.Node) error { return errors.New(n.Name + " is taken") },
		})
		require.NoError(t, err)
		require.ErrorContains(t, a.Run(b.ctx), "node is taken")
		after := &corev1.Node{}
		require.NoError(t, b.cluster.Get(b.ctx, types.NamespacedName{Name: "node"}, after))
		require.Equal(t, before, after)
		b.start()
	})
}

func TestDeadline(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("late", "sleep", "1000000")
		seconds := int64(60)
		p.Spec.ActiveDeadlineSeconds = &seconds
		b.create(p)
		b.pass(59 * time.Second)
		require.Equal(t, corev1.PodRunning, b.pod("late").Status.Phase)
		b.pass(2 * time.Second)
		got := b.pod("late")
		require.Equal(t, corev1.PodFailed, got.Status.Phase)
		require.Equal(t, "DeadlineExceeded", got.Status.Reason)
	})
}

func TestNoGraceKillsAtOnce(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("stubborn", "sh", "-c", "trap '' TERM; sleep 1000000")
		grace := int64(0)
		p.Spec.TerminationGracePeriodSeconds = &grace
		b.create(p)
		began := time.Now()
		require.NoError(t, b.cluster.Delete(b.ctx, b.pod("stubborn")))
		b.settle()
		require.Empty(t, b.containers())
		require.Zero(t, time.Since(began))
		for _, c := range b.runtime.Calls() {
			require.NotContains(t, c, "Signal TERM")
		}
	})
}

func TestStatusThatOthersWroteIsRepaired(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := b.create(simple("web", "sleep", "1000000"))
		for i := range p.Status.Conditions {
			p.Status.Conditions[i].Status = corev1.ConditionFalse
		}
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "mine", Status: corev1.ConditionTrue})
		require.NoError(t, b.cluster.Status().Update(b.ctx, p))
		b.settle()
		p = b.pod("web")
		require.Equal(t, corev1.ConditionTrue, podCondition(p, corev1.PodReady))
		require.Equal(t, corev1.ConditionTrue, podCondition(p, "mine"))
	})
}

// TestStatusWrites checks that a normal pod's status is written twice, when ready and ended; slow starts are reported.
func TestStatusWrites(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := b.create(simple("web", "sleep", "1000"))
		require.Equal(t, corev1.PodRunning, p.Status.Phase)
		require.Equal(t, corev1.ConditionTrue, podCondition(p, corev1.PodReady))
		require.NotEmpty(t, p.Status.ContainerStatuses[0].ImageID)
		require.Equal(t, "2", p.ResourceVersion, "its creation and one status")

		slow := simple("slow", "sleep", "1000")
		slow.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
			PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}},
		}
		slow = b.create(slow)
		require.Equal(t, corev1.PodRunning, slow.Status.Phase)
		require.Equal(t, corev1.ConditionFalse, podCondition(slow, corev1.PodReady), "its hook runs")
		b.pass(6 * time.Second)
		require.Equal(t, corev1.ConditionTrue, podCondition(b.pod("slow"), corev1.PodReady))
	})
}

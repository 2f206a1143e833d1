package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	fakeruntime "github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// While a pod terminates, readiness probes run and liveness probes do not, for containers and sidecars.
func TestReadinessWhileAPodTerminates(t *testing.T) {
	var healthy atomic.Bool
	slow := func(ctx context.Context, p *fakeruntime.Process) int { // takes 20 s after SIGTERM
		select {
		case <-ctx.Done():
			return 137
		case <-p.Signals:
			healthy.Store(false)
		}
		select {
		case <-ctx.Done():
			return 137
		case <-time.After(20 * time.Second):
			return 0
		}
	}
	check := func(context.Context, *fakeruntime.Process) int {
		if healthy.Load() {
			return 0
		}
		return 1
	}
	always := corev1.ContainerRestartPolicyAlways
	for _, sidecar := range []bool{false, true} {
		healthy.Store(true)
		node(t, fakeruntime.Config{Programs: map[string]fakeruntime.Program{"check": check, "slow": slow}}, func(b *bench) {
			exec := corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check"}}}
			c := corev1.Container{
				Name: "main", Command: []string{"slow"},
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 2, FailureThreshold: 1, ProbeHandler: exec},
				LivenessProbe:  &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: exec},
			}
			p := simple("web", "sleep", "1000000")
			p.Spec.Containers[0] = c
			ready := func() bool { return b.pod("web").Status.ContainerStatuses[0].Ready }
			if sidecar {
				c.Name, c.RestartPolicy = "side", &always
				p.Spec.InitContainers, p.Spec.Containers = []corev1.Container{c}, []corev1.Container{
					{Name: "main", Command: []string{"sleep", "1000000"}},
				}
				ready = func() bool { return b.pod("web").Status.InitContainerStatuses[0].Ready }
			}
			b.create(p)
			b.pass(10 * time.Second)
			require.Equal(t, corev1.ConditionTrue, podCondition(b.pod("web"), corev1.PodReady))
			require.NoError(t, b.cluster.Delete(b.ctx, b.pod("web")))
			b.settle()
			require.True(t, ready(), "it still is ready")
			b.pass(3 * time.Second)
			require.False(t, ready())
			require.Equal(t, corev1.ConditionFalse, podCondition(b.pod("web"), corev1.PodReady))
			b.pass(10 * time.Second)
			for _, e := range b.events.list() {
				require.NotContains(t, e, "Liveness probe failed")
			}
			b.pass(10 * time.Second)
			require.Empty(t, b.containers())
		})
	}
}

func TestPodsThatTheNodeRefuses(t *testing.T) {
	no := false
	for name, tt := range map[string]struct {
		change func(*corev1.PodSpec)
		reason string // the failed pod's reason
		event  string
	}{
		"windows": {
			change: func(s *corev1.PodSpec) { s.OS = &corev1.PodOS{Name: corev1.Windows} }, reason: "PodOSNotSupported",
			event: "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS",
		},
		"sysctl": {change: func(s *corev1.PodSpec) {
			s.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.msgmax", Value: "65536"}}}
		}, reason: "SysctlForbidden", event: `SysctlForbidden: forbidden sysctl: "kernel.msgmax" not allowlisted`},
		"apparmor": {change: func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext = &corev1.SecurityContext{
				AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault},
			}
		}, reason: "AppArmor", event: "AppArmor: Cannot enforce AppArmor"},
		"users": {
			change: func(s *corev1.PodSpec) { s.HostUsers = &no },
			event:  "FailedCreatePodSandBox: Failed to create pod sandbox: can't set `spec.hostUsers: false`",
		},
		"handler": {change: func(s *corev1.PodSpec) { s.RuntimeClassName = new("other") },
			event: `FailedCreatePodSandBox: Failed to create pod sandbox: no runtime for "kata" is configured`},
		"class": {change: func(s *corev1.PodSpec) { s.RuntimeClassName = new("none") },
			event: `FailedCreatePodSandBox: Failed to create pod sandbox: RuntimeClass "none": `},
		"seccomp": {change: func(s *corev1.PodSpec) {
			name := "none.json"
			s.SecurityContext = &corev1.PodSecurityContext{
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &name},
			}
		}, event: `Failed: Error: cannot load seccomp profile "none.json"`},
	} {
		t.Run(name, func(t *testing.T) {
			node(t, fakeruntime.Config{}, func(b *bench) {
				require.NoError(t,
					b.cluster.Create(b.ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Handler: "kata"}))
				p := simple("web", "sleep", "1000000")
				tt.change(&p.Spec)
				p = b.create(p)
				b.pass(time.Minute)
				require.Empty(t, b.containers())
				require.Equal(t, tt.reason, p.Status.Reason)
				if tt.reason != "" {
					require.Equal(t, corev1.PodFailed, p.Status.Phase)
				} else {
					require.Equal(t, corev1.PodPending, p.Status.Phase)
				}
				require.Contains(t, strings.Join(b.events.list(), "\n"), tt.event)
			})
		})
	}
}

// A RuntimeClass may name the node's runtime. A pod whose class does not exist starts once it is created.
func TestRuntimeClassOfTheNode(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("web", "sleep", "1000000")
		p.Spec.RuntimeClassName = new("plain")
		b.create(p)
		b.pass(time.Minute)
		require.Empty(t, b.containers())
		require.NoError(t,
			b.cluster.Create(b.ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "plain"}, Handler: "runc"}))
		b.pass(2 * time.Minute)
		require.Equal(t, corev1.PodRunning, b.pod("web").Status.Phase)
		var n corev1.Node
		require.NoError(t, b.cluster.Get(b.ctx, ctrl.ObjectKey{Name: p.Spec.NodeName}, &n))
		require.Len(t, n.Status.RuntimeHandlers, 2)
		require.Equal(t, "runc", n.Status.RuntimeHandlers[1].Name)
	})
}

// A container may make /etc/hosts and its termination message arbitrarily large; reading them uses bounded memory.
func TestHugeFilesOfAContainer(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("web", "sh", "-c", "sleep 5; exit 3")
		p.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
		p = b.create(p)
		dir := filepath.Join(b.dir, "data", "pods", string(p.UID))
		messages, err := filepath.Glob(filepath.Join(dir, "containers", "main", "*"))
		require.NoError(t, err)
		require.Len(t, messages, 1)
		require.NoError(t, os.WriteFile(messages[0], []byte(strings.Repeat("x", 5000)+"end"), 0o600))
		require.NoError(t, os.Truncate(filepath.Join(dir, "hosts"), 1<<40))
		require.NoError(t, os.Truncate(filepath.Join(dir, "resolv.conf"), 1<<40))
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		b.pass(time.Minute) // the container has ended and restarted
		goruntime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
		s := b.pod("web").Status.ContainerStatuses[0]
		require.Positive(t, s.RestartCount)
		hosts, err := os.ReadFile(filepath.Join(dir, "hosts"))
		require.NoError(t, err)
		require.Less(t, len(hosts), 1000)
		require.Contains(t, string(hosts), "web")

		messages, err = filepath.Glob(filepath.Join(dir, "containers", "main", "*"))
		require.NoError(t, err)
		for _, m := range messages {
			require.NoError(t, os.Truncate(m, 1<<40))
		}
		b.pass(10 * time.Minute)
		require.Greater(t, b.pod("web").Status.ContainerStatuses[0].RestartCount, s.RestartCount)
	})
}

// A long termination message is cut at its beginning, as in the kubelet.
func TestTerminationMessageIsTheEnd(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("web", "sh", "-c", "sleep 5; exit 3")
		p.Spec.Containers[0].TerminationMessagePath, p.Spec.RestartPolicy = "/dev/termination-log", corev1.RestartPolicyNever
		p = b.create(p)
		messages, err := filepath.Glob(filepath.Join(b.dir, "data", "pods", string(p.UID), "containers", "main", "*"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(messages[0], []byte(strings.Repeat("x", 5000)+"end"), 0o600))
		b.pass(time.Minute)
		message := b.pod("web").Status.ContainerStatuses[0].State.Terminated.Message
		require.Len(t, message, 4096)
		require.True(t, strings.HasSuffix(message, "xend"))
	})
}

// /etc/hosts counts against the pod's ephemeral storage.
func TestEtcHostsCountsAgainstTheLimit(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("web", "sleep", "1000000")
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
			corev1.ResourceEphemeralStorage: resource.MustParse("1Mi"),
		}
		p = b.create(p)
		b.pass(time.Minute)
		require.Equal(t, corev1.PodRunning, b.pod("web").Status.Phase)
		require.NoError(t,
			os.WriteFile(filepath.Join(b.dir, "data", "pods", string(p.UID), "hosts"), make([]byte, 2<<20), 0o600))
		b.pass(15 * time.Second)
		require.Equal(t, "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
			b.pod("web").Status.Message)
	})
}

// A pod says which nodes have the image that its own node cannot pull.
func TestImageOfAnotherNode(t *testing.T) {
	node(t, fakeruntime.Config{Pull: func(context.Context, string) error { return errors.New("unreachable") }},
		func(b *bench) {
			other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Status: corev1.NodeStatus{
				Images: []corev1.ContainerImage{{Names: []string{"docker.io/library/shop:1"}}},
			}}
			require.NoError(b, b.cluster.Create(b.ctx, other))
			require.NoError(b, b.cluster.Status().Update(b.ctx, other))
			b.settle()
			require.Equal(b, []string{"other"}, b.agent.OtherNodes())
			p := simple("shop", "sleep", "1000")
			p.Spec.Containers[0].Image = "shop:1"
			b.create(p)
			waiting := b.pod("shop").Status.ContainerStatuses[0].State.Waiting
			require.Contains(b, waiting.Message, "unreachable. It is on node other: ")
		})
}

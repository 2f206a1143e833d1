package agent

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	fakeruntime "github.com/coracle-dev/coracle/pkg/agent/runtime/fake"
)

// While a pod ends its readiness is still asked for and told; its liveness is not, of containers and of sidecars alike.
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
			c := corev1.Container{Name: "main", Command: []string{"slow"}, ReadinessProbe: &corev1.Probe{PeriodSeconds: 2, FailureThreshold: 1, ProbeHandler: exec},
				LivenessProbe: &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: exec}}
			p := simple("web", "sleep", "1000000")
			p.Spec.Containers[0] = c
			ready := func() bool { return b.pod("web").Status.ContainerStatuses[0].Ready }
			if sidecar {
				c.Name, c.RestartPolicy = "side", &always
				p.Spec.InitContainers, p.Spec.Containers = []corev1.Container{c}, []corev1.Container{{Name: "main", Command: []string{"sleep", "1000000"}}}
				ready = func() bool { return b.pod("web").Status.InitContainerStatuses[0].Ready }
			}
			b.create(p)
			b.pass(10 * time.Second)
			require.Equal(t, corev1.ConditionTrue, condition(b.pod("web"), corev1.PodReady))
			require.NoError(t, b.cluster.Delete(b.ctx, b.pod("web")))
			b.settle()
			require.True(t, ready(), "it still is ready")
			b.pass(3 * time.Second)
			require.False(t, ready())
			require.Equal(t, corev1.ConditionFalse, condition(b.pod("web"), corev1.PodReady))
			b.pass(10 * time.Second)
			for _, e := range b.events.list() {
				require.NotContains(t, e, "Liveness probe failed")
			}
			b.pass(10 * time.Second)
			require.Empty(t, b.containers())
		})
	}
}

// What the node cannot honour never runs.
func TestPodsThatTheNodeRefuses(t *testing.T) {
	no := false
	for name, tt := range map[string]struct {
		change func(*corev1.PodSpec)
		reason string // of the failed pod
		event  string
	}{
		"windows": {change: func(s *corev1.PodSpec) { s.OS = &corev1.PodOS{Name: corev1.Windows} }, reason: "PodOSNotSupported",
			event: "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS"},
		"sysctl": {change: func(s *corev1.PodSpec) {
			s.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.msgmax", Value: "65536"}}}
		}, reason: "SysctlForbidden", event: `SysctlForbidden: forbidden sysctl: "kernel.msgmax" not allowlisted`},
		"apparmor": {change: func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext = &corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}}
		}, reason: "AppArmor", event: "AppArmor: Cannot enforce AppArmor"},
		"users": {change: func(s *corev1.PodSpec) { s.HostUsers = &no }, event: "FailedCreatePodSandBox: Failed to create pod sandbox: can't set `spec.hostUsers: false`"},
		"seccomp": {change: func(s *corev1.PodSpec) {
			name := "none.json"
			s.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &name}}
		}, event: `Failed: Error: cannot load seccomp profile "none.json"`},
	} {
		t.Run(name, func(t *testing.T) {
			node(t, fakeruntime.Config{}, func(b *bench) {
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

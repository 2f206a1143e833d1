package abuse

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/coracle-dev/coracle/test/host"
)

const image = "busybox:1.36"

// pod creates a pod of the tenant with one container that runs a script as root, and deletes it when the test ends.
func (c *cluster) pod(t *testing.T, name, script string, change ...func(*corev1.Pod)) {
	t.Helper()
	grace := int64(0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace, RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "a", Image: image, Command: []string{"sh", "-c", script}}},
	}}
	for _, f := range change {
		f(pod)
	}
	pods := c.tenant.CoreV1().Pods(tenantNamespace)
	_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, pods.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace}))
	})
}

// until waits for a pod of the tenant to satisfy the condition.
func (c *cluster) until(t *testing.T, name, what string, is func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*host.Patience) // one pod writes 400 MB
	defer cancel()
	yes := true
	w, err := c.tenant.CoreV1().Pods(tenantNamespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(), SendInitialEvents: &yes,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
	})
	require.NoError(t, err)
	defer w.Stop()
	var last *corev1.Pod
	for event := range w.ResultChan() {
		if pod, ok := event.Object.(*corev1.Pod); ok && event.Type != watch.Bookmark {
			if last = pod; is(pod) {
				return pod
			}
		}
	}
	require.NotNil(t, last, "pod %s was never seen", name)
	t.Fatalf("pod %s is not %s: %+v", name, what, last.Status)
	return nil
}

func running(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func (c *cluster) exec(t *testing.T, pod string, command ...string) (string, error) {
	t.Helper()
	return c.Try(append([]string{"ctl", "exec", "-n", tenantNamespace, pod, "--"}, command...)...)
}

// A service whose external name is itself, and two that refer to each other.
func dnsLoop(t *testing.T, c *cluster) {
	for name, to := range map[string]string{"self": "self", "ping": "pong", "pong": "ping"} {
		_, err := c.tenant.CoreV1().Services(tenantNamespace).Create(t.Context(),
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: to + ".tenant.svc.cluster.local"}},
			metav1.CreateOptions{})
		require.NoError(t, err)
	}
	c.pod(t, "asker", "sleep 3600")
	c.until(t, "asker", "running", running)
	for _, name := range []string{"self", "ping"} {
		out, err := c.exec(t, "asker", "nslookup", name+".tenant.svc.cluster.local")
		require.Error(t, err, out)
		t.Logf("told: %s", strings.TrimSpace(out))
	}
	out, err := c.exec(t, "asker", "nslookup", "kubernetes.default.svc.cluster.local")
	require.NoError(t, err, out)
}

// A service whose external IP is the address of cluster DNS.
func externalIPs(t *testing.T, c *cluster) {
	dns, err := c.admin.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	require.NoError(t, err)
	claim := func(api interface {
		Create(context.Context, *corev1.Service, metav1.CreateOptions) (*corev1.Service, error)
	}) error {
		_, err := api.Create(t.Context(),
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "claim"}, Spec: corev1.ServiceSpec{
				ExternalIPs: []string{dns.Spec.ClusterIP}, Selector: map[string]string{"a": "b"},
				Ports: []corev1.ServicePort{
					{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
					{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP},
				},
			}}, metav1.CreateOptions{})
		return err
	}
	if err := claim(c.tenant.CoreV1().Services(tenantNamespace)); err != nil {
		t.Logf("told: %v", err)
	}
	c.pod(t, "resolver", "sleep 3600")
	c.until(t, "resolver", "running", running)
	out, err := c.exec(t, "resolver", "nslookup", "kubernetes.default.svc.cluster.local")
	require.NoError(t, err, out)
}

// A container's root user makes files that the agent reads a terabyte long, or replaces them with other file types.
func hostsOfATerabyte(t *testing.T, c *cluster) {
	c.pod(t, "truncate", "truncate -s 1T /etc/hosts; truncate -s 1T /dev/termination-log; touch /tmp/done; sleep 3600",
		func(pod *corev1.Pod) {
			pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
			pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
				PeriodSeconds: 1,
				ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-f", "/tmp/done"}}},
			}
		})
	ready := func(pod *corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].Ready || ended(pod)
	}
	c.until(t, "truncate", "ready", ready)
	// When the container ends, the agent reads its termination log and writes the files for the next container.
	_, _ = c.exec(t, "truncate", "sh", "-c", "kill -9 -1; kill -TERM 1; kill -9 1")
	pods := c.tenant.CoreV1().Pods(tenantNamespace)
	pod, err := pods.Get(t.Context(), "truncate", metav1.GetOptions{})
	require.NoError(t, err)
	t.Logf("told: phase %s %s %s", pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
}

// A container writes as fast as it can. Its logs must be bounded at all times.
func logFlood(t *testing.T, c *cluster) {
	c.pod(t, "flood",
		"yes 'a line of a log that nobody wants to read, and that is written without an end' | head -c 400000000; echo; "+
			"echo done")
	c.until(t, "flood", "ended", ended)
	require.Less(t, folder(t, filepath.Join(c.DataDir, "logs"), "/var/log/pods"), int64(100<<20), "logs kept")
	out, err := c.Try("ctl", "logs", "-n", tenantNamespace, "flood", "--tail=1")
	require.NoError(t, err, out)
	require.Equal(t, "done\n", out)
}

// folder returns the size of the tenant's pods' files below the first folder that exists, in bytes.
func folder(t *testing.T, roots ...string) (size int64) {
	t.Helper()
	for _, root := range roots {
		if _, err := os.Stat(root); err != nil {
			continue
		}
		require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && strings.Contains(path, tenantNamespace+"_") {
				if info, err := d.Info(); err == nil {
					size += info.Size()
				}
			}
			return nil
		}))
		return size
	}
	t.Fatal("no log folder exists")
	return 0
}

// A log line of 200 MB.
func endlessLine(t *testing.T, c *cluster) {
	c.pod(t, "line", "head -c 200000000 /dev/zero | tr '\\0' x")
	c.until(t, "line", "ended", ended)
	out, err := c.Try("ctl", "logs", "-n", tenantNamespace, "line", "--tail=1", "--limit-bytes=1000")
	require.NoError(t, err)
	require.LessOrEqual(t, len(out), 1000)
}

// A fork bomb stays within its pod.
func forkBomb(t *testing.T, c *cluster) {
	c.pod(t, "bomb", "f() { f | f & }; f; sleep 3600", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
		}
	})
	c.until(t, "bomb", "started", func(pod *corev1.Pod) bool { return running(pod) || ended(pod) })
	c.pod(t, "neighbor", "echo hello")
	c.until(t, "neighbor", "ended", ended)
}

// A pod with a shared PID namespace can neither reach the machine through the pause process nor overwrite its program.
func writeToProcess1(t *testing.T, c *cluster) {
	share := true
	c.pod(t, "shared",
		`ls -l /proc/1/root/ 2>&1 | head -3; grep CapEff /proc/1/status; (echo x > /proc/1/exe) 2>&1; cat /proc/1/root/etc/hostname 2>&1; exit 0`, func(pod *corev1.Pod) {
			pod.Spec.ShareProcessNamespace = &share
		})
	c.until(t, "shared", "ended", ended)
	out := c.Run("ctl", "logs", "-n", tenantNamespace, "shared")
	t.Logf("told: %s", out)
	require.Contains(t, out, "CapEff:\t0000000000000000")
	hostname, err := os.ReadFile("/etc/hostname")
	require.NoError(t, err)
	if name := strings.TrimSpace(string(hostname)); name != "" {
		require.NotContains(t, strings.Split(out, "\n"), name)
	}
	// Another pod still starts: the shim is unchanged.
	c.pod(t, "after", "echo hello")
	c.until(t, "after", "ended", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
}

// A root user in a pod's user namespace has all capabilities, sees all of /proc and creates device files. It must
// not affect the machine or a neighbor.
func rootOfItsOwn(t *testing.T, c *cluster) {
	c.pod(t, "victim", "touch /secret; chmod 600 /secret; while true; do sleep 1000; done", func(pod *corev1.Pod) {
		pod.Spec.HostUsers = new(false)
	})
	c.until(t, "victim", "runs", running)
	before, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	require.NoError(t, err)
	c.pod(t, "root", `did() { echo "did: $1"; }
mknod /disk b 254 0 2>/dev/null && head -c 1 /disk >/dev/null 2>&1 && did disk
mkdir /m; for d in /dev/vd? /dev/sd?; do mount -t ext4 $d /m 2>/dev/null && did mount; head -c 1 $d >/dev/null 2>&1 && did read; done
echo '|/bin/sh' 2>/dev/null >/proc/sys/kernel/core_pattern && did core_pattern
echo 0 2>/dev/null >/proc/sys/kernel/pid_max && did pid_max
echo b 2>/dev/null >/proc/sysrq-trigger && did sysrq
for f in /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max; do [ -e $f ] && echo -1 2>/dev/null >$f && did cgroup; done
for f in /sys/fs/cgroup/devices/devices.allow; do [ -e $f ] && echo 'a *:* rwm' 2>/dev/null >$f && did devices; done
date -s 2001-01-01 >/dev/null 2>&1; [ $(date +%Y) = 2001 ] && did clock
dmesg -c 2>/dev/null | grep -q . && did dmesg
swapoff -a 2>/dev/null; insmod /disk 2>/dev/null && did module
nsenter -t 1 -a true 2>/dev/null; ls /proc/*/root/secret 2>/dev/null | grep -q . && did neighbor
kill -9 -1 2>/dev/null; echo "ended as $(id -u)"`, func(pod *corev1.Pod) {
		unmasked := corev1.UnmaskedProcMount
		pod.Spec.HostUsers = new(false)
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true), ProcMount: &unmasked}
	})
	c.until(t, "root", "ended", ended)
	require.Equal(t, "ended as 0\n", c.Run("ctl", "logs", "-n", tenantNamespace, "root"))
	after, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	require.NoError(t, err)
	require.Equal(t, before, after)
	c.until(t, "victim", "still runs", running)
}

// The agent refuses pods with fields that it cannot honour, instead of ignoring the fields.
func notHonoured(t *testing.T, c *cluster) {
	for name, change := range map[string]func(*corev1.Pod){
		"windows": func(pod *corev1.Pod) { pod.Spec.OS = &corev1.PodOS{Name: corev1.Windows} },
		"sysctl": func(pod *corev1.Pod) {
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{
				Sysctls: []corev1.Sysctl{{Name: "kernel.msgmax", Value: "65536"}},
			}
		},
		"apparmor": func(pod *corev1.Pod) {
			profile := "strict"
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{
				AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &profile},
			}
		},
		"seccomp": func(pod *corev1.Pod) {
			profile := "none/such.json"
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &profile},
			}
		},
		"users": func(pod *corev1.Pod) { // a user that the pod's namespace does not have
			pod.Spec.HostUsers = new(false)
			pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(1 << 20))}
		},
	} {
		pod := "refused-" + name
		c.pod(t, pod, "echo ran; cat /proc/self/uid_map", change)
		seen := c.until(t, pod, "refused", func(pod *corev1.Pod) bool { return ended(pod) || waiting(pod) != "" })
		t.Logf("told: %s: %s %s %s %s", name, seen.Status.Phase, seen.Status.Reason, seen.Status.Message, waiting(seen))
		require.NotEqual(t, corev1.PodSucceeded, seen.Status.Phase, "the pod ran")
	}
}

// waiting returns why a pod's container waits, "" if it is being created.
func waiting(pod *corev1.Pod) string {
	for _, s := range pod.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return fmt.Sprintf("%s %s", w.Reason, w.Message)
		}
	}
	return ""
}

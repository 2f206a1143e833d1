package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/node/host/shutdown/logindtest"
	"github.com/coracle-dev/coracle/test/host"
)

// TestMachineShutdown checks that when logind announces a shutdown, containers end by priority within their grace
// periods, critical pods last, and that the inhibitor is then released. After a cancelled shutdown the node is
// ready again.
func TestMachineShutdown(t *testing.T) {
	bus := logindtest.New(t)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.Address())
	bus.SetDelay(time.Minute)
	h := host.New(t)
	h.Start("--shutdown-grace-period-by-pod-priority=-10=1s,0=20s,2000000000=20s")
	h.Load()
	bus.Await(1)
	h.Apply("{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: low}, value: -10}")
	out := filepath.Join(h.Home, "out")
	require.NoError(t, os.MkdirAll(out, 0o777))
	for name, command := range map[string]string{
		"polite":   "trap 'echo polite >> /out/ended; exit 0' TERM; sleep 3600 & wait",
		"critical": "trap 'echo critical >> /out/ended; exit 0' TERM; sleep 3600 & wait",
		"stubborn": "trap '' TERM; sleep 3600",
	} {
		class := map[string]string{"critical": "system-node-critical", "stubborn": "low"}[name]
		h.Apply(strings.NewReplacer("NAME", name, "CLASS", class, "COMMAND", command, "OUT", out).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  priorityClassName: "CLASS"
  containers:
  - {name: c, image: "busybox:1.36", imagePullPolicy: IfNotPresent, command: [sh, -c, "COMMAND"], volumeMounts: [{name: out, mountPath: /out}, {name: memory, mountPath: /memory}]}
  volumes: [{name: out, hostPath: {path: OUT}}, {name: memory, emptyDir: {medium: Memory}}]
`))
	}
	h.Ctl("wait pod/polite pod/critical pod/stubborn --for=condition=Ready --timeout=80s")
	mounts := func() string {
		data, err := os.ReadFile("/proc/mounts")
		require.NoError(t, err)
		return string(data)
	}
	volumes := filepath.Join(h.DataDir, "agent", "pods")
	require.Contains(t, mounts(), volumes)

	bus.Begin()
	h.Ctl("wait node/" + h.Name + " --for=condition=Ready=false --timeout=80s")
	require.Equal(t, "KubeletNotReady/node is shutting down",
		h.Ctl("get node "+h.Name+
			` -o jsonpath={.status.conditions[?(@.type=="Ready")].reason}/{.status.conditions[?(@.type=="Ready")].message}`))
	bus.Await(0)
	ended, err := os.ReadFile(filepath.Join(out, "ended"))
	require.NoError(t, err)
	require.Equal(t, "polite\ncritical\n", string(ended))
	for _, name := range []string{"polite", "critical", "stubborn"} {
		// logind does not wait for a slow machine.
		h.Ctl("wait pod/" + name + " --for=jsonpath={.status.phase}=Failed --timeout=80s")
		require.Equal(t, "Failed/Terminated/True/TerminationByKubelet", h.Ctl("get pod "+name+
			` -o jsonpath={.status.phase}/{.status.reason}/{.status.conditions[?(@.type=="DisruptionTarget")].status}/{.status.conditions[?(@.type=="DisruptionTarget")].reason}`))
	}
	require.Equal(t, "137", h.Ctl("get pod stubborn -o jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"))
	require.Eventually(t, func() bool {
		return !strings.Contains(mounts(), volumes)
	}, host.Patience, 50*time.Millisecond, "they are unmounted")

	metrics := h.Ctl("get --raw /api/v1/nodes/" + h.Name + "/proxy/metrics")
	require.Regexp(t, `(?m)^kubelet_graceful_shutdown_start_time_seconds [1-9]`, metrics)
	require.Regexp(t, `(?m)^kubelet_graceful_shutdown_end_time_seconds [1-9]`, metrics)

	bus.Cancel()
	h.Ctl("wait node/" + h.Name + " --for=condition=Ready --timeout=80s")
	bus.Await(1)
	h.Run("stop")
	bus.Await(0)
}

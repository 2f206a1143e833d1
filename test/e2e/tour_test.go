package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestTour follows the README's tour.
func TestTour(t *testing.T) {
	h := host.New(t)
	h.Start()

	require.Regexp(t, `(?m)^`+h.Name+` +Ready `, h.Ctl("get nodes"))
	require.FileExists(t, filepath.Join(h.Home, ".kube/config"))
	info, err := os.Stat(filepath.Join(h.DataDir, "kubeconfig"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	again := h.Run("start")
	require.Contains(t, again, "already running")

	h.Ctl("apply -f " + filepath.Join(host.Root(t), "manifests/examples/hello.yaml"))
	h.Ctl("rollout status deployment/hello --timeout=120s")
	pods := strings.Fields(h.Ctl("get pods -l app=hello -o name"))
	require.Len(t, pods, 3)

	t.Run("the service answers from all pods in turn", func(t *testing.T) {
		address := h.Ctl("get service hello -o jsonpath={.spec.clusterIP}")
		// all asks twelve times and reports whether all pods have answered.
		all := func(ask func() (string, error)) bool {
			seen := map[string]bool{}
			for range 12 {
				answer, err := ask()
				if err != nil || !strings.Contains(answer, "Hello from a coracle!") {
					return false
				}
				for _, p := range pods {
					if strings.Contains(answer, strings.TrimPrefix(p, "pod/")) {
						seen[p] = true
					}
				}
			}
			return len(seen) == 3
		}
		require.Eventually(t, func() bool {
			return all(func() (string, error) { return h.Curl("http://" + address) })
		}, host.Patience, 50*time.Millisecond)

		h.Ctl("run client --image=busybox:1.36 --restart=Never -- sleep 600")
		h.Ctl("wait pod/client --for=condition=Ready --timeout=120s")
		require.True(t, all(func() (string, error) { return h.Ctl("exec client -- wget -q -O - http://" + address), nil }))
	})

	t.Run("scale", func(t *testing.T) {
		h.Ctl("scale deployment/hello --replicas=5")
		h.Ctl("rollout status deployment/hello --timeout=120s")
		require.Len(t, strings.Fields(h.Ctl("get pods -l app=hello -o name")), 5)
		h.Ctl("scale deployment/hello --replicas=1")
		h.Ctl("wait deployment/hello --for=jsonpath={.status.replicas}=1 --timeout=120s")
	})

	t.Run("exec, logs and port-forward", func(t *testing.T) {
		require.Equal(t, "in\n", h.Pipe("in\n", "ctl", "exec", "-i", "client", "--", "cat"))
		out := h.Fails("ctl", "exec", "client", "--", "sh", "-c", "exit 7")
		require.Contains(t, out, "exit code 7")
		h.Run("ctl", "run", "talker", "--image=busybox:1.36", "--restart=Never", "--", "sh", "-c", "echo one; echo two")
		h.Ctl("wait pod/talker --for=jsonpath={.status.phase}=Succeeded --timeout=120s")
		require.Equal(t, "one\ntwo\n", h.Ctl("logs -f talker"))
		require.Equal(t, "two\n", h.Ctl("logs --tail=1 talker"))

		ctx, cancel := context.WithTimeout(t.Context(), host.Patience)
		forward := h.Command(ctx, h.Coracle, "ctl", "port-forward", "deployment/hello", ":8080")
		lines, err := forward.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, forward.Start())
		defer func() { cancel(); _ = forward.Wait() }()
		buffer := make([]byte, 200)
		n, err := lines.Read(buffer)
		require.NoError(t, err)
		port := regexp.MustCompile(`127\.0\.0\.1:(\d+)`).FindSubmatch(buffer[:n])
		require.NotNil(t, port, string(buffer[:n]))
		answer, err := h.Curl("http://127.0.0.1:" + string(port[1]))
		require.NoError(t, err)
		require.Contains(t, answer, "Hello from a coracle!")
	})

	t.Run("tasks", func(t *testing.T) {
		out := h.Run("run", "hi", "--image", "busybox:1.36", "--wait", "--", "echo", "hello there")
		require.Equal(t, "hello there\n", out) // progress goes to standard error
		require.Equal(t, "hello there\n", h.Run("logs", "hi"))
		require.Regexp(t, `(?m)^hi +busybox:1.36 +Completed +`+h.Name+` +0 `, h.Run("ps", "-a"))
		require.Contains(t, h.Fails("run", "bad", "--image", "busybox:1.36", "--wait", "--", "sh", "-c", "exit 3"),
			"task bad failed")
		require.Regexp(t, `(?m)^bad +busybox:1.36 +Failed +`+h.Name+` +3 `, h.Run("ps", "-a"))
		require.Regexp(t, `(?m)^`+h.Name+` +Online .* \d+\.\d [MGT]iB/\d+\.\d [GT]iB +\d+/\d+ `, h.Run("nodes"))
		require.Regexp(t, `(?m)^`+h.Name+` +Online .* \d+\.\d [KMG]iB +\d+$`, h.Run("nodes", "-o", "wide"))
		require.Contains(t, h.Fails("logs", "nobody"), "there is no task nobody")
	})

	t.Run("delete", func(t *testing.T) {
		h.Ctl("delete -f " + filepath.Join(host.Root(t), "manifests/examples/hello.yaml"))
		h.Ctl("wait pod -l app=hello --for=delete --timeout=120s")
	})
}

// TestKill kills the process while it works. No acknowledged write may be lost, and containers must keep running.
func TestKill(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Ctl("run keeper --image=busybox:1.36 -- sleep 3600")
	h.Ctl("wait pod/keeper --for=condition=Ready --timeout=120s")
	container := h.Ctl("get pod keeper -o jsonpath={.status.containerStatuses[0].containerID}")
	before := h.Ctl("exec keeper -- cat /proc/1/stat")

	for round := range 3 {
		name := "acknowledged-" + strconv.Itoa(round)
		h.Ctl("create configmap " + name + " --from-literal=a=b")
		h.Kill()
		h.Run("start")
		h.Ctl("get configmap " + name)
		h.Ctl("wait pod/keeper --for=condition=Ready --timeout=120s")
		require.Equal(t, container, h.Ctl("get pod keeper -o jsonpath={.status.containerStatuses[0].containerID}"))
		require.Equal(t, "0", h.Ctl("get pod keeper -o jsonpath={.status.containerStatuses[0].restartCount}"))
	}
	now := h.Ctl("exec keeper -- cat /proc/1/stat")
	require.Equal(t, started(before), started(now), "the container was started again")

	// The exit code of a container that exits while no agent runs is reported later.
	h.Run("ctl", "run", "brief", "--image=busybox:1.36", "--restart=Never", "--", "sh", "-c",
		"until [ -e /tmp/go ]; do sleep 0.1; done; sleep 1; exit 5")
	h.Ctl("wait pod/brief --for=condition=Ready --timeout=120s")
	// The container exits shortly after the process was killed.
	h.Ctl("exec brief -- touch /tmp/go")
	h.Kill()
	h.Run("start")
	h.Ctl("wait pod/brief --for=jsonpath={.status.phase}=Failed --timeout=120s")
	require.Equal(t, "5", h.Ctl("get pod brief -o jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"))
}

func started(stat string) string {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')'):])
	return fields[20]
}

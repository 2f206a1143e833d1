package e2e

import (
	"bufio"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
	"github.com/coracle-dev/coracle/test/upstream"
)

// aside starts coracle with arguments, and returns once it has logged a line with the text. kill ends it with
// SIGKILL; otherwise it is stopped when the test ends.
func aside(t *testing.T, h *host.Host, text string, args ...string) (kill func()) {
	t.Helper()
	cmd := h.Command(t.Context(), h.Coracle, args...)
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	require.NoError(t, cmd.Start())
	said, ended := make(chan struct{}), make(chan struct{})
	go func() {
		lines := bufio.NewScanner(r)
		for found := false; lines.Scan(); {
			if !found && strings.Contains(lines.Text(), text) {
				found = true
				close(said)
			}
			t.Log(args[0], lines.Text())
		}
		close(ended)
	}()
	stop := func(s syscall.Signal) {
		_ = cmd.Process.Signal(s)
		_ = cmd.Wait()
		_ = w.Close()
		<-ended
	}
	t.Cleanup(func() { stop(syscall.SIGTERM) })
	select {
	case <-said:
	case <-ended:
		require.FailNow(t, "it ended", "coracle %v", args)
	}
	return func() { stop(syscall.SIGKILL) }
}

// TestUpstreamAPIServerWithOurParts runs scheduler and controllers as separate processes against upstream's API server.
// Pods are created, bound and counted, deleted objects are collected, and a standby replaces a killed process.
func TestUpstreamAPIServerWithOurParts(t *testing.T) {
	upstream.Needs(t)
	h := host.New(t)
	cluster := upstream.New(t, h, upstream.Config{})
	admin := []string{"--kubeconfig", cluster.Kubeconfig}
	ctl := func(line string) string {
		return h.Run(append(append([]string{"ctl"}, admin...), strings.Fields(line)...)...)
	}
	aside(t, h, "nodes registered", append([]string{"node", "fake", "--count", "3"}, admin...)...)
	schedule := func() (kill func()) {
		return aside(t, h, "became leader", "scheduler", "--kubeconfig", cluster.KubeconfigOf(upstream.Scheduler))
	}
	kill := schedule()
	aside(t, h, "became leader", append([]string{"controllers"}, admin...)...)

	ctl("create deployment web --image x --replicas 5")
	ctl("rollout status deployment/web --timeout 2m")
	ctl("expose deployment web --port 80")
	ctl("wait endpointslices -l kubernetes.io/service-name=web --for=jsonpath={.endpoints[4].conditions.ready}=true " +
		"--timeout 2m")
	ctl("create job once --image x")
	ctl("wait job/once --for=condition=Complete --timeout 2m")
	ctl("create namespace brief")
	ctl("create configmap c -n brief")
	ctl("delete namespace brief --timeout 2m")
	ctl("delete deployment web")
	ctl("wait pods -l app=web --for=delete --timeout 2m")
	for _, port := range []string{"10259", "10257"} {
		body, err := h.Curl("http://127.0.0.1:" + port + "/readyz")
		require.NoError(t, err)
		require.Equal(t, "ok", body)
		body, err = h.Curl("http://127.0.0.1:" + port + "/metrics")
		require.NoError(t, err)
		require.Contains(t, body, "leader_election_master_status")
	}
	require.Contains(t, ctl("get leases -n kube-system -o name"), "kube-scheduler")
	require.Contains(t, ctl("get events"), "Successfully assigned default/once")

	kill() // the killed process has not released its lease
	ctl("create deployment late --image x --replicas 2")
	schedule()
	ctl("rollout status deployment/late --timeout 2m")
}

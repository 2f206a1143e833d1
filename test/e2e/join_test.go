package e2e

import (
	"bytes"
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// TestJoin adds a second machine to a cluster: its pods are run, reached and looked into like any other.
func TestJoin(t *testing.T) {
	h := host.New(t)
	other := h.Beside()
	h.Start()
	var status struct{ Join string }
	require.NoError(t, json.Unmarshal([]byte(h.Run("status", "-o", "json")), &status))
	words := strings.Fields(status.Join)
	require.Equal(t, "coracle", words[0])

	wrong := append([]string{}, words[1:]...)
	wrong[len(wrong)-1] = wrong[len(wrong)-1][:80] + "aaaa"
	require.Contains(t, other.Fails(wrong...), "token")

	agent := other.Command(t.Context(), other.Coracle, words[1:]...)
	var log bytes.Buffer
	agent.Stdout, agent.Stderr = &log, &log
	require.NoError(t, agent.Start())
	defer func() {
		// nsenter has become the agent, so the signal is the agent's.
		require.NoError(t, agent.Process.Signal(syscall.SIGTERM))
		require.NoError(t, agent.Wait(), log.String())
	}()
	// ctl wait refuses an object that is not there yet; a watch by name waits for it.
	h.Ctl("wait node/" + other.Name + " --for=create --timeout=30s")
	h.Ctl("wait node/" + other.Name + " --for=condition=Ready --timeout=30s")
	other.Load()

	h.Apply(strings.NewReplacer("NODE", other.Name, "HERE", h.Name).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: far, labels: {app: far}}
spec:
  nodeName: NODE
  containers:
  - {name: far, image: coracle/hello, imagePullPolicy: IfNotPresent}
---
apiVersion: v1
kind: Service
metadata: {name: far}
spec: {selector: {app: far}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: near}
spec:
  nodeName: HERE
  containers: [{name: near, image: "busybox:1.36", command: [sleep, "3600"]}]
`))
	h.Ctl("wait pod/far pod/near --for=condition=Ready --timeout=30s")
	require.Contains(t, h.Ctl("logs far"), "serves on")
	require.Contains(t, h.Ctl("exec near -- wget -q -O - http://far"), "far: hello", "from a pod on the one node to a service on the other")
	answer, err := h.Curl("http://" + h.Ctl("get service far -o jsonpath={.spec.clusterIP}"))
	require.NoError(t, err)
	require.Contains(t, answer, "far: hello")
}

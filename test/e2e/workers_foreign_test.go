package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/test/host"
)

// foreign are pods that handle messages with programs of the machine, one pod for each mode.
const foreign = `
apiVersion: v1
kind: Pod
metadata:
  name: lambda
  annotations: {workers.coracle.dev/queue: '{"timeoutSeconds": 30}'}
spec:
  containers:
  - {name: c, image: "busybox:1.36", command: [/programs/lambda], volumeMounts: [{name: programs, mountPath: /programs}]}
  volumes: [{name: programs, hostPath: {path: DIR}}]
---
apiVersion: v1
kind: Pod
metadata:
  name: events
  annotations: {workers.coracle.dev/queue: '{"mode": "Push", "port": 8080, "concurrency": 4}'}
spec:
  containers:
  - {name: c, image: "busybox:1.36", command: [/programs/events], volumeMounts: [{name: programs, mountPath: /programs}]}
  volumes: [{name: programs, hostPath: {path: DIR}}]
`

// python is a pod that runs the Python example's handler with the machine's Python.
const python = `
apiVersion: v1
kind: Pod
metadata:
  name: python
  annotations: {workers.coracle.dev/queue: '{}'}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: "busybox:1.36"
    command: COMMAND
    volumeMounts:
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: lib, mountPath: /lib, readOnly: true}
    - {name: lib64, mountPath: /lib64, readOnly: true}
  volumes: [{name: usr, hostPath: {path: /usr}}, {name: lib, hostPath: {path: /lib}}, {name: lib64, hostPath: {path: /lib64}}]
`

// TestForeignHandlers checks that unmodified programs written with AWS's Lambda library and the CloudEvents SDK
// handle messages.
func TestForeignHandlers(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	// The same flags as this test's build, so that the standard library is in the build cache.
	build := exec.Command("go", "build", "-trimpath", "-o", dir, "./...")
	build.Dir = filepath.Join(host.Root(t), "test/clients/foreign/workers")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	h := host.New(t)
	h.Start()
	h.Apply(strings.ReplaceAll(foreign, "DIR", dir))
	pods := "pod/lambda pod/events"
	_, err = exec.LookPath("/usr/bin/python3")
	if err == nil {
		text, err := os.ReadFile(filepath.Join(host.Root(t), "manifests/examples/workers/python.yaml"))
		require.NoError(t, err)
		var w workers.Worker
		require.NoError(t, yaml.UnmarshalStrict(text, &w))
		w.Spec.Command[0] = "/usr/bin/python3"
		command, err := json.Marshal(w.Spec.Command)
		require.NoError(t, err)
		h.Apply(strings.ReplaceAll(python, "COMMAND", string(command)))
		pods += " pod/python"
	}
	h.Ctl("wait " + pods + " --for=condition=Ready --timeout=120s")
	s := newSender(t, h)

	code, body, header := s.send("pods/lambda", "wait=true", `{"Name": "Ada"}`)
	require.Equal(t, 200, code, body)
	require.JSONEq(t, `{"Greeting": "Hello Ada", "RequestID": "`+header.Get("Coracle-Message-Id")+`", "Left": true}`, body)
	code, body, header = s.send("pods/lambda", "wait=true", `{}`)
	require.Equal(t, 500, code, body)
	require.Contains(t, body, "nobody is there")
	require.Equal(t, "errorString", header.Get("Lambda-Runtime-Function-Error-Type"))
	code, body, _ = s.send("pods/lambda", "wait=true", `{"Name": "panic"}`)
	require.Equal(t, 500, code, body)
	require.Contains(t, body, "at the disco")
	code, body, header = s.send("pods/lambda", "wait=true", `{"Name": "stream"}`)
	require.Equal(t, 200, code, body)
	require.Equal(t, "one two three", body)
	require.Empty(t, header.Get("Content-Length"), "in parts")
	code, body, _ = s.send("pods/lambda", "wait=true", `{"Name": "stream and fail"}`)
	require.Equal(t, 0, code, "the response is aborted: %s", body)
	body = h.Fails("send", "pod/lambda", `{"Name": "stream and fail"}`, "--wait")
	require.Contains(t, body, "one two three")
	require.Contains(t, body, "the reply broke off: HandlerFailed: pod lambda: it ran out of words")

	code, body, _ = s.send("pods/events", "wait=true", "hello")
	require.Equal(t, 200, code, body)
	require.Equal(t, "HELLO dev.coracle.message", body)
	code, body, _ = s.send("pods/events", "wait=true", "bad")
	require.Equal(t, 500, code, body)
	require.Contains(t, body, "it is bad")

	if strings.Contains(pods, "python") {
		for range 2 {
			code, body, _ = s.send("pods/python", "wait=true", "how many words")
			require.Equal(t, 200, code, body)
			require.Equal(t, "3", body)
		}
		code, body, _ = s.send("pods/python", "wait=true", "\xff")
		require.Equal(t, 500, code, body)
	}
}

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

// foreign are pods that receive messages with programs of the machine, one of each mode.
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

// TestForeignHandlers: programs written with AWS's Lambda library and with the SDK of CloudEvents handle messages unchanged.
func TestForeignHandlers(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	build := exec.Command("go", "build", "-o", dir, "./...")
	build.Dir = filepath.Join(host.Root(t), "test/clients/foreign/workers")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	h := host.New(t)
	h.Start()
	h.Apply(strings.ReplaceAll(foreign, "DIR", dir))
	h.Ctl("wait pod/lambda pod/events --for=condition=Ready --timeout=60s")
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

	code, body, _ = s.send("pods/events", "wait=true", "hello")
	require.Equal(t, 200, code, body)
	require.Equal(t, "HELLO dev.coracle.message", body)
	code, body, _ = s.send("pods/events", "wait=true", "bad")
	require.Equal(t, 500, code, body)
	require.Contains(t, body, "it is bad")
}

package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const setsManifest = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: web
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: "busybox:1.36", command: [sh, -c, "trap exit TERM; while true; do sleep 1 & wait; done"]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: log}
spec:
  selector: {matchLabels: {app: log}}
  template:
    metadata: {labels: {app: log}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: "busybox:1.36", command: [sh, -c, "trap exit TERM; while true; do sleep 1 & wait; done"]}]
`

// TestSets follows the life of a StatefulSet and a DaemonSet with kubectl.
func TestSets(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Apply(setsManifest)
	settled := func() {
		t.Helper()
		h.Ctl("rollout status sts/web --timeout=120s")
		h.Ctl("rollout status ds/log --timeout=120s")
	}
	settled()
	require.Equal(t, "pod/web-0\npod/web-1\npod/web-2\n", h.Ctl("get pods -l app=web -o name"))
	address := h.Ctl("get pod web-1 -o jsonpath={.status.podIP}")
	h.Shows(address, "exec web-0 -- nslookup web-1.web.default.svc.cluster.local")

	t.Run("rollout, history and undo", func(t *testing.T) {
		h.Ctl("set env sts/web A=1")
		h.Ctl("set env ds/log A=1")
		settled()
		for _, set := range []string{"sts/web", "ds/log"} {
			require.Regexp(t, `(?m)^1 .*\n2 `, h.Ctl("rollout history "+set))
			require.Contains(t, h.Ctl("rollout history "+set+" --revision=2"), "A:\t1")
			h.Ctl("rollout undo " + set)
		}
		settled()
		require.NotContains(t, h.Ctl("get sts,ds,pods -o jsonpath={..env}"), "A")
		require.Regexp(t, `(?m)^2 .*\n3 `, h.Ctl("rollout history sts/web"))
	})

	t.Run("a failed pod is replaced", func(t *testing.T) {
		was := h.Ctl("get pods -l app=log -o name")
		h.Run("ctl", "patch", strings.TrimSpace(was), "--subresource=status", "-p",
			`{"status":{"phase":"Failed","reason":"Test"}}`)
		h.Ctl("wait " + strings.TrimSpace(was) + " --for=delete --timeout=120s")
		settled()
		require.NotEqual(t, was, h.Ctl("get pods -l app=log -o name"))
	})

	t.Run("the same pods come back after kill -9", func(t *testing.T) {
		was := h.Ctl("get pods -o jsonpath={range.items[*]}{.metadata.name}={.metadata.uid},{end}")
		h.Kill()
		h.Start()
		settled()
		require.Equal(t, was, h.Ctl("get pods -o jsonpath={range.items[*]}{.metadata.name}={.metadata.uid},{end}"))
	})

	t.Run("scale and delete", func(t *testing.T) {
		h.Ctl("scale sts/web --replicas=1")
		h.Ctl("wait sts/web --for=jsonpath={.status.replicas}=1 --timeout=120s")
		require.Equal(t, "pod/web-0\n", h.Ctl("get pods -l app=web -o name"))
		h.Ctl("delete sts web --cascade=orphan")
		require.Equal(t, "pod/web-0\n", h.Ctl("get pods -l app=web -o name"))
		h.Ctl("delete ds log --cascade=foreground --timeout=120s")
		require.Empty(t, h.Ctl("get pods -l app=log -o name"))
	})
}

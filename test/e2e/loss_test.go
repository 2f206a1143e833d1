package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/test/host"
)

const lossManifest = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: near, labels: {app: web}}
spec:
  nodeName: HERE
  containers: [{name: web, image: coracle/hello, imagePullPolicy: IfNotPresent}]
---
apiVersion: v1
kind: Pod
metadata: {name: stays, labels: {app: web}}
spec:
  nodeName: NOT-HERE
  tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 3600}]
  containers: [{name: web, image: coracle/hello, imagePullPolicy: IfNotPresent}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: moves}
spec:
  selector: {matchLabels: {app: moves}}
  template:
    metadata: {labels: {app: moves}}
    spec:
      terminationGracePeriodSeconds: 1
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [NOT-HERE]}]}
      tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}]
      containers: [{name: moves, image: "busybox:1.36", command: [sleep, "3600"]}]
`

const back = `
apiVersion: v1
kind: Pod
metadata: {name: back}
spec:
  nodeSelector: {kubernetes.io/hostname: NOT-HERE}
  containers: [{name: back, image: "busybox:1.36", command: [sleep, "3600"]}]
`

// TestNodeLoss checks that services and pods of a lost machine move, and that the machine resumes only its
// remaining pods when it returns.
func TestNodeLoss(t *testing.T) {
	h := host.New(t)
	other := h.Beside()
	names := strings.NewReplacer("NOT-HERE", other.Name, "HERE", h.Name)
	h.Start("--node-monitor-grace-period=20s", "--task-node-timeout=20s")
	words := joinWords(t, h)
	agent := startAgent(t, other, words)
	node := "node/" + other.Name
	h.Ctl("wait " + node + " --for=condition=Ready --timeout=120s")
	other.Load()

	h.Apply(names.Replace(lossManifest))
	h.Ctl("wait pod/near pod/stays --for=condition=Ready --timeout=120s")
	on := func(name string) string { return "pods -l app=moves --field-selector spec.nodeName=" + name }
	h.Ctl("wait " + on(other.Name) + " --for=create --for=condition=Ready --timeout=120s")
	moves := "pod/" + h.Ctl("get "+on(other.Name)+" -o jsonpath={.items[0].metadata.name}")
	const container = "get pod stays -o " +
		"jsonpath={.metadata.uid}{.status.containerStatuses[0].containerID}{.status.containerStatuses[0].restartCount}"
	stays := h.Ctl(container)
	endpoint := func(ready bool) string {
		return fmt.Sprintf("wait endpointslices -l kubernetes.io/service-name=web "+
			"--for=jsonpath={.endpoints[?(@.targetRef.name==\"stays\")].conditions.ready}=%t --timeout=120s", ready)
	}
	h.Ctl(endpoint(true))
	require.Len(t, other.Status().Processes, 3, "the agent and one shim for each pod")

	lostTask(h)
	agent.kill()
	completeUnheard(t)
	other.Cut()
	h.Ctl("wait " + node + " --for=condition=Ready=Unknown --timeout=120s")
	h.Ctl(endpoint(false))
	h.Ctl("wait " + moves + " --for=jsonpath={.metadata.deletionTimestamp} --timeout=120s")
	require.Equal(t, "NoSchedule NoExecute",
		h.Ctl("get "+node+` -o jsonpath={.spec.taints[?(@.key=="node.kubernetes.io/unreachable")].effect}`))
	require.Equal(t, "DeletionByTaintManager",
		h.Ctl("get "+moves+` -o jsonpath={.status.conditions[?(@.type=="DisruptionTarget")].reason}`))
	h.Ctl("wait " + on(h.Name) + " --for=create --for=condition=Ready --timeout=120s")
	url := "http://" + h.Ctl("get service web -o jsonpath={.spec.clusterIP}")
	for range 10 {
		answer, err := h.Curl(url)
		require.NoError(t, err)
		require.Contains(t, answer, "near: hello")
	}
	require.Equal(t, stays, h.Ctl(container), "a pod that tolerates it is left where it is")

	tornElsewhere(t, h, other)
	other.Mend()
	agent = startAgent(t, other, words)
	defer agent.end()
	h.Ctl("wait " + node + " --for=condition=Ready --timeout=120s") // as the API reports it too
	h.Ctl("wait " + moves + " --for=delete --timeout=120s")
	h.Ctl("wait pod -l " + tasks.LabelTask + "=torn --for=delete --timeout=120s")
	tornElsewhere(t, h, other) // the returned node has not changed the recorded attempts
	h.Ctl(endpoint(true))
	require.Equal(t, stays, h.Ctl(container), "its container never stopped")
	// A pod without tolerations is scheduled there only once the taints are removed.
	h.Apply(names.Replace(back))
	h.Ctl("wait pod/back --for=condition=Ready --timeout=120s")
	// The shim of the moved pod ends, and the new pod's has started.
	require.Eventually(t, func() bool { return len(other.Status().Processes) == 3 }, host.Patience, 50*time.Millisecond)
}

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coracle-dev/coracle/test/host"
)

// again is a pod whose containers record their starts in a volume. All containers restart when container a finds
// and removes a file.
const again = `
apiVersion: v1
kind: Pod
metadata: {name: again}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: d, emptyDir: {}}]
  initContainers:
  - {name: init, image: "busybox:1.36", command: [sh, -c, "echo init >> /d/log"], volumeMounts: [{name: d, mountPath: /d}]}
  - name: side
    image: busybox:1.36
    restartPolicy: Always
    command: [sh, -c, "echo side >> /d/log; touch /logged; sleep 100000"]
    volumeMounts: [{name: d, mountPath: /d}]
    startupProbe: {exec: {command: [test, -e, /logged]}, periodSeconds: 1} # without it a and b may write before side does
  containers:
  - name: a
    image: busybox:1.36
    command: [sh, -c, "echo main >> /d/log; until rm /d/go; do sleep 0.1; done 2> /dev/null; exit 42"]
    volumeMounts: [{name: d, mountPath: /d}]
    restartPolicy: Always
    restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]
  - {name: b, image: "busybox:1.36", command: [sh, -c, "echo main >> /d/log; sleep 100000"], volumeMounts: [{name: d, mountPath: /d}]}
`

// TestRestartAllContainers checks that all containers of a pod restart in place when one exits as its restart rule
// says, even if the process is killed meanwhile.
func TestRestartAllContainers(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Apply(again)
	h.Ctl("wait pod/again --for=condition=Ready --timeout=120s")
	counts := func() string {
		return h.Ctl("get pod again -o " +
			"jsonpath={.status.podIP}{range.status.initContainerStatuses[*]},{.restartCount}{end}" +
			"{range.status.containerStatuses[*]},{.restartCount}{end}")
	}
	ip, _, _ := strings.Cut(counts(), ",")
	const round = "init\nside\nmain\nmain\n"
	for n := 1; n <= 3; n++ {
		pid := h.Status().PID
		h.Ctl("exec again -c b -- touch /d/go")
		if n > 1 { // the first kill happens while containers end, the second while they start
			if n > 2 {
				h.Shows(fmt.Sprint(n), "get pod again -o jsonpath={.status.initContainerStatuses[0].restartCount}")
			}
			h.KillAtOnce(pid)
			h.Run("start")
		}
		h.Ctl(fmt.Sprintf("wait pod/again --for=jsonpath={.status.containerStatuses[1].restartCount}=%d --timeout=120s", n))
		h.Ctl("wait pod/again --for=condition=Ready --timeout=120s")
		require.Equal(t, fmt.Sprintf("%[1]s,%[2]d,%[2]d,%[2]d,%[2]d", ip, n), counts())
		require.Equal(t, strings.Repeat(round, n+1), h.Ctl("exec again -c b -- cat /d/log"),
			"in this order, and not more often")
	}
	require.Equal(t, "False",
		h.Ctl("get pod again -o jsonpath={.status.conditions[?(@.type=='AllContainersRestarting')].status}"))
	require.Contains(t, h.Ctl("describe pod again"),
		"container a exited with code 42, all containers of the pod will be restarted")
}

const envFiles = `
apiVersion: v1
kind: Pod
metadata: {name: env}
spec:
  restartPolicy: Never
  volumes: [{name: d, emptyDir: {}}]
  initContainers:
  - name: writer
    image: busybox:1.36
    command: [sh, -c, "printf \"# a comment\\nA='one two'\\n\" > /d/a.env; mkdir /d/dir; ln -s /a.env /d/dir/link"]
    volumeMounts: [{name: d, mountPath: /d}]
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, "echo \"$A, $B, $C.\""]
    env:
    - {name: A, valueFrom: {fileKeyRef: {volumeName: d, path: a.env, key: A}}}
    - {name: B, valueFrom: {fileKeyRef: {volumeName: d, path: dir/link, key: A}}}
    - {name: C, valueFrom: {fileKeyRef: {volumeName: d, path: a.env, key: NONE, optional: true}}}
---
apiVersion: v1
kind: Pod
metadata: {name: hostile}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: d, emptyDir: {}}]
  initContainers:
  - name: writer
    image: busybox:1.36
    command: [sh, -ec, "ln -s /etc/passwd /d/absolute; ln -s ../../../../../../../../../../../../../../etc/passwd /d/above; ln -s /proc/1/environ /d/proc; ln -s self /d/self;
      mkfifo /d/fifo; mknod /d/zero c 1 5; mkdir /d/directory; head -c 4000000 /dev/zero > /d/large; echo \"K='x\" > /d/open"]
    volumeMounts: [{name: d, mountPath: /d}]
  containers:
`

// TestEnvFiles checks that variables come from files that an init container wrote, and that the agent refuses paths
// that are not regular files of that volume.
func TestEnvFiles(t *testing.T) {
	h := host.New(t)
	h.Start()
	bad := []string{"absolute", "above", "proc", "self", "fifo", "zero", "directory", "large", "open", "missing"}
	var pod strings.Builder
	pod.WriteString(envFiles)
	for _, file := range bad {
		fmt.Fprintf(&pod,
			"  - {name: %[1]s, image: \"busybox:1.36\", command: [env], env: [{name: K, valueFrom: {fileKeyRef: {volumeName: "+
				"d, path: %[1]s, key: K}}}]}\n", file)
	}
	h.Apply(pod.String())
	h.Ctl("wait pod/env --for=jsonpath={.status.phase}=Succeeded --timeout=120s")
	require.Equal(t, "one two, one two, .\n", h.Ctl("logs env -c main"))
	for i := range bad {
		h.Ctl(fmt.Sprintf("wait pod/hostile "+
			"--for=jsonpath={.status.containerStatuses[%d].state.waiting.reason}=CreateContainerConfigError --timeout=120s", i))
	}
	require.NotContains(t, h.Ctl("get pod hostile -o yaml")+h.Ctl("get events"), "root:",
		"no message contains data from the machine's files")
	h.Ctl("delete pod hostile --timeout=120s")
}

const resized = `
apiVersion: v1
kind: Pod
metadata: {name: resized}
spec:
  terminationGracePeriodSeconds: 0
  resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 500m, memory: 128Mi}}
  volumes: [{name: m, emptyDir: {medium: Memory}}]
  containers:
  - {name: a, image: "busybox:1.36", command: [sleep, "100000"]}
  - {name: b, image: "busybox:1.36", command: [sh, -c, "dd if=/dev/zero of=/m/file bs=1M count=40; touch /m/ready; sleep 100000"], volumeMounts: [{name: m, mountPath: /m}],
      readinessProbe: {exec: {command: [test, -e, /m/ready]}, periodSeconds: 1}}
`

const greatest = `
apiVersion: v1
kind: Pod
metadata: {name: greatest}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: a, image: "busybox:1.36", command: [sleep, "100000"], resources: {requests: {cpu: %dm}}}]
`

// TestResizeOfPod changes the pod-level limits of a running pod. A limit below the current use waits, even over a
// kill, and so does a request that the node cannot satisfy.
func TestResizeOfPod(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Apply(resized)
	h.Ctl("wait pod/resized --for=condition=Ready --timeout=120s")
	limit := func() string {
		return strings.TrimSpace(h.Run("ctl", "exec", "resized", "-c", "a", "--", "sh", "-c",
			"cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max"))
	}
	resize := func(resources string) {
		t.Helper()
		h.Run("ctl", "patch", "pod", "resized", "--subresource", "resize", "-p", `{"spec":{"resources":`+resources+`}}`)
	}
	require.Equal(t, fmt.Sprint(128<<20), limit(), "container a has no limit of its own")
	resize(`{"limits":{"memory":"192Mi"}}`)
	h.Ctl("wait pod/resized --for=jsonpath={.status.resources.limits.memory}=192Mi --timeout=120s")
	require.Equal(t, fmt.Sprint(192<<20), limit())

	pid := h.Status().PID
	resize(`{"requests":{"memory":"24Mi"},"limits":{"memory":"24Mi"}}`)
	h.KillAtOnce(pid)
	h.Run("start")
	h.Shows("below current usage",
		"get pod resized -o jsonpath={.status.conditions[?(@.type=='PodResizeInProgress')].message}")
	require.Equal(t, "24Mi_192Mi",
		h.Ctl("get pod resized -o jsonpath={.status.allocatedResources.memory}_{.status.resources.limits.memory}"))
	require.Equal(t, fmt.Sprint(192<<20), limit())
	h.Ctl("exec resized -c b -- rm /m/file")
	h.Await(10*time.Minute, "pod/resized --for=jsonpath={.status.resources.limits.memory}=24Mi")
	require.Equal(t, fmt.Sprint(24<<20), limit())

	allocatable := resource.MustParse(h.Ctl("get node " + h.Name + " -o jsonpath={.status.allocatable.cpu}"))
	h.Apply(fmt.Sprintf(greatest, allocatable.MilliValue()-500))
	h.Ctl("wait pod/greatest --for=condition=Ready --timeout=120s")
	resize(`{"requests":{"cpu":"600m"},"limits":{"cpu":"700m"}}`)
	h.Shows("Node didn't have enough resource: cpu, requested: 600",
		"get pod resized -o jsonpath={.status.conditions[?(@.type=='PodResizePending')].message}")
	h.Ctl("delete pod greatest --timeout=120s")
	h.Ctl("wait pod/resized --for=jsonpath={.status.resources.requests.cpu}=600m --timeout=120s")

	h.Ctl("wait node/" + h.Name +
		" --for=jsonpath={.status.declaredFeatures[0]}=InPlacePodLevelResourcesVerticalScaling --timeout=120s")
	out := h.Fails("ctl", "patch", "pod", "resized", "--subresource", "resize", "-p",
		`{"spec":{"resources":{"requests":{"cpu":"10k"},"limits":{"cpu":"11k"}}}}`)
	require.Contains(t, out, "node didn't have enough allocatable resources: cpu, requested: 10000000")
	out = h.Fails("ctl", "patch", "pod", "resized", "-p", `{"spec":{"resources":{"limits":{"memory":"32Mi"}}}}`)
	require.Contains(t, out, "Forbidden: pod updates may not change fields other than")
	require.Equal(t, "0_0",
		h.Ctl("get pod resized -o "+
			"jsonpath={.status.containerStatuses[0].restartCount}_{.status.containerStatuses[1].restartCount}"))
}

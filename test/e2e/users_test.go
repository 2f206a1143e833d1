package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/test/host"
)

// usersManifest has a pod with a user namespace and every kind of volume, and a second pod with a user namespace.
// The claim's volume has a file with owner ID 7.
const usersManifest = `
apiVersion: v1
kind: ConfigMap
metadata: {name: cm}
data: {k: v}
---
apiVersion: v1
kind: Secret
metadata: {name: secret}
stringData: {k: v}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shared}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: own, labels: {app: own}}
spec:
  hostUsers: false
  shareProcessNamespace: true
  terminationGracePeriodSeconds: 0
  securityContext: {fsGroup: 200}
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, "mkdir /www && echo hello >/www/index.html && echo begun && httpd -f -p 8080 -h /www"]
    readinessProbe: {exec: {command: [cat, /www/index.html]}}
    livenessProbe: {httpGet: {port: 8080, path: /}}
    volumeMounts:
    - {name: cm, mountPath: /vol/cm}
    - {name: secret, mountPath: /vol/secret}
    - {name: downward, mountPath: /vol/downward}
    - {name: projected, mountPath: /vol/projected}
    - {name: image, mountPath: /image}
    - {name: disk, mountPath: /disk}
    - {name: memory, mountPath: /memory}
    - {name: memory, mountPath: /sub, subPath: a/b}
    - {name: host, mountPath: /host}
    - {name: shared, mountPath: /shared}
  - name: user
    image: busybox:1.36
    command: [sh, -c, "echo again >/dev/stdout; sleep 3600"]
    securityContext: {runAsUser: 1000, procMount: Unmasked}
    volumeMounts:
    - {name: disk, mountPath: /disk}
  volumes:
  - {name: cm, configMap: {name: cm}}
  - {name: secret, secret: {secretName: secret, defaultMode: 0400}}
  - {name: downward, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
  - {name: projected, projected: {sources: [{secret: {name: secret}}, {serviceAccountToken: {path: token}}]}}
  - {name: image, image: {reference: "busybox:1.36"}}
  - {name: disk, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: host, hostPath: {path: HOSTPATH}}
  - {name: shared, persistentVolumeClaim: {claimName: shared}}
---
apiVersion: v1
kind: Pod
metadata: {name: other}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, "3600"]
    volumeMounts:
    - {name: shared, mountPath: /shared}
  volumes:
  - {name: shared, persistentVolumeClaim: {claimName: shared}}
`

// firstID returns the first ID on the machine of a pod's user namespace.
func firstID(t *testing.T, h *host.Host, pod string) string {
	t.Helper()
	fields := strings.Fields(h.Run("ctl", "exec", pod, "--", "cat", "/proc/self/uid_map"))
	require.Len(t, fields, 3)
	require.Equal(t, "0", fields[0])
	require.Equal(t, "65536", fields[2])
	return fields[1]
}

// TestUserNamespaces follows upstream's tests of KEP-127 and KEP-4265, and repeats checks after a kill.
func TestUserNamespaces(t *testing.T) {
	h := host.New(t)
	h.Start()
	require.Equal(t, "true true",
		h.Ctl("get nodes -o jsonpath={.items[0].status.runtimeHandlers[*].features.userNamespaces}"))
	dir := filepath.Join(h.Home, "volume")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "seven"), nil, 0o600))
	require.NoError(t, os.Chown(filepath.Join(dir, "seven"), 7, 7))
	h.Pipe(strings.ReplaceAll(usersManifest, "HOSTPATH", dir), "ctl", "apply", "-f", "-")
	h.Ctl("wait pod/own pod/other --for=condition=Ready --timeout=120s")
	sh := func(pod, container, script string) string {
		t.Helper()
		return strings.TrimSpace(h.Run("ctl", "exec", pod, "-c", container, "--", "sh", "-c", script))
	}

	t.Run("two pods have no ID in common", func(t *testing.T) {
		require.NotEqual(t, firstID(t, h, "own"), firstID(t, h, "other"))
		require.Equal(t, sh("own", "main", "cat /proc/self/uid_map"), sh("own", "user", "cat /proc/self/gid_map"))
	})
	t.Run("file ownership", func(t *testing.T) {
		// Files of volumes made from objects belong to the pod's root and its fsGroup.
		require.Equal(t, "0:200", sh("own", "main", "find /vol -type f -exec stat -c %u:%g {} + | sort -u"))
		require.Equal(t, "440", sh("own", "main", "stat -Lc %a /vol/secret/k"))
		require.Equal(t, "0:0", sh("own", "main", "stat -c %u:%g /image/bin/busybox"))
		require.Equal(t, "7:7", sh("own", "main", "stat -c %u:%g /host/seven"))
		for _, file := range []string{"/disk/x", "/memory/x", "/sub/x", "/shared/x"} {
			require.Equal(t, "0:200", sh("own", "main", "touch "+file+" && stat -c %u:%g "+file))
		}
		require.Equal(t, "1000:200", sh("own", "user", "touch /disk/y && stat -c %u:%g /disk/y"))
		require.Equal(t, "0:0 666", sh("own", "main", "echo $(stat -c %u:%g /etc/hosts) $(stat -c %a /dev/termination-log)"))
		var st unix.Stat_t
		disk, err := filepath.Glob(filepath.Join(h.DataDir, "agent/pods/*/volumes/disk/y"))
		require.NoError(t, err)
		require.Len(t, disk, 1)
		require.NoError(t, unix.Stat(disk[0], &st))
		require.EqualValues(t, 1000, st.Uid, "the owner on the host is the owner in the pod, whatever its range")
		require.Equal(t, "secret", sh("own", "main", "echo secret >/shared/s; chmod 600 /shared/s; cat /shared/s"))
		require.Equal(t, "0 secret", sh("other", "main", "echo $(stat -c %u /shared/s) $(cat /shared/s)"),
			"the volume's owners are each pod's root")
	})
	t.Run("all of /proc", func(t *testing.T) {
		require.Equal(t, "1", sh("own", "user", "grep -c ' /proc' /proc/mounts"))
		require.NotEqual(t, "1", sh("own", "main", "grep -c ' /proc' /proc/mounts"))
		out := h.Fails("ctl", "run", "masked", "--image=busybox:1.36",
			`--overrides={"spec":{"containers":[{"name":"masked","image":"busybox:1.36","securityContext":{"procMount":"Unmasked"}}]}}`)
		require.Contains(t, out, "`hostUsers` must be false to use `Unmasked`")
		out = h.Fails("ctl", "run", "network", "--image=busybox:1.36",
			`--overrides={"spec":{"hostUsers":false,"hostNetwork":true}}`)
		require.Contains(t, out, "when `hostUsers` is false")
	})
	t.Run("logs, probes, service, debug, port-forward", func(t *testing.T) {
		require.Equal(t, "begun\n", h.Ctl("logs own -c main"))
		require.Equal(t, "again\n", h.Ctl("logs own -c user"))
		h.Ctl("expose pod own --port=80 --target-port=8080")
		require.Eventually(t, func() bool {
			out, err := h.Try("ctl", "exec", "other", "--", "wget", "-q", "-O", "-", "http://own")
			return err == nil && out == "hello\n"
		}, host.Patience, host.Patience/1000)
		h.Run("ctl", "debug", "other", "--image=busybox:1.36", "--container=debugger", "--target=main", "--", "sh", "-c",
			"cat /proc/1/cmdline; id -u; cat /proc/self/uid_map")
		h.Ctl("wait pod/other --for=jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.exitCode}=0 " +
			"--timeout=120s")
		require.Contains(t, h.Ctl("logs other -c debugger"), "sleep\x003600\x000\n         0")
		require.Contains(t, sh("own", "main", "ps"), "sleep 3600", "the containers share their processes")
	})
	t.Run("a user outside the pod's range", func(t *testing.T) {
		h.Run("ctl", "run", "beyond", "--image=busybox:1.36",
			`--overrides={"spec":{"hostUsers":false,"securityContext":{"runAsUser":65536}}}`)
		h.Ctl("wait pod/beyond " +
			"--for=jsonpath={.status.containerStatuses[0].state.waiting.reason}=CreateContainerConfigError --timeout=120s")
		require.Contains(t, h.Ctl("get pod beyond -o jsonpath={.status.containerStatuses[0].state.waiting.message}"),
			"user or group 65536 is not in the pod's user namespace (hostUsers: false): it has 0 to 65535")
	})
	t.Run("a file system without idmapped mounts", func(t *testing.T) {
		h.Pipe(`
apiVersion: v1
kind: Pod
metadata: {name: devices}
spec:
  hostUsers: false
  restartPolicy: Never
  containers: [{name: main, image: "busybox:1.36", command: [sleep, "3600"], volumeMounts: [{name: dev, mountPath: /host-dev}]}]
  volumes: [{name: dev, hostPath: {path: /dev}}]
`, "ctl", "apply", "-f", "-")
		h.Ctl("wait pod/devices --for=jsonpath={.status.phase}=Failed --timeout=120s")
		require.Contains(t, h.Ctl("get pod devices -o jsonpath={.status.containerStatuses[0].state.terminated.message}"),
			"mount /host-dev: /dev cannot be used by a pod with hostUsers: false: devtmpfs has no ID-mapped mounts: "+
				"unsupported operation")
		h.Ctl("delete pod devices beyond --grace-period=0")
	})
	t.Run("pod security", func(t *testing.T) {
		h.Ctl("create namespace restricted")
		h.Ctl("label namespace restricted pod-security.kubernetes.io/enforce=restricted")
		pod := func(hostUsers bool) string {
			return fmt.Sprintf(`--overrides={"spec":{"hostUsers":%t,"terminationGracePeriodSeconds":0,"securityContext":{"seccompProfile":{"type":"RuntimeDefault"}},"containers":[{"name":"p","image":"busybox:1.36","command":["sleep","3600"],"securityContext":{"runAsUser":0,"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}`, hostUsers)
		}
		require.Contains(t, h.Fails("ctl", "run", "p", "-n", "restricted", "--image=busybox:1.36", pod(true)),
			"violates PodSecurity")
		h.Run("ctl", "run", "p", "-n", "restricted", "--image=busybox:1.36", pod(false))
		h.Ctl("wait pod/p -n restricted --for=condition=Ready --timeout=120s")
	})
	t.Run("after a kill", func(t *testing.T) {
		ids := map[string]string{"own": firstID(t, h, "own"), "other": firstID(t, h, "other")}
		container := h.Ctl("get pod own -o jsonpath={.status.containerStatuses[*].containerID}")
		h.Kill()
		h.Run("start")
		h.Ctl("wait pod/own pod/other --for=condition=Ready --timeout=120s")
		require.Equal(t, container, h.Ctl("get pod own -o jsonpath={.status.containerStatuses[*].containerID}"))
		h.Run("ctl", "run", "third", "--image=busybox:1.36", `--overrides={"spec":{"hostUsers":false}}`, "--", "sleep",
			"3600")
		h.Ctl("wait pod/third --for=condition=Ready --timeout=120s")
		for pod, id := range ids {
			require.Equal(t, id, firstID(t, h, pod))
			require.NotEqual(t, id, firstID(t, h, "third"))
		}
		require.Equal(t, "hello", sh("own", "main", "cat /www/index.html"))
	})
	t.Run("metrics", func(t *testing.T) {
		metrics := h.Ctl("get --raw /api/v1/nodes/" + h.Name + "/proxy/metrics")
		require.Regexp(t, `(?m)^kubelet_started_user_namespaced_pods_total [1-9]`, metrics)
		require.Contains(t, metrics, "kubelet_started_user_namespaced_pods_errors_total")
	})
	h.Ctl("delete pods --all --grace-period=0")
	h.Ctl("delete namespace restricted")
	// The namespace's pod has no grace period: its object is deleted before its resources are released.
	require.Eventually(t, func() bool {
		left, err := filepath.Glob(filepath.Join(h.RunDir, "network/ns/*"))
		return err == nil && len(left) == 0
	}, host.Patience, host.Patience/1000, "the namespaces of pods are left")
}

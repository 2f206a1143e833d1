package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/test/host"
)

// traces returns what a cluster could leave behind on a machine, as sorted lines by category.
func traces(t *testing.T, h *host.Host) map[string][]string {
	t.Helper()
	in := func(name string, args ...string) []string {
		out, err := h.Command(t.Context(), name, args...).CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
		return sorted(string(out))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	var points []string
	for line := range strings.Lines(string(mounts)) {
		// Only this host's mounts: other test hosts come and go.
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, filepath.Dir(h.DataDir)) {
			points = append(points, point)
		}
	}
	slices.Sort(points)
	return map[string][]string{
		"mounts":    points,
		"links":     in("sh", "-c", links),
		"routes":    in("ip", "-4", "route", "show", "table", "all"),
		"rules":     in("ip", "rule"),
		"neighbors": in("ip", "neigh", "show", "nud", "permanent"),
		"nftables":  in("nft", "list", "ruleset"),
		"sysctls": in("sysctl", "net.ipv4.ip_forward", "net.ipv4.conf.all.rp_filter", "net.ipv4.conf.default.rp_filter",
			"net.ipv4.conf.all.route_localnet", "net.ipv4.conf.eth0.route_localnet"),
		"cgroups": tree(t, "/sys/fs/cgroup", func(path string, _ fs.DirEntry) bool {
			return strings.Contains(path, host.Prefix(h.DataDir))
		}),
		"files":     tree(t, filepath.Dir(h.DataDir), func(string, fs.DirEntry) bool { return true }),
		"run":       tree(t, "/run", func(path string, _ fs.DirEntry) bool { return strings.Contains(path, "coracle/") }),
		"processes": processes(t, h.DataDir, h.RunDir),
	}
}

// links prints the names and addresses of links. Their states change by themselves: a new veth gets its carrier later.
const links = "ip -o -br link | awk '{print $1, $3}'"

func sorted(text string) []string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(lines)
	return lines
}

func tree(t *testing.T, root string, keep func(string, fs.DirEntry) bool) (found []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // the file was removed meanwhile
		}
		if keep(path, d) {
			found = append(found, path)
		}
		return nil
	}))
	return found
}

// processes returns the processes whose command line contains one of the directories.
func processes(t *testing.T, dirs ...string) (found []string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, line := range lines {
		text, err := os.ReadFile(line)
		if err != nil {
			continue
		}
		for _, dir := range dirs {
			if strings.Contains(string(text), dir) {
				found = append(found, strings.ReplaceAll(string(text), "\x00", " "))
				break
			}
		}
	}
	return found
}

const busy = `
apiVersion: v1
kind: Pod
metadata: {name: busy}
spec:
  terminationGracePeriodSeconds: 3
  containers:
  - name: a
    image: busybox:1.36
    command: [sh, -c, "trap 'echo ended > /out/ended; exit 0' TERM; while :; do sleep 0.1; done"]
    resources: {limits: {memory: 32Mi}}
    volumeMounts: [{name: out, mountPath: /out}, {name: memory, mountPath: /memory}, {name: disk, mountPath: /disk}]
  - {name: b, image: "busybox:1.36", command: [sleep, "3600"]}
  volumes:
  - name: out
    hostPath: {path: OUT}
  - name: memory
    emptyDir: {medium: Memory}
  - name: disk
    emptyDir: {}
---
apiVersion: v1
kind: Service
metadata: {name: busy}
spec:
  type: NodePort
  selector: {app: busy}
  ports: [{port: 80}]
`

// litter fills the volume and the container's layer as a privileged pod could: with deeply nested directories, some
// of them immutable.
func litter(t *testing.T, h *host.Host) {
	t.Helper()
	dirs := tree(t, h.DataDir, func(path string, _ fs.DirEntry) bool {
		return strings.HasSuffix(path, "/volumes/disk") || strings.HasSuffix(path, "/upper/disk")
	})
	require.Len(t, dirs, 2)
	for _, dir := range dirs {
		nest(t, dir)
	}
}

func nest(t *testing.T, dir string) {
	t.Helper()
	at, err := os.OpenRoot(dir)
	require.NoError(t, err)
	const immutable = 0x10 // FS_IMMUTABLE_FL of ioctl_iflags(2)
	for i := range 600 {
		require.NoError(t, at.Mkdir("d", 0o700))
		next, err := at.OpenRoot("d")
		require.NoError(t, err)
		if i%200 == 0 {
			f, err := at.Open(".")
			require.NoError(t, err)
			if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
				t.Logf("this file system has no immutable files: %v", err)
			}
			require.NoError(t, f.Close())
		}
		require.NoError(t, at.Close())
		at = next
	}
	require.NoError(t, at.Close())
}

// TestDeleteLeavesNothing compares the machine before and after, for a running, a stopped and a killed cluster.
func TestDeleteLeavesNothing(t *testing.T) {
	h := host.New(t)
	outside := t.TempDir()
	before := traces(t, h)
	require.Empty(t, before["cgroups"])
	for name, end := range map[string]func(){
		"running": func() {},
		"stopped": func() {
			h.Run("stop")
			require.FileExists(t, filepath.Join(outside, "ended"), "stop must let pods end gracefully")
			require.Empty(t, processes(t, h.DataDir, h.RunDir))
		},
		"killed": func() { h.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			h.Start()
			h.Apply(strings.ReplaceAll(busy, "OUT", outside))
			h.Ctl("wait pod/busy --for=condition=Ready --timeout=120s")
			litter(t, h)
			end()
			h.Run("delete")
			after := traces(t, h)
			for sort := range before {
				require.Equal(t, before[sort], after[sort], sort)
			}
			require.NoError(t, os.RemoveAll(filepath.Join(outside, "ended")))
		})
	}
}

// TestRunDirOfAKilledServer checks that start, agent and delete with another data directory leave the remains of a
// killed server, and report how to remove them.
func TestRunDirOfAKilledServer(t *testing.T) {
	h := host.New(t)
	before := traces(t, h)
	// An entry in the user's kubeconfig is found by the authority in the data directory, which this test removes.
	h.Start("--merge-kubeconfig=false")
	h.Apply(strings.ReplaceAll(busy, "OUT", t.TempDir()))
	h.Ctl("wait pod/busy --for=condition=Ready --timeout=120s")
	h.Kill()
	held := func() []string {
		lines := slices.Concat(processes(t, h.DataDir, h.RunDir),
			tree(t, h.RunDir, func(string, fs.DirEntry) bool { return true }))
		for _, command := range []string{links, "ip route"} {
			out, err := h.Command(t.Context(), "sh", "-c", command).CombinedOutput()
			require.NoError(t, err, "%s: %s", command, out)
			lines = append(lines, sorted(string(out))...)
		}
		return lines
	}
	// The kernel removes the link of a pod that ended before the kill some time after its namespace.
	namespaces, err := os.ReadDir(filepath.Join(h.RunDir, "network/ns"))
	require.NoError(t, err)
	var killed []string
	require.Eventually(t, func() bool {
		killed = held()
		return len(namespaces) == len(slices.DeleteFunc(slices.Clone(killed), func(line string) bool {
			return !strings.Contains(line, "@if")
		}))
	}, time.Minute, 10*time.Millisecond, "links of %d namespaces", len(namespaces))
	other := h.DataDir + "-other"
	for _, command := range [][]string{
		{"delete"}, {"start"}, {"server"}, {"agent", "--join", "https://198.51.100.9:6443", "--token", "none"},
	} {
		out := h.Fails(append(command, "--data-dir", other)...)
		require.Contains(t, out,
			h.RunDir+" is the run directory of the cluster in "+h.DataDir+", which is not running: give --data-dir "+h.DataDir)
		require.Equal(t, killed, held(), command)
		require.NoDirExists(t, other)
	}
	h.Run("start", "--merge-kubeconfig=false")
	h.Ctl("wait pod/busy --for=condition=Ready --timeout=120s")

	// The data directory is gone, first with the process still running, then without it.
	require.NoError(t, os.Rename(h.DataDir, h.DataDir+"-moved"))
	require.Contains(t, h.Fails("delete"), "end it with `coracle stop`")
	require.NoError(t, os.Rename(h.DataDir+"-moved", h.DataDir))
	h.Kill()
	_ = exec.Command("rm", "-rf", h.DataDir).Run() // rm leaves mount points
	require.NoFileExists(t, filepath.Join(h.DataDir, "long-names"))
	require.Contains(t, h.Fails("delete", "--data-dir", other), h.DataDir)
	h.Run("delete")
	after := traces(t, h)
	for sort := range before {
		require.Equal(t, before[sort], after[sort], sort)
	}
}

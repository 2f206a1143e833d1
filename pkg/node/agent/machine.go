package agent

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// machine holds the properties of the machine that do not change while the agent runs.
type machine struct {
	cpus         int
	arch         string
	memory, disk int64            // bytes
	hugePages    map[string]int64 // "2Mi" -> bytes
	info         corev1.NodeSystemInfo
}

func readMachine(dataDir string) (machine, error) {
	m := machine{cpus: goruntime.NumCPU(), arch: goruntime.GOARCH, hugePages: map[string]int64{}}
	mem, err := meminfo()
	if err != nil {
		return m, err
	}
	m.memory = mem["MemTotal"]
	m.disk, _ = diskSpace(dataDir)
	pools, _ := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	for _, p := range pools {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(p), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		n, _ := strconv.ParseInt(firstLine(filepath.Join(p, "nr_hugepages")), 10, 64)
		size := fmt.Sprintf("%dMi", kb>>10)
		if kb >= 1<<20 {
			size = fmt.Sprintf("%dGi", kb>>20)
		} else if kb < 1<<10 {
			size = fmt.Sprintf("%dKi", kb)
		}
		m.hugePages[size] = n * kb << 10
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, err
	}
	m.info = corev1.NodeSystemInfo{
		MachineID: firstLine("/etc/machine-id"), SystemUUID: strings.ToLower(firstLine("/sys/class/dmi/id/product_uuid")),
		BootID: firstLine("/proc/sys/kernel/random/boot_id"), KernelVersion: string(bytes.TrimRight(u.Release[:], "\x00")),
		OSImage: osImage(), OperatingSystem: "linux", Architecture: goruntime.GOARCH,
	}
	if swap := mem["SwapTotal"]; swap > 0 {
		m.info.Swap = &corev1.NodeSwapStatus{Capacity: &swap}
	}
	m.info.RunningInUserNamespace = new(inUserNamespace())
	m.info.SystemUUID = cmp.Or(m.info.SystemUUID, m.info.MachineID)
	return m, nil
}

// swapForPods returns how many bytes of swap pods may use.
func (a *Agent) swapForPods() int64 {
	if swap := a.machine.info.Swap; a.c.LimitedSwap && swap != nil {
		return *swap.Capacity
	}
	return 0
}

// inUserNamespace reports whether this process is outside the initial user namespace, which maps all IDs
// (user_namespaces(7)).
func inUserNamespace() bool {
	return strings.Join(strings.Fields(firstLine("/proc/self/uid_map")), " ") != "0 0 4294967295"
}

func firstLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
}

func osImage() string {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "Linux"
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"'`)
		}
	}
	return "Linux"
}

func meminfo() (map[string]int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
			out[strings.TrimSuffix(f[0], ":")] = n << 10
		}
	}
	return out, nil
}

// diskSpace returns the size and free space of the file system of path, or of its nearest existing parent, in bytes;
// zeros if unknown.
func diskSpace(path string) (total, free int64) {
	var s unix.Statfs_t
	for unix.Statfs(path, &s) != nil {
		if path == "/" || path == "." {
			return 0, 0
		}
		path = filepath.Dir(path)
	}
	return int64(s.Blocks) * s.Bsize, int64(s.Bavail) * s.Bsize
}

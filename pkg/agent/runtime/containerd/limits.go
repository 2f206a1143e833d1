package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/agent/runtime"
)

// hierarchy returns where a controller's cgroups are, or "" if the kernel does not have the controller.
func hierarchy(controller string) string {
	if cgroup2() {
		return "/sys/fs/cgroup"
	}
	dir := filepath.Join("/sys/fs/cgroup", controller)
	if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
		return ""
	}
	return dir
}

// makeCgroup creates a cgroup in a controller's hierarchy. On cgroup v2 each ancestor must delegate the controller.
func makeCgroup(controller, path string) (string, error) {
	root := hierarchy(controller)
	if root == "" {
		return "", fmt.Errorf("the kernel has no %s controller", controller)
	}
	at := root
	for part := range strings.SplitSeq(strings.Trim(filepath.Clean("/"+path), "/"), "/") {
		if root == "/sys/fs/cgroup" {
			if err := os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
				return "", err
			}
		}
		at = filepath.Join(at, part)
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return at, nil
}

func setLimit(controller, path, file string, limit int64) error {
	dir, err := makeCgroup(controller, path)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0)
}

// limitPods limits all pods together to the machine's resources without those reserved, as the kubelet enforces node allocatable.
func (r *Runtime) limitPods() error {
	reserved := r.config.Reserved
	if reserved.PIDs == 0 {
		return nil
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return err
	}
	memory := int64(info.Totalram) * int64(info.Unit)
	file := "memory.limit_in_bytes"
	if cgroup2() {
		file = "memory.max"
	}
	err := setLimit("memory", r.config.CgroupRoot, file, memory-reserved.MemoryOf(memory))
	pids, pidsErr := machinePIDs()
	if pidsErr == nil {
		pidsErr = setLimit("pids", r.config.CgroupRoot, "pids.max", max(pids-reserved.PIDs, pids/2))
	}
	return errors.Join(err, pidsErr)
}

// machinePIDs returns the maximum number of processes and threads of the machine: the lesser of the kernel's two limits.
func machinePIDs() (int64, error) {
	var least int64
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		if least == 0 || n < least {
			least = n
		}
	}
	return least, nil
}

// limit limits the pod's processes, once, before its first container starts. Without the pids controller, as in a container without a cgroup
// of its own, it logs a warning and pods run without a limit.
func (p *pod) limit(cgroup string) {
	if p.r.config.PodPIDs <= 0 || filepath.Clean("/"+cgroup) == "/" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limited {
		return
	}
	p.limited = true
	if err := setLimit("pids", cgroup, "pids.max", p.r.config.PodPIDs); err != nil {
		p.r.config.Log.Warn("could not limit processes of pod", "pod", p.uid, "error", err)
	}
}

// limitTogether limits all containers of a pod, beside their own limits.
func limitTogether(cgroup string, l runtime.PodLimits) error {
	memory, quota, swap := "memory.limit_in_bytes", "cpu.cfs_quota_us", "memory.memsw.limit_in_bytes"
	if cgroup2() {
		memory, quota, swap = "memory.max", "cpu.max", "" // a container has no swap there
	}
	var errs []error
	if l.MemoryBytes > 0 {
		err := setLimit("memory", cgroup, memory, l.MemoryBytes)
		if swap != "" && swapAccounting() {
			errs = append(errs, setLimit("memory", cgroup, swap, l.MemoryBytes))
			if err != nil { // it grows: it may not exceed memory and swap
				err = setLimit("memory", cgroup, memory, l.MemoryBytes)
			}
		}
		errs = append(errs, err)
	}
	if l.CPUQuota > 0 {
		errs = append(errs, setLimit("cpu", cgroup, quota, l.CPUQuota)) // in periods of 100 ms, which is the kernel's default
	}
	return errors.Join(errs...)
}

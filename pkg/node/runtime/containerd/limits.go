package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/pids"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// hierarchy returns the root of a controller's cgroups, or "" if the kernel lacks the controller.
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

// makeCgroup creates a cgroup in a controller's hierarchy. On cgroup v2 it enables the controller in each ancestor.
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
	value := strconv.FormatInt(limit, 10)
	if limit == runtime.Unlimited && cgroup2() {
		value = "max"
	}
	return os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
}

// limitPods limits all pods together to the machine's memory and PIDs without the reserved ones, as the kubelet
// enforces node allocatable.
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
	most, pidsErr := pids.Limit()
	if pidsErr == nil {
		pidsErr = setLimit("pids", r.config.CgroupRoot, "pids.max", max(most-reserved.PIDs, most/2))
	}
	return errors.Join(err, pidsErr)
}

// limit limits the pod's number of processes, once, before its first container starts. Without the pids controller,
// it logs a warning and the pod runs without the limit.
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

// UpdatePod implements runtime.Runtime. A failure to set CPU shares is only logged; a failure to set a limit is an
// error.
func (r *Runtime) UpdatePod(_ context.Context, cgroup string, l runtime.PodLimits) error {
	if filepath.Clean("/"+cgroup) == "/" {
		return errors.New("a pod without a cgroup of its own has no limits")
	}
	memory, swap, quota, shares, weight := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "cpu.cfs_quota_us",
		"cpu.shares", int64(l.CPUShares)
	if cgroup2() {
		memory, swap, quota = "memory.max", "", "cpu.max" // containers have no swap on v2
		shares, weight = "cpu.weight", weightOf(l.CPUShares)
	}
	var errs []error
	if l.CPUShares > 0 {
		if err := setLimit("cpu", cgroup, shares, weight); err != nil {
			r.config.Log.Warn("could not set processor shares of pod", "cgroup", cgroup, "error", err)
		}
	}
	if l.MemoryBytes != 0 {
		err := setLimit("memory", cgroup, memory, l.MemoryBytes)
		if swap != "" && swapAccounting() {
			errs = append(errs, setLimit("memory", cgroup, swap, l.MemoryBytes))
			if err != nil { // when growing, set memory after memory and swap
				err = setLimit("memory", cgroup, memory, l.MemoryBytes)
			}
		}
		errs = append(errs, err)
	}
	if l.CPUQuota != 0 {
		errs = append(errs, setLimit("cpu", cgroup, quota, l.CPUQuota)) // per 100 ms, the kernel's default period
	}
	return errors.Join(errs...)
}

// weightOf converts CPU shares of cgroup v1 to a weight of v2 like runc: minimum, maximum and default (1024 to 100)
// correspond.
func weightOf(shares uint64) int64 {
	l := math.Log2(float64(min(max(shares, 2), 262144)))
	return int64(math.Ceil(math.Pow(10, (l*l+125*l)/612-7.0/34)))
}

// MemoryUsage implements runtime.Runtime.
func (r *Runtime) MemoryUsage(_ context.Context, cgroup, id string) (uint64, error) {
	root, file := hierarchy("memory"), "memory.usage_in_bytes"
	if root == "" {
		return 0, errors.New("the kernel has no memory controller")
	}
	if cgroup2() {
		file = "memory.current"
	}
	return readNumber(filepath.Join(root, filepath.Clean("/"+cgroup), id, file))
}

func readNumber(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// PodUsage implements runtime.Runtime. With cgroup v2 it needs Linux 5.19.
func (r *Runtime) PodUsage(_ context.Context, cgroup string) (uint64, time.Duration, error) {
	memory := filepath.Join(hierarchy("memory"), filepath.Clean("/"+cgroup))
	if !cgroup2() {
		most, err := readNumber(filepath.Join(memory, "memory.max_usage_in_bytes"))
		cpu, err2 := readNumber(filepath.Join(hierarchy("cpuacct"), filepath.Clean("/"+cgroup), "cpuacct.usage"))
		return most, time.Duration(cpu), errors.Join(err, err2)
	}
	most, err := readNumber(filepath.Join(memory, "memory.peak"))
	text, err2 := os.ReadFile(filepath.Join(memory, "cpu.stat"))
	if err := errors.Join(err, err2); err != nil {
		return 0, 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	cpu, err := strconv.ParseUint(strings.TrimPrefix(first, "usage_usec "), 10, 63)
	return most, time.Duration(cpu) * time.Microsecond, err
}

//go:build cgo

package server

import (
	"bufio"
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // support for device rules
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

// oomKilled reports whether the cgroup counted an OOM kill (v2: memory.events, v1: memory.oom_control).
func oomKilled(c *libcontainer.Container) bool {
	state, err := c.State()
	if err != nil {
		return false
	}
	file := ""
	if dir, ok := state.CgroupPaths["memory"]; ok {
		file = filepath.Join(dir, "memory.oom_control")
	} else if dir, ok := state.CgroupPaths[""]; ok {
		file = filepath.Join(dir, "memory.events")
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if n, ok := bytes.CutPrefix(lines.Bytes(), []byte("oom_kill ")); ok {
			count, _ := strconv.Atoi(string(n))
			return count > 0
		}
	}
	return false
}

// killCgroup kills the container's processes through their cgroup (v2). Unlike kill(2), an AppArmor profile that does
// not allow to receive signals cannot prevent it. Kernels before 5.14 kill processes that have no memory left.
func killCgroup(c *libcontainer.Container) error {
	state, err := c.State()
	if err != nil {
		return err
	}
	dir, v2 := state.CgroupPaths[""]
	if !v2 {
		return unix.EACCES
	}
	err = cgroups.WriteFile(dir, "cgroup.kill", "1")
	if errors.Is(err, os.ErrNotExist) {
		return cgroups.WriteFile(dir, "memory.max", "0")
	}
	return err
}

// unlimit removes the CPU limit from the cgroup of an exited container. On cgroup v1 a removed cgroup exists for some
// more milliseconds, and until then the pod's limit could not be set lower than the container's. If this fails, a
// resize of the pod fails once and is retried.
func unlimit(c *libcontainer.Container) {
	if state, err := c.State(); err == nil {
		if dir, v1 := state.CgroupPaths["cpu"]; v1 {
			_ = cgroups.WriteFile(dir, "cpu.cfs_quota_us", "-1")
		}
	}
}

func (c *container) usage() (*runtime.Stats, error) {
	all, err := c.c.Stats()
	if err != nil {
		return nil, err
	}
	s := all.CgroupStats
	if s == nil {
		return nil, shim.ErrNotRunning
	}
	memory, throttling := s.MemoryStats, s.CpuStats.ThrottlingData
	u := &runtime.Stats{
		CPU:    time.Duration(s.CpuStats.CpuUsage.TotalUsage),
		Memory: memory.Usage.Usage,
		// Without swap accounting, cgroup v1 has no sum of memory and swap.
		Swap:             memory.SwapUsage.Usage - min(memory.SwapUsage.Usage, memory.Usage.Usage),
		Pids:             s.PidsStats.Current,
		Periods:          throttling.Periods,
		ThrottledPeriods: throttling.ThrottledPeriods,
		Throttled:        time.Duration(throttling.ThrottledTime),
	}
	inactive, rss, cache := "total_inactive_file", "total_rss", "total_cache"
	if cgroups.IsCgroup2UnifiedMode() {
		inactive, rss, cache = "inactive_file", "anon", "file"
		if limit := memory.SwapOnlyUsage.Limit; limit != math.MaxUint64 {
			u.SwapLimit = &limit
		}
	}
	u.RSS, u.Cache = memory.Stats[rss], memory.Stats[cache]
	u.WorkingSet = u.Memory - min(u.Memory, memory.Stats[inactive])
	if cpu, io := s.CpuStats.PSI, s.BlkioStats.PSI; cpu != nil && memory.PSI != nil && io != nil {
		u.Pressure = &runtime.Pressure{CPU: stalls(cpu), Memory: stalls(memory.PSI), IO: stalls(io)}
	}
	return u, nil
}

func stalls(p *cgroups.PSIStats) runtime.Stalls {
	stall := func(d cgroups.PSIData) runtime.Stall {
		return runtime.Stall{
			Avg10: d.Avg10, Avg60: d.Avg60, Avg300: d.Avg300, Total: time.Duration(d.Total) * time.Microsecond,
		}
	}
	return runtime.Stalls{Some: stall(p.Some), Full: stall(p.Full)}
}

func (c *container) update(r *specs.LinuxResources) error {
	spec := c.bundle.Spec
	linux := *spec.Linux
	linux.Resources = r
	spec.Linux = &linux
	group, err := specconv.CreateCgroupConfig(&specconv.CreateOpts{CgroupName: c.id, Spec: &spec}, nil)
	if err != nil {
		return err
	}
	config := c.c.Config()
	group.Devices = config.Cgroups.Devices
	group.SkipDevices = true
	config.Cgroups = group
	err = c.c.Set(config)
	group.SkipDevices = false // libcontainer keeps this configuration, and an exec needs the devices
	return err
}

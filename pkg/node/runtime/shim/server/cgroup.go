//go:build cgo

package server

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // who may use which device
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

// oomKilled reads the number of OOM kills in the container's cgroup: memory.events on cgroup v2, memory.oom_control on
// v1.
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

// unlimit takes the limit of processor time from the cgroup of a container that has ended. Before the kernel forgets a
// removed cgroup some milliseconds pass, in which on cgroup v1 the pod could not be given less than that limit.
func unlimit(c *libcontainer.Container) {
	if state, err := c.State(); err == nil {
		if dir, v1 := state.CgroupPaths["cpu"]; v1 {
			_ = cgroups.WriteFile(dir, "cpu.cfs_quota_us", "-1") // without it a resize fails once and is tried again
		}
	}
}

func (c *container) usage() (*shim.Usage, error) {
	all, err := c.c.Stats()
	if err != nil {
		return nil, err
	}
	s := all.CgroupStats
	if s == nil {
		return nil, shim.ErrNotRunning
	}
	u := &shim.Usage{
		CPU: time.Duration(s.CpuStats.CpuUsage.TotalUsage), Memory: s.MemoryStats.Usage.Usage, Pids: s.PidsStats.Current,
	}
	inactive, rss := "total_inactive_file", "total_rss"
	if cgroups.IsCgroup2UnifiedMode() {
		inactive, rss = "inactive_file", "anon"
	}
	u.RSS = s.MemoryStats.Stats[rss]
	u.WorkingSet = u.Memory - min(u.Memory, s.MemoryStats.Stats[inactive])
	return u, nil
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
	group.SkipDevices = false // the container keeps this configuration, and no exec may begin with it set
	return err
}

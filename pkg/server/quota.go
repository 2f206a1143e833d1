package server

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// storeShare makes the default quota 1/storeShare of the memory: in memory, an object takes several times its stored
// size, and each change needs more.
const storeShare = 8

// storeQuota returns the configured quota, or else a share of the memory that this process may use.
func (p *process) storeQuota() (int64, error) {
	quota, err := p.StoreQuotaBytes()
	if err != nil || quota != 0 {
		return quota, err
	}
	return min(max(p.memory()/storeShare, 4*config.MinStoreQuota), config.MaxStoreQuota), nil
}

// memory returns usableMemory("/"), or 0 if it cannot be read.
func (p *process) memory() int64 {
	memory, err := usableMemory("/")
	if err != nil {
		p.log.Warn("could not read memory size, assuming that there is little", "error", err)
	}
	return memory
}

func readSmall(root string, path ...string) (string, error) {
	data, err := bounded.File(filepath.Join(append([]string{root}, path...)...), 64<<10)
	return string(data), err
}

// usableMemory returns the memory of the machine in bytes, or the limit of this process's cgroups if that is lower.
func usableMemory(root string) (int64, error) {
	meminfo, err := readSmall(root, "proc/meminfo")
	if err != nil {
		return 0, err
	}
	var total int64
	for line := range strings.Lines(meminfo) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/meminfo: %w", err)
			}
			total = kib << 10
		}
	}
	cgroups, err := readSmall(root, "proc/self/cgroup")
	if err != nil {
		return total, nil // a kernel without cgroups
	}
	for line := range strings.Lines(cgroups) {
		// cgroups(7): "hierarchy-ID:controller-list:cgroup-path", with an empty list for version 2.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		var mount, file string
		switch {
		case parts[1] == "":
			mount, file = "sys/fs/cgroup", "memory.max"
		case parts[1] == "memory":
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		// Limits of parent cgroups apply too. In a container the path may be the host's; the limit is then at the
		// root of the mount.
		for dir := filepath.Clean("/" + parts[2]); ; dir = filepath.Dir(dir) {
			text, err := readSmall(root, mount, dir, file)
			if limit, perr := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil && perr == nil && limit > 0 {
				total = min(total, limit)
			}
			if dir == "/" {
				break
			}
		}
	}
	return total, nil
}

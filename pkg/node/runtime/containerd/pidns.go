package containerd

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// maxProcCgroup bounds /proc/PID/cgroup, which has a line per hierarchy, in bytes.
const maxProcCgroup = 64 << 10

// ContainerPIDNS implements runtime.Runtime. A file descriptor of this process keeps the namespace. All files are
// opened relative to one descriptor of /proc/PID: it stays bound to its process, so that a reused PID is not mistaken
// for it.
func (r *Runtime) ContainerPIDNS(_ context.Context, id string) (string, func(), error) {
	c, err := r.get(id)
	if err != nil {
		return "", nil, err
	}
	now := c.public()
	if now.State != runtime.Running || now.PID <= 0 {
		return "", nil, fmt.Errorf("container %s: %w", id, runtime.ErrNotRunning)
	}
	process, err := unix.Open(fmt.Sprintf("/proc/%d", now.PID), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("container %s: %w", id, runtime.ErrNotRunning)
	}
	defer unix.Close(process)
	groups, err := readAt(process, "cgroup", maxProcCgroup)
	if err != nil {
		return "", nil, fmt.Errorf("container %s: %w: %w", id, runtime.ErrNotRunning, err)
	}
	if !inCgroup(groups, c.cgroup()) {
		return "", nil, fmt.Errorf("container %s: %w: process %d belongs to another container", id,
			runtime.ErrNotRunning, now.PID)
	}
	ns, err := unix.Openat(process, "ns/pid", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("container %s: open its PID namespace: %w", id, err)
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns), func() { _ = unix.Close(ns) }, nil
}

func readAt(dir int, name string, limit int64) (string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	raw, err := bounded.All(f, limit)
	return string(raw), err
}

// inCgroup reports whether a /proc/PID/cgroup names the cgroup or a descendant of it in any hierarchy.
func inCgroup(groups, cgroup string) bool {
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && (strings.HasSuffix(parts[2], cgroup) || strings.Contains(parts[2], cgroup+"/")) {
			return true
		}
	}
	return false
}

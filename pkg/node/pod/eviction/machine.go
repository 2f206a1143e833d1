package eviction

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/host/pids"
)

// Kernel implements Machine for the local machine. Read costs a few system calls.
type Kernel struct {
	// NodeDir and ImageDir return a directory on the node's and on the image file system.
	NodeDir, ImageDir func() string
	// PodsCgroup is the path of the cgroup of all pods, or "". Its limit, if any, also limits memory.available.
	PodsCgroup string
}

var _ Machine = Kernel{}

// Read implements Machine.
func (k Kernel) Read() map[config.Signal]Reading {
	all := map[config.Signal]Reading{}
	if r, err := k.memory(); err == nil {
		all[config.MemoryAvailable] = r
	}
	if space, nodes, ok := fileSystem(k.NodeDir()); ok {
		all[config.NodeFsAvailable], all[config.NodeFsInodesFree] = space, nodes
	}
	if space, nodes, ok := fileSystem(k.ImageDir()); ok {
		all[config.ImageFsAvailable], all[config.ImageFsInodesFree] = space, nodes
	}
	if r, err := processes(); err == nil {
		all[config.PIDAvailable] = r
	}
	return all
}

// memory returns the memory available to pods, capped by the pods cgroup's limit as in the kubelet.
func (k Kernel) memory() (Reading, error) {
	r, err := memory()
	if err != nil || k.PodsCgroup == "" {
		return r, err
	}
	if left, ok := leftOf(k.PodsCgroup); ok {
		r.Available = min(r.Available, left)
	}
	return r, nil
}

func leftOf(cgroup string) (int64, bool) {
	v1 := "/sys/fs/cgroup/memory" + cgroup
	dir, files, inactive := v1, [2]string{"memory.limit_in_bytes", "memory.usage_in_bytes"}, "total_inactive_file "
	if _, err := os.Stat(dir); err != nil {
		dir, files, inactive = "/sys/fs/cgroup"+cgroup, [2]string{"memory.max", "memory.current"}, "inactive_file "
	}
	var limit, used int64
	for i, to := range []*int64{&limit, &used} {
		text, err := os.ReadFile(dir + "/" + files[i])
		if err != nil {
			return 0, false
		}
		if *to, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err != nil {
			return 0, false // "max"
		}
	}
	text, err := os.ReadFile(dir + "/memory.stat")
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(text) {
		if rest, is := bytes.CutPrefix(line, []byte(inactive)); is {
			n, _ := strconv.ParseInt(string(bytes.TrimSpace(rest)), 10, 64)
			used -= min(used, n)
		}
	}
	return max(limit-used, 0), true
}

func memory() (Reading, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Reading{}, err
	}
	var r Reading
	for line := range bytes.Lines(text) {
		for name, to := range map[string]*int64{"MemTotal:": &r.Capacity, "MemAvailable:": &r.Available} {
			if rest, is := bytes.CutPrefix(line, []byte(name)); is {
				kb, err := strconv.ParseInt(strings.TrimSuffix(string(bytes.TrimSpace(rest)), " kB"), 10, 64)
				if err != nil {
					return r, fmt.Errorf("/proc/meminfo: %w", err)
				}
				*to = kb << 10
			}
		}
		if r.Available > 0 { // MemTotal precedes MemAvailable
			return r, nil
		}
	}
	return r, errors.New("/proc/meminfo has no MemAvailable")
}

func fileSystem(dir string) (space, nodes Reading, ok bool) {
	var s unix.Statfs_t
	if dir == "" || unix.Statfs(dir, &s) != nil || s.Blocks == 0 {
		return space, nodes, false
	}
	// A file system that allocates inodes dynamically reports none.
	return Reading{int64(s.Bavail) * s.Bsize, int64(s.Blocks) * s.Bsize}, Reading{int64(s.Ffree), int64(s.Files)}, true
}

func processes() (Reading, error) {
	limit, err := pids.Limit()
	if err != nil {
		return Reading{}, err
	}
	count, err := pids.Count()
	return Reading{Available: max(limit-count, 0), Capacity: limit}, err
}

// rearm is how often the threshold is recomputed, because it depends on the page cache.
const rearm = 10 * time.Second

// Watch implements Machine with a threshold in the root of cgroup v1's memory controller, or else with the kernel's
// pressure stall information (PSI). Without both, only the periodic Read detects pressure.
func (k Kernel) Watch(ctx context.Context, below int64, wake func()) {
	const v1 = "/sys/fs/cgroup/memory"
	if _, err := os.Stat(v1 + "/cgroup.event_control"); err == nil {
		watchUsage(ctx, v1, k.memory, below, wake)
		return
	}
	trigger, err := stalls("/proc/pressure/memory")
	if err != nil {
		return
	}
	defer trigger.Close()
	watchPriority(ctx, trigger, wake)
}

// stalls returns a file with a priority event whenever tasks stalled on memory for 100 ms in a second (accounting/psi).
func stalls(path string) (*os.File, error) {
	trigger, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if _, err := trigger.WriteString("some 100000 1000000\x00"); err != nil {
		return nil, errors.Join(err, trigger.Close())
	}
	return trigger, nil
}

// watchPriority calls wake at each priority event of a file until ctx is done. Go's poller supports them only by way of
// an epoll file descriptor.
func watchPriority(ctx context.Context, file *os.File, wake func()) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return
	}
	err = errors.Join(unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, int(file.Fd()), &unix.EpollEvent{
		Events: unix.EPOLLPRI | unix.EPOLLET,
	}), unix.SetNonblock(fd, true))
	poll := os.NewFile(uintptr(fd), file.Name())
	defer poll.Close()
	if err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { poll.Close() })()
	conn, err := poll.SyscallConn()
	for err == nil && ctx.Err() == nil {
		err = conn.Read(func(fd uintptr) bool {
			var events [1]unix.EpollEvent
			n, _ := unix.EpollWait(int(fd), events[:], 0)
			return n > 0
		})
		if err == nil {
			wake()
		}
	}
}

// watchUsage calls wake when a cgroup's usage rises so far that less than below is available.
func watchUsage(ctx context.Context, dir string, memory func() (Reading, error), below int64, wake func()) {
	for ctx.Err() == nil {
		left, err := memory()
		if err != nil {
			return
		}
		margin := left.Available - below
		if margin <= 0 { // already crossed: the periodic check handles it
			margin = left.Available
		}
		text, err := os.ReadFile(dir + "/memory.usage_in_bytes")
		if err != nil {
			return
		}
		used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return
		}
		event, err := threshold(dir, used+margin)
		if err != nil {
			return
		}
		if err := event.SetReadDeadline(time.Now().Add(rearm)); err != nil {
			event.Close()
			return
		}
		stop := context.AfterFunc(ctx, func() { event.Close() })
		_, err = event.Read(make([]byte, 8))
		if stop() {
			event.Close()
		}
		if err == nil {
			wake()
		}
	}
}

// threshold returns a file that becomes readable when a cgroup's usage crosses at bytes (cgroup-v1/memory, section 9).
func threshold(dir string, at int64) (*os.File, error) {
	usage, err := os.Open(dir + "/memory.usage_in_bytes")
	if err != nil {
		return nil, err
	}
	defer usage.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	event := os.NewFile(uintptr(fd), "memory threshold") // do not call Fd(): it sets blocking mode
	order := fmt.Sprintf("%d %d %d", fd, usage.Fd(), at)
	if err := os.WriteFile(dir+"/cgroup.event_control", []byte(order), 0); err != nil {
		return nil, errors.Join(err, event.Close())
	}
	return event, nil
}

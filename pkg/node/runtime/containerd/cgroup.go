package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func cgroupRoots() []string {
	if cgroup2() {
		return []string{"/sys/fs/cgroup"}
	}
	entries, _ := os.ReadDir("/sys/fs/cgroup")
	var roots []string
	for _, e := range entries {
		if e.IsDir() { // symbolic links are aliases
			roots = append(roots, filepath.Join("/sys/fs/cgroup", e.Name()))
		}
	}
	return roots
}

const killTime = 5 * time.Second

// killCgroup kills the processes in a cgroup and its descendants, and removes the cgroups, in every hierarchy.
func killCgroup(path string) error {
	if path = filepath.Clean("/" + path); path == "/" {
		return errors.New("refusing to remove the root cgroup")
	}
	var errs []error
	for _, root := range cgroupRoots() {
		errs = append(errs, removeTree(filepath.Join(root, path)))
	}
	return errors.Join(errs...)
}

func removeTree(dir string) error {
	// Usually the cgroup is empty. Walking it would read the names of dozens of files per hierarchy.
	if err := unix.Rmdir(dir); err == nil || err == unix.ENOENT {
		return nil
	}
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, d := range slices.Backward(dirs) {
		if err := removeOne(d); err != nil {
			return err
		}
	}
	return nil
}

// removeOne kills processes until the cgroup can be removed. It waits for each process with a pidfd, because cgroup
// v1 does not notify that a cgroup is empty.
func removeOne(dir string) error {
	for deadline := time.Now().Add(killTime); ; {
		err := unix.Rmdir(dir)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EBUSY || time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		data, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		var fds []unix.PollFd
		for word := range strings.FieldsSeq(string(data)) {
			pid, _ := strconv.Atoi(word)
			if pid <= 1 || pid == os.Getpid() {
				return fmt.Errorf("cgroup %s holds process %d, which is not a container's", dir, pid)
			}
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
				fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
			}
		}
		for i := range fds {
			_, _ = unix.Poll(fds[i:i+1], int(time.Until(deadline).Milliseconds()))
			unix.Close(int(fds[i].Fd))
		}
		if len(fds) == 0 { // the processes have exited, but are still counted
			_, _ = unix.Poll(nil, 1)
		}
	}
}

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ending stops the process that holds a data directory: with SIGTERM, then SIGKILL after a timeout.
type ending struct {
	dir string
	// graceful is the timeout after SIGTERM, killed that after SIGKILL, in which the kernel releases memory and open
	// files.
	graceful, killed time.Duration
	// hurry has a process that serves for a while before it stops do so no longer.
	hurry bool
	say   func(format string, args ...any)
}

const (
	// A process limits its own stop (run.All: 30 s, and a second per component), so one that takes longer hangs.
	stopPatience = 60 * time.Second
	// A deletion need not wait for anything to finish.
	deletePatience = 15 * time.Second
	killPatience   = 15 * time.Second
	// quietly is how long to wait for a process to exit before the wait is reported.
	quietly = 2 * time.Second
)

// run returns once no process holds the directory. was is the pid of the process that it stopped, or 0, and killed
// reports whether SIGKILL was needed.
func (e ending) run(ctx context.Context) (was int, killed bool, err error) {
	p, err := findHolder(e.dir)
	if p == nil || err != nil {
		return 0, false, err
	}
	defer p.close()
	if err := p.signal(unix.SIGTERM); err != nil {
		return p.pid, false, err
	}
	ended, err := p.wait(ctx, min(quietly, e.graceful))
	if ended || err != nil {
		return p.pid, false, err
	}
	if e.hurry {
		if err := p.signal(unix.SIGTERM); err != nil {
			return p.pid, false, err
		}
	}
	e.say("waiting for process %d to end; it is killed after %s", p.pid, e.graceful)
	ended, err = p.wait(ctx, e.graceful-quietly)
	if ended || err != nil {
		return p.pid, false, err
	}
	e.say("process %d did not end within %s: killing it", p.pid, e.graceful)
	if err := p.signal(unix.SIGKILL); err != nil {
		return p.pid, true, err
	}
	ended, err = p.wait(ctx, e.killed)
	if err == nil && !ended {
		err = fmt.Errorf("process %d was killed but has not ended after %s: it waits for the kernel (see /proc/%d/wchan), "+
			"often for a disk or "+
			"a network file system; try again once that answers, or restart the machine", p.pid, e.killed, p.pid)
	}
	return p.pid, true, err
}

// lockHolder is the process that holds a data directory's lock, identified by a pidfd, which cannot be reused.
type lockHolder struct {
	pid int
	fd  *os.File // a non-blocking pidfd, to wait with the runtime's poller
}

// findHolder returns nil if no process holds the directory.
func findHolder(dir string) (*lockHolder, error) {
	pid := holder(dir)
	if pid == 0 {
		return nil, nil
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		if holder(dir) == 0 {
			return nil, nil // it has exited meanwhile
		}
		return nil, fmt.Errorf("%s is in use by process %d, which cannot be seen from here: end it from its own container",
			dir, pid)
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	h := &lockHolder{pid, os.NewFile(uintptr(fd), "pidfd")}
	// The pid was read before the pidfd was opened, so by now it may belong to another process, or to another
	// container.
	holds, err := hasOpen(pid, filepath.Join(dir, lockFile))
	if err == nil && !holds {
		// A process that ends closes its files before the kernel releases the lock.
		if _, err = h.wait(context.Background(), quietly); err == nil {
			err = fmt.Errorf("process %d is recorded as the user of %s, but does not have its %s open", pid, dir, lockFile)
		}
	}
	if err != nil {
		h.close()
		if holder(dir) == 0 {
			return nil, nil
		}
		return nil, err
	}
	return h, nil
}

// hasOpen reports whether a process has a file open.
func hasOpen(pid int, file string) (bool, error) {
	wanted, err := os.Stat(file)
	if err != nil {
		return false, err
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	open, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, entry := range open {
		if info, err := os.Stat(filepath.Join(dir, entry.Name())); err == nil && os.SameFile(info, wanted) {
			return true, nil
		}
	}
	return false, nil
}

func (h *lockHolder) close() { _ = h.fd.Close() }

// signal returns nil if the process has already exited.
func (h *lockHolder) signal(s unix.Signal) error {
	raw, err := h.fd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) }); err != nil {
		return err
	}
	if sent != nil && !errors.Is(sent, unix.ESRCH) {
		return fmt.Errorf("%s to process %d: %w", unix.SignalName(s), h.pid, sent)
	}
	return nil
}

// wait returns true once the process has exited, false after patience, or ctx's error.
func (h *lockHolder) wait(ctx context.Context, patience time.Duration) (ended bool, err error) {
	if err := h.fd.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = h.fd.SetReadDeadline(time.Unix(0, 0)) })
	defer stop()
	raw, err := h.fd.SyscallConn()
	if err != nil {
		return false, err
	}
	var failure error
	err = raw.Read(func(fd uintptr) bool {
		var n int
		for {
			n, failure = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			if !errors.Is(failure, unix.EINTR) {
				break
			}
		}
		ended = n > 0
		return ended || failure != nil
	})
	switch {
	case ended || failure != nil:
		return ended, failure
	case ctx.Err() != nil:
		return false, ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return false, nil
	}
	return false, err
}

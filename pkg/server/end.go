package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ending stops the process that holds a data directory: with SIGTERM and, after a timeout, SIGKILL.
type ending struct {
	dir string
	// lock is the lock file in dir that the process holds. The default is lockFile.
	lock string
	// graceful is the timeout after SIGTERM. killed is the timeout after SIGKILL, while the kernel releases memory
	// and files.
	graceful, killed time.Duration
	// hurry sends a second SIGTERM, which ends the --shutdown-delay of a process that still serves.
	hurry bool
	say   func(format string, args ...any)
}

const (
	// A process bounds its own stop (run.All: 30 s, and a second per component). One that takes longer hangs.
	stopPatience = 60 * time.Second
	// A deletion does not wait for a clean stop.
	deletePatience = 15 * time.Second
	killPatience   = 15 * time.Second
	// A wait shorter than quietly is not reported.
	quietly = 2 * time.Second
)

// run stops the process that holds the directory and returns its pid, or 0 if there was none. killed reports
// whether SIGKILL was needed.
func (e ending) run(ctx context.Context) (was int, killed bool, err error) {
	p, err := findHolder(e.dir, cmp.Or(e.lock, lockFile))
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

// lockHolder is the process that holds a data directory's lock. It is identified by a pidfd, since a pid can be reused.
type lockHolder struct {
	pid int
	fd  *os.File // non-blocking, so that the Go runtime's poller can wait for it
}

// findHolder returns the process that holds a lock file of the directory, or nil if there is none.
func findHolder(dir, lock string) (*lockHolder, error) {
	pid := holderOf(dir, lock)
	if pid == 0 {
		return nil, nil
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		if holderOf(dir, lock) == 0 {
			return nil, nil // it has exited since
		}
		return nil, fmt.Errorf("%s is in use by process %d, which cannot be seen from here: end it from its own container",
			dir, pid)
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	h := &lockHolder{pid, os.NewFile(uintptr(fd), "pidfd")}
	// The pid was read before the pidfd was opened, so it may belong to a new process or to a process of another
	// container.
	holds, err := hasOpen(pid, filepath.Join(dir, lock))
	if err == nil && !holds {
		// An exiting process closes its files before the kernel releases the lock.
		if _, err = h.wait(context.Background(), quietly); err == nil {
			err = fmt.Errorf("process %d is recorded as the user of %s, but does not have its %s open", pid, dir, lock)
		}
	}
	if err != nil {
		h.close()
		if holderOf(dir, lock) == 0 {
			return nil, nil
		}
		return nil, err
	}
	return h, nil
}

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

// wait returns true once the process has exited, false after patience, or the error of ctx.
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

//go:build cgo

package server

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reaper reaps orphans (the shim is a subreaper), but not the shim's own children, which have other waiters.
type reaper struct {
	starting sync.RWMutex // held for reading while a child is started whose PID is not yet known

	mu   sync.Mutex
	ours map[int]struct{}
	wake chan os.Signal
}

func newReaper(ctx context.Context) (*reaper, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	r := &reaper{ours: map[int]struct{}{}, wake: make(chan os.Signal, 1)}
	signal.Notify(r.wake, unix.SIGCHLD)
	go func() {
		defer signal.Stop(r.wake)
		for {
			select {
			case <-ctx.Done():
				return
			case <-r.wake:
				r.reap()
			}
		}
	}()
	return r, nil
}

// start calls f, which starts a child and returns its PID. The caller waits for the child and then calls release.
func (r *reaper) start(f func() (pid int, err error)) error {
	r.starting.RLock()
	defer r.starting.RUnlock()
	pid, err := f()
	if err == nil {
		r.mu.Lock()
		r.ours[pid] = struct{}{}
		r.mu.Unlock()
	}
	return err
}

// release is called after the child was waited for.
func (r *reaper) release(pid int) {
	r.mu.Lock()
	delete(r.ours, pid)
	r.mu.Unlock()
	select { // other children may have exited
	case r.wake <- unix.SIGCHLD:
	default:
	}
}

func (r *reaper) reap() {
	r.starting.Lock()
	defer r.starting.Unlock()
	for {
		// siginfo_t has 128 bytes, with the PID at byte 16.
		var info [128]byte
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
			unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
		pid := int(*(*int32)(unsafe.Pointer(&info[16])))
		if errors.Is(errno, unix.EINTR) {
			continue
		}
		if errno != 0 || pid == 0 {
			return
		}
		r.mu.Lock()
		_, ours := r.ours[pid]
		r.mu.Unlock()
		if ours {
			return // its waiter reaps it and calls release
		}
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
}

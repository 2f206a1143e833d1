//go:build cgo

package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/opencontainers/runc/libcontainer/exeseal"
	"golang.org/x/sys/unix"
)

// holderTime is how long the holder may take to drop its privileges.
const holderTime = 10 * time.Second

// besides is a directory without the executable. If there is one, the executable is sealed by a mount, otherwise by a copy in memory.
const besides = "/run"

// holder is the first process of a PID namespace that the pod's containers share.
type holder struct{ *exec.Cmd }

// newHolder starts a holder in namespaces of its own and returns when it has dropped its privileges. Its executable cannot be written through
// /proc/1/exe (CVE-2019-5736).
func newHolder(r *reaper) (*holder, error) {
	sealed, err := exeseal.CloneSelfExe(besides)
	if err != nil {
		return nil, fmt.Errorf("seal the executable: %w", err)
	}
	defer sealed.Close()
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", sealed.Fd()), "pause")
	cmd.Args[0] = "coracle-shim"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	cmd.Env, cmd.Stderr = []string{}, os.Stderr
	// When the pipe is closed the shim has exited. A parent death signal would follow the thread instead.
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	ready, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	cmd.Stdout = theirs
	err = r.start(func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	theirs.Close()
	if err != nil {
		return nil, err
	}
	h := &holder{cmd}
	_ = ready.SetReadDeadline(time.Now().Add(holderTime))
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		h.end()
		r.release(cmd.Process.Pid)
		return nil, errors.New("the first process of the pod's PID namespace could not be confined: see the shim's log")
	}
	return h, nil
}

func (h *holder) end() {
	_ = h.Process.Kill()
	_ = h.Wait()
}

// pidns starts the holder of the pod's PID namespace, once, and returns its process ID.
func (s *Server) pidns() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return 0, errors.New("the pod is being removed")
	}
	if s.holder == nil {
		h, err := newHolder(s.reaper)
		if err != nil {
			return 0, err
		}
		s.holder = h
	}
	return s.holder.Process.Pid, nil
}

//go:build cgo

package server

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/opencontainers/runc/libcontainer/exeseal"
	"golang.org/x/sys/unix"
)

// holderTime limits how long the holder may take to drop its privileges.
const holderTime = 10 * time.Second

// besides is a directory that does not contain the executable, as exeseal requires. If it exists, the executable is
// sealed by a mount, otherwise by a copy in memory.
const besides = "/run"

// holder is the first process of the PID namespace that a pod's containers share. It exits when its stdin is closed.
type holder struct {
	*os.Process
	input *os.File
}

// newHolder starts a holder in new namespaces and returns after it has dropped its privileges. users, if not empty,
// is the path of the user namespace that owns them. The holder's executable cannot be written through /proc/1/exe
// (CVE-2019-5736).
func newHolder(r *reaper, users string) (*holder, error) {
	sealed, err := exeseal.CloneSelfExe(besides)
	if err != nil {
		return nil, fmt.Errorf("seal the executable: %w", err)
	}
	defer sealed.Close()
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", sealed.Fd()), "pause")
	cmd.Args[0] = "coracle-shim"
	cmd.Env, cmd.Stderr = []string{}, os.Stderr
	if users == "" {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		}
	} else {
		namespace, err := os.Open(users)
		if err != nil {
			return nil, fmt.Errorf("the pod's user namespace: %w", err)
		}
		defer namespace.Close()
		cmd.Args = append(cmd.Args, "join")
		// Pass the executable as well, because its descriptor may collide with one to which exec moves the child's
		// descriptors (golang.org/issue/61751).
		cmd.ExtraFiles, cmd.Path = []*os.File{namespace, sealed}, "/proc/self/fd/4"
	}
	theirInput, input, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirInput.Close()
	ready, theirs, err := os.Pipe()
	if err != nil {
		input.Close()
		return nil, err
	}
	defer ready.Close()
	cmd.Stdin, cmd.Stdout = theirInput, theirs
	_ = ready.SetReadDeadline(time.Now().Add(holderTime))
	h := &holder{input: input}
	// The holder exits when the shim's pipe is closed. A parent death signal would follow the thread instead.
	err = r.start(func() (int, error) {
		err := cmd.Start()
		theirs.Close()
		if err != nil {
			return 0, err
		}
		h.Process = cmd.Process
		if users != "" {
			if h.Process, err = joined(cmd.Process, ready); err != nil {
				return 0, err
			}
		}
		return h.Pid, nil
	})
	if err != nil {
		input.Close()
		return nil, err
	}
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		h.end()
		r.release(h.Pid)
		return nil, errConfined
	}
	return h, nil
}

var errConfined = errors.New("the first process of the pod's PID namespace could not be confined: see the shim's log")

// joined returns the holder, a child of this process that the helper p started in the pod's user namespace. The
// helper writes the holder's PID and exits.
func joined(p *os.Process, from *os.File) (*os.Process, error) {
	pid, unread := 0, error(nil)
	for c := []byte{0}; pid < math.MaxInt32; pid = 10*pid + int(c[0]-'0') { // the bytes after the line are the holder's
		if _, unread = from.Read(c); unread != nil || c[0] < '0' || c[0] > '9' {
			break
		}
	}
	state, err := p.Wait()
	if err != nil || unread != nil || !state.Success() || pid == 0 {
		return nil, errors.Join(errConfined, err)
	}
	return os.FindProcess(pid)
}

func (h *holder) end() {
	_ = h.Kill()
	_, _ = h.Wait()
	_ = h.input.Close()
}

// pidns returns the PID of the holder, and starts it with the first call.
func (s *Server) pidns(users string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return 0, errors.New("the pod is being removed")
	}
	if s.holder == nil {
		h, err := newHolder(s.reaper, users)
		if err != nil {
			return 0, err
		}
		s.holder = h
	}
	return s.holder.Pid, nil
}

//go:build cgo

package server

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/host/mount"
	"github.com/coracle-dev/coracle/pkg/node/runtime/crilog"
	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

const (
	stateCreated = "created"
	stateRunning = "running"
	stateExited  = "exited"

	// failedToStart is the exit code of a container whose command cannot be run.
	failedToStart = 128

	// maxMessage limits the message of a failed start, in bytes.
	maxMessage = 4096
)

// container is created, then running, then exited; if it cannot start, it is created, then exited.
type container struct {
	server   *Server
	id, dir  string
	starting sync.Once
	bundle   shim.Bundle
	log      *crilog.File
	c        *libcontainer.Container
	process  specs.Process // of the first process, with the user resolved
	first    *libcontainer.Process
	pid      int // of the first process
	io       *procIO
	out      *fan
	errs     *fan
	exited   chan struct{} // closed when the first process has exited
	done     chan struct{} // closed when it has exited, and its output is in the log
	sessions atomic.Int32

	mu     sync.Mutex
	status shim.Status
}

func (c *container) snapshot() shim.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	if s.State == "" {
		s.ID, s.State = c.id, stateCreated
	}
	return s
}

func (c *container) set(s shim.Status) {
	s.ID = c.id
	if err := save(c.dir, s); err != nil {
		c.server.log.Error("could not save container state", "container", c.id, "error", err)
	}
	c.mu.Lock()
	c.status = s
	c.mu.Unlock()
	c.server.report(s)
}

func (c *container) start() {
	var old shim.Status
	if err := shim.ReadJSON(shim.StateFile(c.dir), &old); err == nil && old.State == stateExited {
		c.status = old
		close(c.done)
		return
	}
	if err := c.run(); err != nil {
		now := time.Now()
		c.release()
		c.set(shim.Status{State: stateExited, ExitCode: failedToStart, Message: plain(err), FinishedAt: now})
		close(c.done)
	}
}

// plain removes libcontainer's prefixes from an error.
func plain(err error) string {
	text := err.Error()
	for _, prefix := range []string{"unable to start container process: ", "error during container init: "} {
		text = strings.Replace(text, prefix, "", 1)
	}
	return bounded.Text(text, maxMessage) // it may contain the command, whose length is not limited
}

func (c *container) run() error {
	if err := shim.ReadJSON(shim.BundleFile(c.dir), &c.bundle); err != nil {
		return err
	}
	var err error
	if c.log, err = crilog.Open(c.bundle.LogPath); err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	if c.bundle.Users != nil {
		err = c.startOnStage()
	} else if err = c.create(); err == nil {
		if err = mountRootfs(c.dir, c.bundle.Lower); err != nil {
			return fmt.Errorf("mount the root file system: %w", err)
		}
		err = c.launch()
	}
	if err != nil {
		return err
	}
	if err := c.io.started(); err != nil {
		_ = c.c.Signal(unix.SIGKILL)
		_, _ = c.first.Wait()
		c.server.reaper.release(c.pid)
		return err
	}
	stdout, stderr := c.log.Stream("stdout"), c.log.Stream("stderr")
	c.out.log, c.errs.log = stdout, stderr
	c.io.copyOut(c.out, c.errs)
	started := time.Now()
	u := c.process.User
	user := &shim.User{UID: u.UID, GID: u.GID, Groups: u.AdditionalGids}
	c.set(shim.Status{State: stateRunning, PID: c.pid, StartedAt: started, User: user})
	go func() {
		state, _ := c.first.Wait()
		finished := time.Now()
		close(c.exited)
		c.server.reaper.release(c.pid)
		s := shim.Status{State: stateExited, StartedAt: started, FinishedAt: finished, User: user}
		s.ExitCode, s.Signal = exitOf(state)
		s.OOMKilled = oomKilled(c.c)
		if config := c.c.Config(); !config.Namespaces.IsPrivate(configs.NEWPID) {
			_ = c.c.Signal(unix.SIGKILL) // kill the other processes in its cgroup
		}
		c.io.drain()
		stdout.Close()
		stderr.Close()
		c.release()
		c.set(s)
		close(c.done)
		c.server.idle.Reset(time.Second)
	}()
	return nil
}

// create makes the libcontainer container from the specification. It must not run on a stage: libcontainer caches
// where cgroups are mounted for the lifetime of the process.
func (c *container) create() error {
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{
		CgroupName: c.id, Spec: &c.bundle.Spec, NoNewKeyring: true,
	})
	if err != nil {
		return err
	}
	if c.bundle.Users != nil {
		join(config, c.bundle.Users.Path)
	}
	c.c, err = libcontainer.Create(shim.Runtime(c.dir), c.id, config)
	return err
}

func (c *container) launch() (err error) {
	b := &c.bundle
	c.process = *b.Spec.Process
	if err := resolveUser(&c.process, b, shim.Rootfs(c.dir)); err != nil {
		return err
	}
	if c.first, err = newProcess(&c.process); err != nil {
		return err
	}
	c.first.Init = true
	if c.io, err = c.newIO(c.first, b.TTY, b.Stdin, true, true); err != nil {
		return err
	}
	err = c.server.reaper.start(func() (int, error) {
		err := c.c.Run(c.first)
		if err == nil {
			c.pid, err = c.first.Pid()
		}
		return c.pid, err
	})
	if err != nil {
		c.io.abort()
	}
	return err
}

func (c *container) newIO(p *libcontainer.Process, tty, in, out, errs bool) (*procIO, error) {
	i, err := newIO(p, tty, in, out, errs)
	if err == nil && c.bundle.Users != nil {
		if err = i.give(c.bundle.Users.First); err != nil {
			i.abort()
		}
	}
	return i, err
}

// release releases everything that a running container holds, except the bundle. It may be repeated.
func (c *container) release() {
	if c.log != nil {
		_ = c.log.Close()
	}
	if c.c != nil {
		unlimit(c.c)
		if err := c.c.Destroy(); err != nil {
			c.server.log.Warn("could not release container", "container", c.id, "error", err)
		}
	}
	if err := unmountRootfs(c.dir); err != nil {
		c.server.log.Warn("could not unmount root filesystem of container", "container", c.id, "error", err)
	}
}

func (c *container) remove() error {
	c.starting.Do(func() { // a container that was not started must not start any more
		c.set(shim.Status{
			State:      stateExited,
			ExitCode:   failedToStart,
			Message:    "removed before it started",
			FinishedAt: time.Now(),
		})
		close(c.done)
	})
	select {
	case <-c.done:
	default:
		err := c.signal(unix.SIGKILL, false)
		if err != nil && !errors.Is(err, shim.ErrNotRunning) && c.snapshot().State == stateRunning {
			return fmt.Errorf("kill: %w", err)
		}
		<-c.done
	}
	return unmountRootfs(c.dir)
}

func (c *container) signal(sig syscall.Signal, all bool) error {
	if all {
		pids, err := c.c.Processes()
		if err != nil {
			return err
		}
		for _, pid := range pids {
			err = errors.Join(err, unix.Kill(pid, sig))
		}
		if sig == unix.SIGKILL && errors.Is(err, unix.EACCES) {
			return killCgroup(c.c)
		}
		return nil // processes may have ended meanwhile
	}
	err := c.c.Signal(sig)
	if errors.Is(err, unix.EACCES) { // an AppArmor profile without a rule for signals
		if sig != unix.SIGKILL {
			return nil // the program cannot get it, and is killed after its grace period
		}
		err = killCgroup(c.c)
	}
	if err == nil {
		return nil
	}
	select {
	case <-c.done:
		return shim.ErrNotRunning
	default:
	}
	if ended(err) {
		return shim.ErrNotRunning
	}
	return err
}

// ended reports whether a signal failed because the process has exited. Its container still counts as running until
// its output is copied.
func ended(err error) bool {
	return errors.Is(err, libcontainer.ErrNotRunning) || errors.Is(err, os.ErrProcessDone) || errors.Is(err, unix.ESRCH)
}

func exitOf(state *os.ProcessState) (code, sig int) {
	if state == nil {
		return 255, 0
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), int(ws.Signal())
	}
	return state.ExitCode(), 0
}

// mountRootfs mounts the container's root: an overlay of the image's layers and the bundle's upper directory.
func mountRootfs(dir string, lower []string) error {
	if err := unmountRootfs(dir); err != nil { // a mount left by a killed shim
		return err
	}
	for _, d := range []string{shim.Upper(dir), shim.Work(dir), shim.Rootfs(dir)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	root, err := mount.Overlay{Lower: lower, Upper: shim.Upper(dir), Work: shim.Work(dir)}.New()
	if err != nil {
		return err
	}
	defer unix.Close(root)
	return mount.Attach(root, shim.Rootfs(dir))
}

func unmountRootfs(dir string) error {
	for {
		err := unix.Unmount(shim.Rootfs(dir), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch err {
		case nil:
		case unix.EINVAL, unix.ENOENT: // not a mount point
			return nil
		default:
			return err
		}
	}
}

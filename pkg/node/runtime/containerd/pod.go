package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

// hungAfter is how long a shim may take to exit, or to answer when the agent starts, before it is killed as hung.
const hungAfter = 10 * time.Second

// pod is a pod's shim. It is first unwatched, then alive, then gone.
type pod struct {
	r    *Runtime
	uid  string
	dir  string
	ops  sync.Mutex // one start or end at a time
	cmd  *exec.Cmd  // nil if an earlier process started the shim
	mu   sync.Mutex
	live chan struct{} // closed when the watch of the shim ended; nil before the first watch

	limited bool // limit has set the pod's process limit
}

func (r *Runtime) pod(uid string) *pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.pods[uid]
	if !ok {
		p = &pod{r: r, uid: uid, dir: filepath.Join(r.config.RunDir, "pods", uid)}
		r.pods[uid] = p
	}
	return p
}

func (p *pod) socket() string      { return filepath.Join(p.dir, "sock") }
func (p *pod) client() shim.Client { return shim.Client{Socket: p.socket()} }

func (p *pod) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live == nil {
		return false
	}
	select {
	case <-p.live:
		return false
	default:
		return true
	}
}

// shim returns the pod's shim, and starts one if none is alive.
func (p *pod) shim(ctx context.Context) (shim.Client, error) {
	p.ops.Lock()
	defer p.ops.Unlock()
	if p.alive() {
		return p.client(), nil
	}
	if err := p.kill(); err != nil { // an earlier shim that never answered
		return shim.Client{}, err
	}
	if err := p.spawn(); err != nil {
		return shim.Client{}, fmt.Errorf("shim of pod %s: %w", p.uid, err)
	}
	if err := p.watch(ctx); err != nil {
		return shim.Client{}, fmt.Errorf("shim of pod %s: %w", p.uid, err)
	}
	return p.client(), nil
}

// spawn starts a shim and passes it a listening socket, so that clients can connect at once.
func (p *pod) spawn() error {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	if err := p.r.config.Failpoints.At("shim.dir"); err != nil {
		return err
	}
	_ = os.Remove(p.socket())
	dir, err := os.Open(p.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	// A socket address is limited to 107 bytes, so use the descriptor instead of the path.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/sock", dir.Fd()), Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	file, err := l.File()
	if err != nil {
		return err
	}
	defer file.Close()
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.r.shim, "serve")
	cmd.Dir, cmd.Stderr, cmd.ExtraFiles = "/", log, []*os.File{file}
	cmd.Env = []string{defaultPath}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd = cmd
	if err := p.spawned(cmd.Process.Pid); err != nil { // a later process could not find it without a record
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return err
	}
	return nil
}

func (p *pod) spawned(pid int) error {
	if err := p.r.config.Failpoints.At("shim.spawned"); err != nil {
		return err
	}
	if p.r.limits.oomScoreAdj < 0 { // the OOM killer should kill containers before their shim
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("-998"), 0)
	}
	return atomicfile.WriteJSON(filepath.Join(p.dir, "pid.json"), identify(pid))
}

// process identifies a process by PID and start time, because PIDs are reused.
type process struct {
	PID   int
	Start string
}

func identify(pid int) process {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(data), ") ")
	if fields := strings.Fields(rest); len(fields) > 19 {
		return process{pid, fields[19]}
	}
	return process{PID: pid}
}

// watch follows the states of the shim's containers until it exits. It returns when the current states are known.
func (p *pod) watch(ctx context.Context) error {
	live := make(chan struct{})
	known := make(chan struct{})
	failed := make(chan error, 1)
	p.r.work.Go(func() {
		err := p.client().Watch(p.r.ctx, func() {
			p.mu.Lock()
			p.live = live
			p.mu.Unlock()
			close(known)
		}, p.r.apply)
		select {
		case <-known:
			p.ended(live)
		default:
			failed <- err
		}
	})
	select {
	case <-known:
		return nil
	case err := <-failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ended is called when a watch has ended: this process stops, the shim exited, or the watch lagged behind.
func (p *pod) ended(live chan struct{}) {
	defer close(live)
	if p.r.ctx.Err() != nil {
		return
	}
	if conn, err := p.client().Dial(p.r.ctx); err == nil { // alive: watch it again
		conn.Close()
		p.r.work.Go(func() {
			p.ops.Lock()
			defer p.ops.Unlock()
			if err := p.watch(p.r.ctx); err != nil {
				p.r.gone(p.uid)
			}
		})
		return
	}
	p.reap()
	p.r.gone(p.uid)
}

// reap waits for an exited shim. A shim of an earlier process is a child of this one only if this is process 1.
func (p *pod) reap() {
	var known process
	if p.cmd != nil {
		_ = p.cmd.Wait()
	} else if shim.ReadJSON(filepath.Join(p.dir, "pid.json"), &known) == nil && known.PID > 1 {
		_, _ = unix.Wait4(known.PID, nil, 0, nil)
	}
}

// gone settles the containers of a pod whose shim has exited.
func (r *Runtime) gone(uid string) {
	r.mu.Lock()
	var list []*container
	for _, c := range r.containers {
		if c.Spec.PodUID == uid {
			list = append(list, c)
		}
	}
	r.mu.Unlock()
	for _, c := range list {
		if err := r.settle(c); err != nil {
			r.config.Log.Error("could not clean up container", "container", c.Spec.ID, "error", err)
		}
	}
}

// settle releases what a container holds whose shim is gone, and marks it as exited if it was running.
func (r *Runtime) settle(c *container) error {
	c.mu.Lock()
	// A shim releases resources before it reports the exit. Remove and RemovePod release the rest.
	done := c.removed || c.status.State == string(runtime.Exited)
	c.mu.Unlock()
	if done {
		return nil
	}
	err := errors.Join(killCgroup(c.cgroup()), unmount(shim.Rootfs(c.dir)), os.RemoveAll(shim.Runtime(c.dir)))
	var s shim.Status
	if shim.ReadJSON(shim.StateFile(c.dir), &s) == nil && s.State == string(runtime.Running) {
		s = shim.Status{
			ID: s.ID, State: string(runtime.Exited), StartedAt: s.StartedAt, FinishedAt: time.Now(), ExitCode: 137, Signal: 9,
			Message: "its shim ended before it: killed, or the node restarted",
		}
		err = errors.Join(err, atomicfile.WriteJSON(shim.StateFile(c.dir), s))
	}
	if s.ID != "" {
		r.apply(s)
	}
	return err
}

func (r *Runtime) PodPIDNS(ctx context.Context, podUID string, users *runtime.Users) (string, error) {
	if !validUID(podUID) {
		return "", fmt.Errorf("pod UID %q: want 1 to 64 of letters, digits and -", podUID)
	}
	client, err := r.pod(podUID).shim(ctx)
	if err != nil {
		return "", err
	}
	req := shim.Request{Op: shim.PIDNS}
	if users != nil {
		req.Users = users.Path
	}
	res, err := client.Call(ctx, req)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/ns/pid", res.PID), nil
}

func (r *Runtime) EndPod(ctx context.Context, podUID string) error {
	r.mu.Lock()
	p := r.pods[podUID]
	for id, c := range r.containers {
		if c.Spec.PodUID == podUID && c.public().State == runtime.Running {
			r.mu.Unlock()
			return fmt.Errorf("pod %s still runs container %s", podUID, id)
		}
	}
	r.mu.Unlock()
	if p == nil {
		return nil
	}
	p.ops.Lock()
	defer p.ops.Unlock()
	return p.end(ctx)
}

func (r *Runtime) RemovePod(ctx context.Context, podUID, cgroupParent string) error {
	if !validUID(podUID) {
		return fmt.Errorf("pod UID %q: want 1 to 64 of letters, digits and -", podUID)
	}
	r.mu.Lock()
	for id, c := range r.containers {
		if c.Spec.PodUID == podUID {
			r.mu.Unlock()
			return fmt.Errorf("pod %s still has container %s: remove it first", podUID, id)
		}
	}
	r.mu.Unlock()
	p := r.pod(podUID)
	p.ops.Lock()
	defer p.ops.Unlock()
	if err := p.end(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.pods, podUID)
	r.mu.Unlock()
	if cgroupParent == "" || cgroupParent == "/" {
		return nil
	}
	if err := r.config.Failpoints.At("pod.shim-removed"); err != nil {
		return err
	}
	return killCgroup(cgroupParent)
}

func (p *pod) end(ctx context.Context) error {
	own, cancel := context.WithTimeout(ctx, hungAfter)
	defer cancel()
	_, err := p.client().Call(own, shim.Request{Op: shim.Shutdown})
	if err != nil && !noShim(err) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.r.config.Log.Warn("shim did not shut down, killing it", "pod", p.uid, "error", err)
		if err := p.kill(); err != nil {
			return err
		}
	}
	p.mu.Lock()
	live := p.live
	p.mu.Unlock()
	if live != nil {
		select {
		case <-live:
		case <-own.Done():
			if err := p.kill(); err != nil {
				return err
			}
			<-live
		}
	}
	if err := p.r.config.Failpoints.At("shim.ended"); err != nil {
		return err
	}
	return os.RemoveAll(p.dir)
}

func (p *pod) kill() error {
	var known process
	data := filepath.Join(p.dir, "pid.json")
	if err := shim.ReadJSON(data, &known); err != nil || known.PID == 0 || identify(known.PID) != known {
		return nil //nolint:nilerr // no such process any more
	}
	if err := unix.Kill(known.PID, unix.SIGKILL); err != nil && err != unix.ESRCH {
		return fmt.Errorf("kill shim %d: %w", known.PID, err)
	}
	return nil
}

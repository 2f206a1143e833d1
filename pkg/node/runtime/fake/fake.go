// Package fake is an in-memory runtime for tests. Its containers run small programs written in Go instead of
// processes, and write real logs.
//
// Its invariant: it passes the same conformance suite as the real runtime, package runtimetest.
package fake

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"sync"
	"syscall"
	"time"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/crilog"
	"github.com/coracle-dev/coracle/pkg/node/runtime/feed"
)

// Program is what a container or an exec runs. It returns its exit code, soon after ctx is done (SIGKILL).
type Program func(ctx context.Context, p *Process) int

// Process is the environment of a running Program.
type Process struct {
	Args, Env []string
	Spec      runtime.Spec
	In        io.Reader // never nil
	Out, Err  io.Writer // never nil
	// Signals receives signals other than SIGKILL. If the program does not read it, a signal kills the program.
	Signals chan syscall.Signal
	// OOM marks the exit as an OOM kill.
	OOM func()
}

// Config of a fake runtime. The zero value is usable.
type Config struct {
	// Images are present from the start. Nil means busybox.
	Images []string
	// Pull is called for each pull and may fail it. Nil lets all pulls succeed.
	Pull func(ctx context.Context, ref string) error
	// Programs by base name of the command. They override true, false, echo, cat, sleep, env, oom and a minimal sh
	// -c.
	Programs map[string]Program
	// Create, if set, may fail the creation of a container; Start may fail its start.
	Create, Start func(s runtime.Spec) error
	// Update, if set, may fail updates of containers' resources; UpdatePod may fail updates of pods' limits.
	Update    func(id string, r runtime.Resources) error
	UpdatePod func(cgroup string, l runtime.PodLimits) error
}

// Runtime implements runtime.Runtime in memory.
type Runtime struct {
	config Config
	images *images

	mu         sync.Mutex
	containers map[string]*container
	changes    feed.Feed
	calls      []string
	limits     map[string]runtime.PodLimits // by cgroup
}

var _ runtime.Runtime = (*Runtime)(nil)

// Used is what a container uses.
type Used struct {
	runtime.Stats
	Disk, Inodes uint64 // of its writable layer
}

type container struct {
	spec   runtime.Spec
	status runtime.Container
	used   Used
	kill   context.CancelFunc
	killed syscall.Signal
	proc   *Process
	log    *crilog.File
	out    *fan
	errs   *fan
	in     *input
	done   chan struct{} // closed when it has exited
}

// New returns a Runtime.
func New(c Config) *Runtime {
	if c.Images == nil {
		c.Images = []string{"docker.io/library/busybox:latest"}
	}
	r := &Runtime{config: c, containers: map[string]*container{}, limits: map[string]runtime.PodLimits{}}
	r.images = &images{pull: c.Pull, byName: map[string]runtime.Image{}}
	for _, name := range c.Images {
		r.images.add(name)
	}
	return r
}

// Calls returns the calls so far, such as "Create web-1", in order.
func (r *Runtime) Calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.calls...)
}

func (r *Runtime) called(what, id string) { r.calls = append(r.calls, what+" "+id) }

func (r *Runtime) Create(ctx context.Context, s runtime.Spec) error {
	image, err := r.images.Get(ctx, s.Image)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.called("Create", s.ID)
	if _, ok := r.containers[s.ID]; ok {
		return fmt.Errorf("container %s: %w", s.ID, runtime.ErrExists)
	}
	if r.config.Create != nil {
		if err := r.config.Create(s); err != nil {
			return err
		}
	}
	stop := syscall.SIGTERM
	if sig, ok := runtime.ParseSignal(s.StopSignal); ok {
		stop = sig
	}
	r.containers[s.ID] = &container{
		spec: s,
		status: runtime.Container{
			ID: s.ID, PodUID: s.PodUID, Labels: maps.Clone(s.Labels), Image: s.Image, ImageID: image.ID,
			LogPath: s.LogPath, State: runtime.Created, CreatedAt: time.Now(), StopSignal: stop,
		},
		used: Used{Stats: runtime.Stats{
			Memory: 2 << 20, WorkingSet: 1 << 20, RSS: 1 << 20, Pids: 1,
		}},
		out: &fan{}, errs: &fan{}, done: make(chan struct{}),
	}
	r.changes.Notify(s.ID)
	return nil
}

func (r *Runtime) Start(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.called("Start", id)
	c, ok := r.containers[id]
	if !ok {
		return fmt.Errorf("container %s: %w", id, runtime.ErrNotFound)
	}
	if c.status.State != runtime.Created {
		return nil
	}
	fail := func(err error) error {
		c.status.State, c.status.ExitCode, c.status.Message = runtime.Exited, 128, err.Error()
		c.status.FinishedAt = time.Now()
		close(c.done)
		r.changes.Notify(id)
		return err
	}
	if r.config.Start != nil {
		if err := r.config.Start(c.spec); err != nil {
			return fail(err)
		}
	}
	args := command(c.spec)
	program, err := r.program(args)
	if err != nil {
		return fail(err)
	}
	log, err := crilog.Open(c.spec.LogPath)
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.log, c.kill = log, cancel
	stdout, stderr := log.Stream("stdout"), log.Stream("stderr")
	c.out.add(stdout)
	c.errs.add(stderr)
	c.in = newInput(c.spec.Stdin)
	c.proc = &Process{
		Args:    args,
		Env:     c.spec.Env,
		Spec:    c.spec,
		In:      c.in,
		Out:     c.out,
		Err:     c.errs,
		Signals: make(chan syscall.Signal, 8),
	}
	if c.spec.TTY {
		c.proc.Err = c.out
	}
	oom := false
	c.proc.OOM = func() { oom = true }
	c.status.State, c.status.StartedAt, c.status.PID = runtime.Running, time.Now(), 1000+len(r.calls)
	r.changes.Notify(id)
	go func() {
		code := program(ctx, c.proc)
		cancel()
		c.in.Close()
		stdout.Close()
		stderr.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		log.Close()
		if c.killed != 0 {
			code = 128 + int(c.killed)
			c.status.Signal = int(c.killed)
		}
		if oom {
			code, c.status.Signal, c.status.OOMKilled = 137, 9, true
		}
		c.status.State, c.status.ExitCode, c.status.FinishedAt, c.status.PID = runtime.Exited, code, time.Now(), 0
		close(c.done)
		r.changes.Notify(id)
	}()
	return nil
}

func (r *Runtime) running(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[id]
	if !ok {
		return nil, fmt.Errorf("container %s: %w", id, runtime.ErrNotFound)
	}
	if c.status.State != runtime.Running {
		return nil, fmt.Errorf("container %s: %w", id, runtime.ErrNotRunning)
	}
	return c, nil
}

func (r *Runtime) Signal(_ context.Context, id string, sig syscall.Signal, _ bool) error {
	c, err := r.running(id)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.called("Signal", fmt.Sprintf("%s %d", id, sig))
	if sig != syscall.SIGKILL {
		select {
		case c.proc.Signals <- sig:
			return nil
		default: // the program does not read signals
		}
	}
	c.killed = sig
	c.kill()
	return nil
}

func (r *Runtime) Remove(_ context.Context, id string) error {
	r.mu.Lock()
	r.called("Remove", id)
	c, ok := r.containers[id]
	if !ok {
		r.mu.Unlock()
		return nil
	}
	if c.status.State == runtime.Running {
		c.killed = syscall.SIGKILL
		c.kill()
		r.mu.Unlock()
		<-c.done
		r.mu.Lock()
	}
	defer r.mu.Unlock()
	delete(r.containers, id)
	r.changes.Notify(id)
	return nil
}

func (r *Runtime) EndPod(_ context.Context, podUID string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.called("EndPod", podUID)
	for id, c := range r.containers {
		if c.spec.PodUID == podUID && c.status.State == runtime.Running {
			return fmt.Errorf("pod %s still runs container %s", podUID, id)
		}
	}
	return nil
}

func (r *Runtime) RemovePod(_ context.Context, podUID, cgroup string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.called("RemovePod", podUID)
	delete(r.limits, cgroup)
	for id, c := range r.containers {
		if c.spec.PodUID == podUID {
			return fmt.Errorf("pod %s still has container %s: remove it first", podUID, id)
		}
	}
	return nil
}

func (r *Runtime) List(context.Context) ([]runtime.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []runtime.Container
	for _, c := range r.containers {
		list = append(list, c.status)
	}
	return list, nil
}

func (r *Runtime) Get(_ context.Context, id string) (runtime.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[id]
	if !ok {
		return runtime.Container{}, fmt.Errorf("container %s: %w", id, runtime.ErrNotFound)
	}
	return c.status, nil
}

func (r *Runtime) Update(_ context.Context, id string, res runtime.Resources) error {
	c, err := r.running(id)
	if err != nil {
		return err
	}
	if r.config.Update != nil {
		if err := r.config.Update(id, res); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.spec.Resources = res
	return nil
}

func (r *Runtime) UpdatePod(_ context.Context, cgroup string, l runtime.PodLimits) error {
	if r.config.UpdatePod != nil {
		if err := r.config.UpdatePod(cgroup, l); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	have := r.limits[cgroup]
	if l.CPUShares > 0 {
		have.CPUShares = l.CPUShares
	}
	if l.CPUQuota != 0 {
		have.CPUQuota = max(l.CPUQuota, 0)
	}
	if l.MemoryBytes != 0 {
		have.MemoryBytes = max(l.MemoryBytes, 0)
	}
	r.limits[cgroup] = have
	return nil
}

// Limits returns the limits that UpdatePod has set.
func (r *Runtime) Limits(cgroup string) runtime.PodLimits {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limits[cgroup]
}

// Resources returns a container's resources as created or last updated.
func (r *Runtime) Resources(id string) runtime.Resources {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.containers[id]; ok {
		return c.spec.Resources
	}
	return runtime.Resources{}
}

func (r *Runtime) Stats(_ context.Context, id string) (runtime.Stats, error) {
	c, err := r.running(id)
	if err != nil {
		return runtime.Stats{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := c.used.Stats
	s.At, s.CPU = time.Now(), time.Since(c.status.StartedAt)/100
	return s, nil
}

func (r *Runtime) DiskUsage(_ context.Context, id string) (bytes, inodes uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[id]
	if !ok {
		return 0, 0, fmt.Errorf("container %s: %w", id, runtime.ErrNotFound)
	}
	return c.used.Disk, c.used.Inodes, nil
}

// Use changes the reported usage of a container, if it exists.
func (r *Runtime) Use(id string, change func(*Used)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.containers[id]; ok {
		change(&c.used)
	}
}

func (r *Runtime) PodPIDNS(_ context.Context, podUID string, _ *runtime.Users) (string, error) {
	return "/fake/" + podUID + "/pid", nil
}

func (r *Runtime) ContainerPIDNS(_ context.Context, id string) (string, func(), error) {
	if _, err := r.running(id); err != nil {
		return "", nil, err
	}
	return "/fake/" + id + "/pid", func() {}, nil
}

func (r *Runtime) Purge(ctx context.Context) error {
	list, _ := r.List(ctx)
	for _, c := range list {
		if err := r.Remove(ctx, c.ID); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) Images() runtime.Images { return r.images }

// ImageDir returns a path that does not exist.
func (r *Runtime) ImageDir() string { return "/fake/images" }

func (r *Runtime) Version() string { return "fake://1.0.0" }

func digest(s string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(s))) }

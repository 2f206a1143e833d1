// Package runtimetest is the conformance suite of runtime.Runtime. It checks what the agent relies on, and runs
// against every implementation.
//
// Its invariant: each test makes its own pods and removes them.
package runtimetest

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/crilog"
)

// patience is how long a test waits for an event that should happen at once.
const patience = time.Minute

// Suite tests one implementation, which must have the image "busybox".
type Suite struct {
	Runtime runtime.Runtime
	// Real is false for an implementation without processes and kernel.
	Real bool
	// Users returns a pod's user namespace, and a process in it and in a network, an IPC and a UTS namespace that it
	// owns. If it is nil, pods use the host's users.
	Users func(testing.TB) (pid int, ids runtime.Users)

	pods atomic.Int64
}

// Run runs all tests of the suite.
func (s *Suite) Run(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *pod){
		"life":          life,
		"exit codes":    exitCodes,
		"bad command":   badCommand,
		"unknown":       unknown,
		"repeats":       repeats,
		"log":           logFormat,
		"log rotation":  rotation,
		"signals":       signals,
		"exec":          execute,
		"exec killed":   executeKilled,
		"attach":        attach,
		"stdin":         stdin,
		"changes":       changes,
		"stats, update": statsAndUpdate,
		"images":        images,
		"pod in use":    podInUse,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s.pod(t))
		})
	}
	if !s.Real {
		return
	}
	real := map[string]func(*testing.T, *pod){
		"oom": oom, "terminal": terminal, "user": user, "confinement": confinement, "shared pid namespace": sharedPID,
		"joined pid namespace": joinedPID,
		"mounts":               mounts, "privileged": privileged, "host pid": hostPID, "joined namespaces": joined,
		"ending": ending,
	}
	if s.Users != nil {
		delete(real, "host pid") // pods with a user namespace cannot have it
	}
	for name, test := range real {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s.pod(t))
		})
	}
}

// pod makes containers of one pod, and removes them at the end of the test.
type pod struct {
	*testing.T
	runtime.Runtime
	ctx  context.Context
	uid  string
	logs string
	// With a user namespace, the pod also has a process in its namespaces.
	users *runtime.Users
	pid   int
	mu    sync.Mutex
	ids   []string
}

func (s *Suite) pod(t *testing.T) *pod {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	p := &pod{
		T:       t,
		Runtime: s.Runtime,
		ctx:     ctx,
		uid:     fmt.Sprintf("test-%d-%d", os.Getpid(), s.pods.Add(1)),
		logs:    t.TempDir(),
	}
	if s.Users != nil {
		pid, users := s.Users(t)
		p.pid, p.users = pid, &users
	}
	t.Cleanup(func() {
		cancel()
		ctx := context.WithoutCancel(ctx)
		for _, id := range p.ids {
			require.NoError(t, p.Remove(ctx, id))
		}
		require.NoError(t, p.RemovePod(ctx, p.uid, p.cgroup()))
	})
	return p
}

func (p *pod) cgroup() string { return "/coracle-test/" + p.uid }

func (p *pod) spec(name string, command ...string) runtime.Spec {
	id := p.uid + "-" + name
	p.mu.Lock()
	p.ids = append(p.ids, id)
	p.mu.Unlock()
	s := runtime.Spec{
		ID: id, PodUID: p.uid, Labels: map[string]string{"name": name}, Image: "busybox", Command: command,
		CgroupParent: p.cgroup(), LogPath: filepath.Join(p.logs, name+".log"), NetNS: "host",
	}
	if p.users != nil {
		s.Users, s.NetNS = p.users, p.namespace("net")
	}
	return s
}

// namespace returns the path of one of the pod's own namespaces, if it has a user namespace.
func (p *pod) namespace(kind string) string { return fmt.Sprintf("/proc/%d/ns/%s", p.pid, kind) }

func (p *pod) run(s runtime.Spec) string {
	for i := range s.Mounts {
		s.Mounts[i].MapIDs = s.Users != nil
	}
	require.NoError(p, p.Create(p.ctx, s))
	require.NoError(p, p.Start(p.ctx, s.ID))
	return s.ID
}

// until waits for a change after which the container meets a condition.
func (p *pod) until(id string, want func(runtime.Container) bool) runtime.Container {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	ids := p.Changes(ctx)
	for {
		c, err := p.Get(ctx, id)
		require.NoError(p, err)
		if want(c) {
			return c
		}
		if _, ok := <-ids; !ok {
			log, _ := os.ReadFile(c.LogPath)
			require.Fail(p, "not as wanted in time", "%+v\n%s", c, log)
		}
	}
}

func exited(c runtime.Container) bool { return c.State == runtime.Exited }

func (p *pod) text(id string) string {
	c, err := p.Get(p.ctx, id)
	require.NoError(p, err)
	data, err := os.ReadFile(c.LogPath)
	require.NoError(p, err)
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
		parts := strings.SplitN(line, " ", 4)
		if len(parts) == 4 {
			b.WriteString(parts[3])
			if parts[2] == "F" {
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}

// shows waits until the container has logged the text.
func (p *pod) shows(id, text string) {
	require.Eventually(p, func() bool { return strings.Contains(p.text(id), text) }, patience, 5*time.Millisecond)
}

func life(t *testing.T, p *pod) {
	s := p.spec("a", "sh", "-c", "trap 'exit 7' TERM; sleep 100 & wait")
	s.StopSignal = "SIGTERM"
	before := time.Now().Add(-time.Second)
	require.NoError(t, p.Create(p.ctx, s))
	c, err := p.Get(p.ctx, s.ID)
	require.NoError(t, err)
	require.Equal(t, runtime.Created, c.State)
	require.Equal(t, map[string]string{"name": "a"}, c.Labels)
	require.Equal(t, p.uid, c.PodUID)
	require.Equal(t, syscall.SIGTERM, c.StopSignal)
	require.Regexp(t, "^sha256:", c.ImageID)
	require.NoError(t, p.Start(p.ctx, s.ID))
	c, err = p.Get(p.ctx, s.ID)
	require.NoError(t, err)
	require.Equal(t, runtime.Running, c.State)
	require.Positive(t, c.PID)
	require.True(t, c.StartedAt.After(before))
	list, err := p.List(p.ctx)
	require.NoError(t, err)
	require.True(t, contains(list, s.ID))
	require.NoError(t, p.Signal(p.ctx, s.ID, syscall.SIGKILL, false))
	c = p.until(s.ID, exited)
	require.Equal(t, 137, c.ExitCode)
	require.Equal(t, 9, c.Signal)
	require.False(t, c.OOMKilled)
	require.False(t, c.FinishedAt.Before(c.StartedAt))
	require.ErrorIs(t, p.Signal(p.ctx, s.ID, syscall.SIGKILL, false), runtime.ErrNotRunning)
	require.NoError(t, p.Remove(p.ctx, s.ID))
	_, err = p.Get(p.ctx, s.ID)
	require.ErrorIs(t, err, runtime.ErrNotFound)
}

func contains(list []runtime.Container, id string) bool {
	for _, c := range list {
		if c.ID == id {
			return true
		}
	}
	return false
}

func exitCodes(t *testing.T, p *pod) {
	for code, command := range map[int][]string{
		0:   {"true"},
		1:   {"false"},
		3:   {"sh", "-c", "exit 3"},
		255: {"sh", "-c", "exit 255"},
	} {
		id := p.run(p.spec(fmt.Sprint("c", code), command...))
		c := p.until(id, exited)
		require.Equal(t, code, c.ExitCode)
		require.Zero(t, c.Signal)
	}
}

func badCommand(t *testing.T, p *pod) {
	s := p.spec("a", "/no/such/command")
	require.NoError(t, p.Create(p.ctx, s))
	require.Error(t, p.Start(p.ctx, s.ID))
	c := p.until(s.ID, exited)
	require.Equal(t, 128, c.ExitCode)
	require.Contains(t, c.Message, "/no/such/command")
	require.NoError(t, p.Start(p.ctx, s.ID), "one that has ended is left alone")
}

func unknown(t *testing.T, p *pod) {
	require.ErrorIs(t, p.Start(p.ctx, "none"), runtime.ErrNotFound)
	require.ErrorIs(t, p.Signal(p.ctx, "none", syscall.SIGTERM, false), runtime.ErrNotFound)
	_, err := p.Exec(p.ctx, "none", runtime.Exec{Command: []string{"true"}})
	require.ErrorIs(t, err, runtime.ErrNotFound)
	require.NoError(t, p.Remove(p.ctx, "none"))
	require.NoError(t, p.RemovePod(p.ctx, "none", "/coracle-test/none"))
	s := p.spec("a", "true")
	s.Image = "example.com/none:1"
	require.ErrorIs(t, p.Create(p.ctx, s), runtime.ErrNotFound)
}

func repeats(t *testing.T, p *pod) {
	s := p.spec("a", "sleep", "100")
	require.NoError(t, p.Create(p.ctx, s))
	require.ErrorIs(t, p.Create(p.ctx, s), runtime.ErrExists)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { _ = p.Start(p.ctx, s.ID) })
	}
	all.Wait()
	c, err := p.Get(p.ctx, s.ID)
	require.NoError(t, err)
	require.Equal(t, runtime.Running, c.State)
	for range 4 {
		all.Go(func() { _ = p.Remove(p.ctx, s.ID) })
	}
	all.Wait()
	require.NoError(t, p.Remove(p.ctx, s.ID))
	require.NoError(t, p.Create(p.ctx, s), "the name is free again")
	require.NoError(t, p.Start(p.ctx, s.ID))
}

func logFormat(t *testing.T, p *pod) {
	id := p.run(p.spec("a", "sh", "-c", "echo out; echo err >&2"))
	p.until(id, exited)
	data, err := os.ReadFile(filepath.Join(p.logs, "a.log"))
	require.NoError(t, err)
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		require.Regexp(t,
			regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(Z|[+-]\d\d:\d\d) (stdout F out|stderr F err)$`), line)
		stamp, _, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), at, time.Minute)
	}
	require.Len(t, strings.Split(strings.TrimSpace(string(data)), "\n"), 2)
}

func rotation(t *testing.T, p *pod) {
	s := p.spec("a", "cat")
	s.Stdin = true
	id := p.run(s)
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(p.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Attach(ctx, id, runtime.Streams{In: r})
	}()
	text := strings.Repeat(strings.Repeat("x", 1000)+"\n", 1000)
	for written := 0; written < crilog.MaxSize+len(text); written += len(text) {
		_, _ = io.WriteString(w, text)
	}
	require.Eventually(t, func() bool {
		_, err := os.Stat(s.LogPath + ".1")
		return err == nil
	}, patience, 5*time.Millisecond)
	_, _ = io.WriteString(w, "last\n")
	p.shows(id, "last\n")
	info, err := os.Stat(s.LogPath + ".1")
	require.NoError(t, err)
	require.LessOrEqual(t, info.Size(), int64(crilog.MaxSize))
	require.Greater(t, info.Size(), int64(crilog.MaxSize/2))
	cancel()
	w.Close()
	<-done
	require.NoError(t, p.Signal(p.ctx, id, syscall.SIGKILL, false))
	p.until(id, exited)
}

func signals(t *testing.T, p *pod) {
	command := []string{"sh", "-c", "trap 'exit 5' TERM; echo ready; sleep 100"}
	if _, ok := p.Runtime.(interface{ Calls() []string }); !ok {
		command[2] = "trap 'exit 5' TERM; echo ready; sleep 100 & wait"
	}
	id := p.run(p.spec("a", command...))
	p.shows(id, "ready")
	require.NoError(t, p.Signal(p.ctx, id, syscall.SIGTERM, false))
	require.Equal(t, 5, p.until(id, exited).ExitCode)
}

func changes(t *testing.T, p *pod) {
	ctx, cancel := context.WithCancel(p.ctx)
	ids := p.Changes(ctx)
	s := p.spec("a", "true")
	p.run(s)
	p.until(s.ID, exited)
	for id := range ids { // it may have seen containers of other tests
		if id == s.ID {
			break
		}
	}
	cancel()
	for range ids { //nolint:revive // until it is closed
	}
}

func statsAndUpdate(t *testing.T, p *pod) {
	s := p.spec("a", "sleep", "100")
	s.Resources = runtime.Resources{CPUShares: 100, MemoryBytes: 64 << 20}
	id := p.run(s)
	require.Eventually(t, func() bool { // until the command has replaced the process that prepared it
		stats, err := p.Stats(p.ctx, id)
		require.NoError(t, err)
		return stats.Memory > 0 && stats.Pids == 1
	}, patience, 5*time.Millisecond)
	require.NoError(t, p.Update(p.ctx, id, runtime.Resources{CPUShares: 200, MemoryBytes: 96 << 20}))
	require.NoError(t,
		p.UpdatePod(p.ctx, s.CgroupParent, runtime.PodLimits{CPUShares: 300, CPUQuota: 50_000, MemoryBytes: 128 << 20}))
	require.NoError(t, p.UpdatePod(p.ctx, s.CgroupParent, runtime.PodLimits{}), "nothing changes")
	var own uint64
	require.Eventually(t, func() bool { // the container may free a page between the two
		all, err := p.MemoryUsage(p.ctx, s.CgroupParent, "")
		require.NoError(t, err)
		own, err = p.MemoryUsage(p.ctx, s.CgroupParent, id)
		require.NoError(t, err)
		return own > 0 && all >= own
	}, patience, 5*time.Millisecond)
	require.NoError(t, p.Signal(p.ctx, id, syscall.SIGKILL, false))
	p.until(id, exited)
	most, cpu, err := p.PodUsage(p.ctx, s.CgroupParent)
	require.NoError(t, err, "a pod whose containers have ended")
	require.GreaterOrEqual(t, most, own)
	require.Positive(t, cpu)
	_, err = p.Stats(p.ctx, id)
	require.ErrorIs(t, err, runtime.ErrNotRunning)
}

func images(t *testing.T, p *pod) {
	for _, ref := range []string{"busybox", "busybox:latest", "docker.io/library/busybox:latest"} {
		image, err := p.Images().Get(p.ctx, ref)
		require.NoError(t, err)
		require.Contains(t, image.Names, "docker.io/library/busybox:latest")
		require.Positive(t, image.Size)
		byID, err := p.Images().Get(p.ctx, image.ID)
		require.NoError(t, err)
		require.Equal(t, image.ID, byID.ID)
		byDigest, err := p.Images().Get(p.ctx, image.ID)
		require.NoError(t, err)
		require.Equal(t, image.ID, byDigest.ID)
	}
	_, err := p.Images().Get(p.ctx, "none")
	require.ErrorIs(t, err, runtime.ErrNotFound)
	require.ErrorIs(t, p.Images().Remove(p.ctx, "none"), runtime.ErrNotFound)
}

func podInUse(t *testing.T, p *pod) {
	p.run(p.spec("a", "sleep", "100"))
	require.Error(t, p.RemovePod(p.ctx, p.uid, p.cgroup()))
}

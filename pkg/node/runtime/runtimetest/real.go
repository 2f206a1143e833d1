package runtimetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

func (p *pod) output(id string, command ...string) string {
	var out, errs bytes.Buffer
	code, err := p.Exec(p.ctx, id, runtime.Exec{Command: command, Streams: runtime.Streams{Out: &out, Err: &errs}})
	require.NoError(p, err)
	require.Zero(p, code, errs.String())
	return strings.TrimSpace(out.String())
}

func oom(t *testing.T, p *pod) {
	s := p.spec("a", "sh", "-c", "x=a; while true; do x=$x$x; done")
	s.Resources.MemoryBytes = 8 << 20
	id := p.run(s)
	c := p.until(id, exited)
	require.True(t, c.OOMKilled, "%+v", c)
	require.Equal(t, 137, c.ExitCode)
}

// ending tests the removal of containers whose process has just exited, perhaps before its output was copied.
func ending(t *testing.T, p *pod) {
	for i := range 5 {
		id := p.run(p.spec(fmt.Sprint(i), "sh", "-c", "trap 'exit 0' TERM; echo ready; sleep 100 & wait"))
		p.shows(id, "ready")
		c, err := p.Get(p.ctx, id)
		require.NoError(t, err)
		fd, err := unix.PidfdOpen(c.PID, 0)
		require.NoError(t, err)
		require.NoError(t, p.Signal(p.ctx, id, syscall.SIGTERM, false))
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		}
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		if i%2 == 0 {
			require.NoError(t, ignore(p.Signal(p.ctx, id, syscall.SIGKILL, false), runtime.ErrNotRunning))
		}
		require.NoError(t, p.Remove(p.ctx, id))
	}
}

func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

func terminal(t *testing.T, p *pod) {
	s := p.spec("a", "sh")
	s.TTY, s.Stdin = true, true
	id := p.run(s)
	sizes := make(chan runtime.Size, 1)
	sizes <- runtime.Size{Width: 77, Height: 33}
	r, w := io.Pipe()
	var out runtest.Buffer
	done := make(chan error, 1)
	go func() {
		_, err := p.Exec(p.ctx, id, runtime.Exec{
			Command: []string{"sh"},
			TTY:     true,
			Streams: runtime.Streams{In: r, Out: &out, Resize: sizes},
		})
		done <- err
	}()
	require.Eventually(t, func() bool {
		_, _ = io.WriteString(w, "stty size; tty\n")
		return strings.Contains(out.String(), "33 77") && strings.Contains(out.String(), "/dev/pts/")
	}, patience, 50*time.Millisecond)
	_, _ = io.WriteString(w, "exit\n")
	require.NoError(t, <-done)
	w.Close()

	attached := make(chan error, 1)
	ar, aw := io.Pipe()
	var aout runtest.Buffer
	go func() { attached <- p.Attach(p.ctx, id, runtime.Streams{In: ar, Out: &aout}) }()
	_, _ = io.WriteString(aw, "echo at$((1+1))tached; exit 6\n")
	require.NoError(t, <-attached)
	aw.Close()
	require.Contains(t, aout.String(), "at2tached")
	require.Equal(t, 6, p.until(id, exited).ExitCode)
}

func user(t *testing.T, p *pod) {
	a := p.spec("a", "id")
	uid, gid := int64(65534), int64(1234)
	a.UID, a.GID, a.Groups = &uid, &gid, []int64{7}
	ended := p.until(p.run(a), exited)
	require.Equal(t, "uid=65534(nobody) gid=1234 groups=7,1234", strings.TrimSpace(p.text(a.ID)))
	require.Equal(t, &runtime.User{UID: uid, GID: gid, Groups: []int64{7, gid}}, ended.User)
	b := p.spec("b", "sh", "-c", "id -u; pwd; echo $HOME $X; hostname")
	b.WorkingDir, b.Env, b.Hostname = "/made/here", []string{"X=1", "X=2"}, "somewhere"
	p.until(p.run(b), exited)
	require.Equal(t, "0\n/made/here\n/root 2\nsomewhere\n", p.text(b.ID))
}

func confinement(t *testing.T, p *pod) {
	s := p.spec("a", "sleep", "100")
	s.ReadonlyRootfs, s.NoNewPrivs, s.DropCaps, s.AddCaps = true, true, []string{"ALL"}, []string{"NET_BIND_SERVICE"}
	s.Resources = runtime.Resources{
		MemoryBytes: 32 << 20,
		CPUQuota:    50_000,
		CPUPeriod:   100_000,
		PidsLimit:   100,
		OOMScoreAdj: 900,
	}
	id := p.run(s)
	status := p.output(id, "cat", "/proc/1/status")
	require.Contains(t, status, "NoNewPrivs:\t1")
	require.Contains(t, status, "Seccomp:\t2")
	require.Contains(t, status, "CapEff:\t0000000000000400")
	require.Equal(t, "900", p.output(id, "cat", "/proc/1/oom_score_adj"))
	require.Equal(t, "", p.output(id, "sh", "-c", "cat /proc/keys /proc/timer_list 2>/dev/null; true"))
	require.Equal(t, "no", p.output(id, "sh", "-c", "touch /x 2>/dev/null && echo yes || echo no"))
	require.Equal(t, "no", p.output(id, "sh", "-c", "echo 1 2>/dev/null >/proc/sys/vm/swappiness && echo yes || echo no"))
	require.NoError(t, p.Update(p.ctx, id, runtime.Resources{MemoryBytes: 48 << 20, CPUQuota: 70_000, CPUPeriod: 100_000}))
}

func privileged(t *testing.T, p *pod) {
	s := p.spec("a", "sleep", "100")
	s.Privileged = true
	id := p.run(s)
	require.Contains(t, p.output(id, "cat", "/proc/1/status"), "Seccomp:\t0")
	require.Regexp(t, ` /sys \S+ rw,`, p.output(id, "cat", "/proc/mounts"))
	require.Equal(t, "yes", p.output(id, "sh", "-c", "test -c /dev/kmsg && echo yes"), "it has the host's devices")
	require.Equal(t, "yes",
		p.output(id, "sh", "-c",
			"mount -t tmpfs none /mnt 2>/dev/null || mkdir /mnt && mount -t tmpfs none /mnt && echo yes"))
}

func sharedPID(t *testing.T, p *pod) {
	path, err := p.PodPIDNS(p.ctx, p.uid, p.users)
	require.NoError(t, err)
	again, err := p.PodPIDNS(p.ctx, p.uid, p.users)
	require.NoError(t, err)
	require.Equal(t, path, again)
	a, b := p.spec("a", "sleep", "111"), p.spec("b", "sleep", "222")
	a.PIDNS, b.PIDNS = path, path
	ida, idb := p.run(a), p.run(b)
	list := p.output(ida, "ps")
	require.Contains(t, list, "sleep 111")
	require.Contains(t, list, "sleep 222")
	require.NoError(t, p.Signal(p.ctx, idb, syscall.SIGTERM, false))
	require.Equal(t, 143, p.until(idb, exited).ExitCode)
	require.NoError(t, p.Remove(p.ctx, ida))
}

func joinedPID(t *testing.T, p *pod) {
	ida := p.run(p.spec("a", "sleep", "111"))
	path, release, err := p.ContainerPIDNS(p.ctx, ida)
	require.NoError(t, err)
	b := p.spec("b", "sleep", "222")
	b.PIDNS = path
	idb := p.run(b)
	release()
	list := p.output(idb, "ps")
	require.Regexp(t, `(?m)^ *1 .*sleep 111`, list)
	require.Contains(t, list, "sleep 222")
	require.NotContains(t, list, "containerd", "nothing of the host")
	require.NoError(t, p.Signal(p.ctx, ida, syscall.SIGKILL, false))
	require.Equal(t, 137, p.until(ida, exited).ExitCode)
	require.Equal(t, 137, p.until(idb, exited).ExitCode, "the namespace ended with its first process")
	_, _, err = p.ContainerPIDNS(p.ctx, ida)
	require.ErrorIs(t, err, runtime.ErrNotRunning)
}

func hostPID(t *testing.T, p *pod) {
	s := p.spec("a", "sh", "-c", "sleep 1234 & sleep 1234 & echo started; exit 2")
	s.PIDNS = "host"
	id := p.run(s)
	require.Equal(t, 2, p.until(id, exited).ExitCode)
	require.Equal(t, "started\n", p.text(id))
}

func mounts(t *testing.T, p *pod) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o644))
	s := p.spec("a", "sleep", "100")
	s.Mounts = []runtime.Mount{
		{Source: dir, Target: "/deep/er/rw"},
		{Source: filepath.Join(dir, "file"), Target: "/etc/one", ReadOnly: true},
		{Source: dir, Target: "/dev/shm"},
	}
	s.Devices = []runtime.Device{{HostPath: "/dev/null"}}
	id := p.run(s)
	require.Equal(t, "text", p.output(id, "cat", "/etc/one"))
	require.Equal(t, "text", p.output(id, "cat", "/dev/shm/file"))
	require.Equal(t, "no", p.output(id, "sh", "-c", "echo x 2>/dev/null >/etc/one && echo yes || echo no"))
	p.output(id, "sh", "-c",
		"echo new >/deep/er/rw/made; echo x >/dev/null; dd if=/dev/zero of=/big bs=1k count=100 2>/dev/null")
	made, err := os.ReadFile(filepath.Join(dir, "made"))
	require.NoError(t, err)
	require.Equal(t, "new\n", string(made))
	used, _, err := p.DiskUsage(p.ctx, id)
	require.NoError(t, err)
	require.GreaterOrEqual(t, used, uint64(100<<10))
}

// joined tests joining the namespaces that the agent made for the pod, with sysctls in them.
func joined(t *testing.T, p *pod) {
	if p.users == nil {
		holder := exec.Command("sleep", "1000")
		holder.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		}
		require.NoError(t, holder.Start())
		defer func() {
			_ = holder.Process.Kill()
			_ = holder.Wait()
		}()
		p.pid = holder.Process.Pid
	}
	s := p.spec("a", "sleep", "100")
	dir := p.namespace("")
	s.NetNS, s.IPCNS, s.UTSNS = dir+"net", dir+"ipc", dir+"uts"
	s.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0", "kernel.shm_rmid_forced": "1"}
	s.Hostname = "ignored"
	id := p.run(s)
	for _, kind := range []string{"net", "ipc", "uts"} {
		want, err := os.Readlink(dir + kind)
		require.NoError(t, err)
		require.Equal(t, want, p.output(id, "readlink", "/proc/1/ns/"+kind))
	}
	require.Equal(t, "0", p.output(id, "cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start"))
	require.Equal(t, "1", p.output(id, "cat", "/proc/sys/kernel/shm_rmid_forced"))
	require.Contains(t, p.output(id, "mount"), "/sys/fs/cgroup")
}

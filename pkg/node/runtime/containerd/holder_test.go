package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

// A root container cannot affect the first process of a shared PID namespace.
func TestSharedPIDNamespaceHoldsNothingOfTheHost(t *testing.T) {
	t.Run("host's users", func(t *testing.T) { holdsNothing(t, false) })
	t.Run("own users", func(t *testing.T) { holdsNothing(t, true) })
}

func holdsNothing(t *testing.T, own bool) {
	r := start(t)
	ctx := context.Background()
	s := spec(r.config, "p", "a", "sleep", "1000")
	if own {
		pid, ids := ownUsers(t, r)(t)
		withUsers(pid, ids, &s)
	}
	ns, err := r.PodPIDNS(ctx, "p", s.Users)
	require.NoError(t, err)
	s.PIDNS = ns
	s.Privileged = true // privileged, so that it can read everything
	require.NoError(t, r.Create(ctx, s))
	require.NoError(t, r.Start(ctx, s.ID))
	run := func(script string) string {
		var out bytes.Buffer
		_, err := r.Exec(ctx, s.ID, runtime.Exec{
			Command: []string{"sh", "-c", script}, Streams: runtime.Streams{Out: &out, Err: &out},
		})
		require.NoError(t, err)
		return out.String()
	}
	status := run("cat /proc/1/status")
	for _, want := range []string{
		"CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Uid:\t65535", "Seccomp:\t1",
	} {
		require.Contains(t, status, want)
	}
	if own { // it is not permitted to read them
		require.Contains(t, run("ls -A /proc/1/root/"), "ermission denied")
		require.Contains(t, run("touch /proc/1/root/x"), "ermission denied")
		require.Contains(t, run("cat /proc/1/environ"), "ermission denied")
	} else {
		require.Empty(t, run("ls -A /proc/1/root/"))
		require.Contains(t, run("touch /proc/1/root/x"), "ead-only")
		require.Empty(t, run("cat /proc/1/environ"))
	}
	require.Equal(t, "1\n", run("wc -l < /proc/1/net/dev | xargs -I{} expr {} - 2"), "a network without the host's links")
	run("kill -9 1; kill -TERM 1; kill -SEGV 1; kill -QUIT 1; true")

	// Orphans are reaped, and the executable cannot be written when no process runs it.
	require.Equal(t, "0\n",
		run("(sh -c 'true & true' &) ; n=1; "+
			"while [ $n != 0 ]; do n=$(ps -o stat= 2>/dev/null | grep -c '^Z'); done; echo $n"))
	pid := strings.Split(ns, "/")[2]
	exe, err := unix.Open("/proc/"+pid+"/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(exe)
	require.NoError(t, r.Remove(ctx, s.ID))
	require.NoError(t, r.RemovePod(ctx, "p", s.CgroupParent))
	writer, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", exe), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil { // a sealed copy in memory
		_, err = unix.Pwrite(writer, []byte("x"), 0)
		unix.Close(writer)
	}
	require.Error(t, err)
	require.NotErrorIs(t, err, unix.ETXTBSY)
}

// A container inherits neither files nor environment of its shim, and cannot reach the shim's socket.
func TestContainersReachNothingOfTheirShim(t *testing.T) {
	r := start(t)
	ctx := context.Background()
	s := spec(r.config, "p", "a", "sh", "-c", "exec sleep 1000")
	require.NoError(t, r.Create(ctx, s))
	require.NoError(t, r.Start(ctx, s.ID))
	var out bytes.Buffer
	_, err := r.Exec(ctx, s.ID, runtime.Exec{
		Command: []string{
			"sh", "-c", "ls /proc/self/fd | wc -l; ls /proc/1/fd | wc -l; env; tr '\\0' '\\n' </proc/1/environ",
		}, Streams: runtime.Streams{Out: &out},
	})
	require.NoError(t, err)
	lines := strings.Split(out.String(), "\n")
	require.LessOrEqual(t, lines[0], "4", "of which one is the directory: %s", &out)
	require.LessOrEqual(t, lines[1], "3")
	require.NotContains(t, out.String(), "LIBCONTAINER")
	require.NotContains(t, out.String(), "GOMAXPROCS")
	dir := r.pod("p").dir
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	for _, below := range []string{filepath.Join(r.config.DataDir, "containers")} {
		info, err := os.Stat(below)
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "a user of the machine must not run what a container marked setuid")
	}
}

// Sessions are limited per container, and end with their clients.
func TestSessionsAreBounded(t *testing.T) {
	r := start(t)
	ctx := context.Background()
	s := spec(r.config, "p", "a", "sh", "-c", "sleep 1000")
	require.NoError(t, r.Create(ctx, s))
	require.NoError(t, r.Start(ctx, s.ID))
	client := r.pod("p").client()
	attach := func() (net.Conn, error) {
		conn, err := client.Dial(ctx)
		require.NoError(t, err)
		require.NoError(t, shim.WriteHead(conn, shim.Request{Op: shim.Attach, ID: s.ID, Out: true}))
		var res shim.Response
		require.NoError(t, shim.ReadHead(conn, &res))
		if res.Error != "" {
			return conn, errors.New(res.Error)
		}
		return conn, nil
	}
	var open []net.Conn
	for {
		conn, err := attach()
		open = append(open, conn)
		if err != nil {
			require.ErrorContains(t, err, "sessions")
			break
		}
		require.LessOrEqual(t, len(open), 1000)
	}
	for _, conn := range open {
		conn.Close()
	}
	require.Eventually(t, func() bool { // the shim notices the ends one by one
		_, err := r.Exec(ctx, s.ID, runtime.Exec{Command: []string{"true"}})
		return err == nil
	}, 2*time.Minute, time.Millisecond)
}

// An image cannot make its shim read unlimited data to resolve a user.
func TestLargeUserFilesAreRefused(t *testing.T) {
	r := start(t)
	ctx := context.Background()
	s := spec(r.config, "p", "a", "true")
	require.NoError(t, r.Create(ctx, s))
	upper := shim.Upper(r.dir(s.ID))
	require.NoError(t, os.MkdirAll(filepath.Join(upper, "etc"), 0o755))
	f, err := os.Create(filepath.Join(upper, "etc", "group"))
	require.NoError(t, err)
	require.NoError(t, f.Truncate(1<<40))
	require.NoError(t, f.Close())
	require.ErrorContains(t, r.Start(ctx, s.ID), "/etc/group has")
}

package eviction

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

func TestKernelReads(t *testing.T) {
	dir := t.TempDir()
	all := Kernel{NodeDir: func() string { return dir }, ImageDir: func() string { return dir }}.Read()
	for _, s := range []config.Signal{
		config.MemoryAvailable, config.NodeFsAvailable, config.ImageFsAvailable, config.PIDAvailable,
	} {
		require.Positive(t, all[s].Capacity, s)
		require.Positive(t, all[s].Available, s)
		require.LessOrEqual(t, all[s].Available, all[s].Capacity, s)
	}
	gone := Kernel{
		NodeDir: func() string { return filepath.Join(dir, "none") }, ImageDir: func() string { return "" },
	}.Read()
	require.NotContains(t, gone, config.NodeFsAvailable)
	require.NotContains(t, gone, config.ImageFsAvailable)
}

// Urgent data on a socket causes the same kind of event as a PSI trigger.
func TestPriorityEvents(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	from, err := net.Dial("tcp4", l.Addr().String())
	require.NoError(t, err)
	defer from.Close()
	to, err := l.Accept()
	require.NoError(t, err)
	defer to.Close()
	sender, err := from.(*net.TCPConn).File()
	require.NoError(t, err)
	defer sender.Close()
	receiver, err := to.(*net.TCPConn).File()
	require.NoError(t, err)
	defer receiver.Close()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	notified := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		watchPriority(ctx, receiver, func() { notified <- struct{}{} })
	}()
	for range 3 {
		require.NoError(t, unix.Sendto(int(sender.Fd()), []byte("!"), unix.MSG_OOB, nil))
		<-notified
	}
	select {
	case <-notified:
		t.Fatal("notified without an event")
	default:
	}
	cancel()
	<-done
}

func TestMemoryThreshold(t *testing.T) {
	const root = "/sys/fs/cgroup/memory"
	if _, err := os.Stat(root + "/cgroup.event_control"); err != nil {
		t.Skip("this machine has no memory controller of cgroup v1")
	}
	if os.Geteuid() != 0 {
		t.Skip("a cgroup needs root")
	}
	dir := filepath.Join(root, fmt.Sprintf("coracle-test-eviction-%d", os.Getpid()))
	require.NoError(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, unix.Rmdir(dir)) })
	event, err := threshold(dir, 8<<20)
	require.NoError(t, err)
	defer event.Close()
	// The kernel charges a tmpfs file to the cgroup of its writer. The directory is removed below.
	shm, err := os.MkdirTemp("/dev/shm", "coracle-test-")
	require.NoError(t, err)
	defer os.RemoveAll(shm)
	writer := exec.Command("sh", "-c", `echo $$ >"$0/cgroup.procs" && exec head -c 16M /dev/zero >"$1/file"`, dir, shm)
	out, err := writer.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, event.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = event.Read(make([]byte, 8))
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Kernel{}.Watch(ctx, 1, func() {})
	}()
	cancel()
	<-done
	require.NoError(t, os.RemoveAll(shm))
}

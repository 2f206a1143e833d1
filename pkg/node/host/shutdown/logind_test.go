package shutdown

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/node/host/shutdown/logindtest"
)

func connect(t *testing.T, b *logindtest.Bus) Logind {
	t.Helper()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", b.Address())
	l, err := Connect(t.Context())
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

// receive waits for a signal.
func receive(t *testing.T, from <-chan struct{}) {
	t.Helper()
	select {
	case <-from:
	case <-time.After(logindtest.Patience):
		t.Fatal("no signal came")
	}
}

// TestLogindOnTheWire tests the client against a bus that speaks D-Bus over a socket, including file descriptors.
func TestLogindOnTheWire(t *testing.T) {
	b := logindtest.New(t)
	l := connect(t, b)
	s, err := l.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, State{Instance: ":1.1001", Delay: 5 * time.Second}, s)

	inhibitor, err := l.Inhibit(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"shutdown coracle pods are terminated first delay"}, b.Await(1))
	require.NoError(t, inhibitor.Close())
	b.Await(0)

	b.SetDelay(1<<63 - 1)
	b.Begin()
	receive(t, l.Changed())
	s, err = l.State(t.Context())
	require.NoError(t, err)
	require.True(t, s.ShuttingDown)
	require.Equal(t, 24*time.Hour, s.Delay, "an unlimited one")
	_, err = l.Inhibit(t.Context())
	require.ErrorIs(t, err, ErrInProgress)
	b.Cancel()
	receive(t, l.Changed())

	b.StopLogind()
	receive(t, l.Changed())
	_, err = l.State(t.Context())
	require.ErrorIs(t, err, ErrAbsent)
	_, err = l.Inhibit(t.Context())
	require.ErrorIs(t, err, ErrAbsent)
	b.StartLogind()
	receive(t, l.Changed())
	s, err = l.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, ":1.1002", s.Instance)

	b.Pretend()
	b.Begin() // signals arrive in order
	receive(t, l.Changed())
	select {
	case <-l.Changed():
		t.Fatal("a signal that is not logind's counts")
	default:
	}

	b.Stop()
	receive(t, l.Lost())
	_, err = l.State(t.Context())
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrAbsent)
}

// TestWithoutASystemBus tests a machine without a bus, and one whose bus does not answer.
func TestWithoutASystemBus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+path)
	_, err := Connect(t.Context())
	require.ErrorIs(t, err, fs.ErrNotExist)

	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		cancel(err)
		accepted <- c
	}()
	_, err = Connect(ctx)
	require.Error(t, err, "it is connected to, and then the context ends")
	require.False(t, errors.Is(err, fs.ErrNotExist))
	require.NoError(t, (<-accepted).Close())
}

// TestAwait checks that Await notices a socket, and the directories on its path, that are created later.
func TestAwait(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "run", "dbus", "system bus")
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(dir, "run", "dbus", "system%20bus")+",guid=1")
	seen := make(chan error, 1)
	go func() { seen <- Await(t.Context()) }()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "run", "other"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "run")))
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	select {
	case err := <-seen:
		t.Fatalf("there is none yet: %v", err)
	default:
	}
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	select {
	case err := <-seen:
		require.NoError(t, err)
	case <-time.After(logindtest.Patience):
		t.Fatal("it is not seen")
	}
	require.NoError(t, Await(t.Context()), "one that is there")

	ctx, cancel := context.WithCancel(t.Context())
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+path+"-other")
	time.AfterFunc(0, cancel)
	require.ErrorIs(t, Await(ctx), context.Canceled)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "tcp:host=localhost")
	require.ErrorContains(t, Await(t.Context()), "does not name one socket")
}

package api

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/thread"
	"github.com/coracle-dev/coracle/pkg/node/network"
)

// entered counts the functions that run on threads of their own.
type entered struct {
	network.Network
	ended chan struct{}
}

func (e *entered) Enter(_ context.Context, _ string, f func() error) error {
	defer func() { e.ended <- struct{}{} }()
	return thread.Run(f)
}

// A pod that lets connections hang holds no threads of the agent, and not more than maxForwards connections.
func TestForwardedConnectionsThatHang(t *testing.T) {
	full, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(full)
	require.NoError(t, unix.Bind(full, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(full, 0))
	at, err := unix.Getsockname(full)
	require.NoError(t, err)
	port := at.(*unix.SockaddrInet4).Port
	first, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port)) // takes the only place in the queue
	require.NoError(t, err)
	defer first.Close()

	n := &entered{ended: make(chan struct{}, 2*maxForwards)} // IPv4, and IPv6 after that
	s := &Server{c: Config{Network: n}, ctx: t.Context()}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	results := make(chan error, maxForwards)
	for range maxForwards {
		all.Go(func() {
			ours, theirs := net.Pipe()
			defer ours.Close()
			results <- forwarder{s, false}.PortForward(ctx, "p", "u", int32(port), theirs)
		})
	}
	timeout := time.After(time.Minute) // the kernel gives up connecting after two
	for range maxForwards {
		select {
		case <-n.ended:
		case <-timeout:
			require.Fail(t, "connections hold threads")
		}
	}
	_, theirs := net.Pipe()
	require.ErrorContains(t, forwarder{s, false}.PortForward(ctx, "p", "u", int32(port), theirs), "already")
	cancel()
	all.Wait()
	for range maxForwards {
		require.ErrorContains(t, <-results, "failed to connect")
	}
	require.Empty(t, s.forwards.open)
}

func TestForwardedConnection(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		require.NoError(t, err)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}()
		s := &Server{c: Config{}, ctx: t.Context()}
		ours, theirs := net.Pipe()
		done := make(chan error, 1)
		go func() {
			done <- forwarder{s, true}.PortForward(t.Context(), "p", "u", int32(l.Addr().(*net.TCPAddr).Port), theirs)
		}()
		_, err = ours.Write([]byte("hello"))
		require.NoError(t, err)
		got := make([]byte, 5)
		_, err = io.ReadFull(ours, got)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got))
		ours.Close()
		require.NoError(t, l.Close())
		require.NoError(t, <-done)
	}
}

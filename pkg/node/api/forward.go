package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxForwards limits the forwarded connections per pod, each of which takes some 100 KB of memory.
	maxForwards = 256
	connectTime = 10 * time.Second
)

// forwards counts the forwarded connections, by pod.
type forwards struct {
	mu   sync.Mutex
	open map[string]int
}

func (f *forwards) begin(uid string) (end func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open[uid] >= maxForwards {
		return nil, fmt.Errorf("the pod has %d forwarded connections already: close one of them", maxForwards)
	}
	if f.open == nil {
		f.open = map[string]int{}
	}
	f.open[uid]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.open[uid]--; f.open[uid] == 0 {
			delete(f.open, uid)
		}
	}, nil
}

// connect connects to a port on the pod's loopback. It only makes the socket on a thread in the pod's network
// namespace, to which the socket then belongs: a pod can let a connect(2) hang, and a Go process ends when it has
// 10,000 threads.
func (f forwarder) connect(ctx context.Context, uid string, port int32) (net.Conn, error) {
	var errs []error
	for _, at := range []struct {
		family  int
		address unix.Sockaddr
	}{
		{unix.AF_INET, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}},
		{unix.AF_INET6, &unix.SockaddrInet6{Port: int(port), Addr: [16]byte{15: 1}}},
	} {
		var fd int
		open := func() (err error) {
			fd, err = unix.Socket(at.family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			return os.NewSyscallError("socket", err)
		}
		var err error
		if f.host {
			err = open()
		} else {
			err = f.s.c.Network.Enter(ctx, uid, open)
		}
		if err == nil {
			var conn net.Conn
			if conn, err = connected(ctx, fd, at.address); err == nil {
				return conn, nil
			}
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// connected connects a non-blocking socket, which it takes over.
func connected(ctx context.Context, fd int, to unix.Sockaddr) (net.Conn, error) {
	err := unix.Connect(fd, to)
	socket := os.NewFile(uintptr(fd), "forward")
	defer socket.Close() // net.FileConn makes a copy
	if errors.Is(err, unix.EINPROGRESS) {
		if err := socket.SetWriteDeadline(time.Now().Add(connectTime)); err != nil {
			return nil, err
		}
		defer context.AfterFunc(ctx, func() { _ = socket.SetWriteDeadline(time.Unix(1, 0)) })()
		err = writable(socket)
	}
	if err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	return net.FileConn(socket)
}

// writable waits until a socket is connected, and returns why it is not.
func writable(socket *os.File) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Write(func(fd uintptr) bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
		if err != nil || ready == 0 {
			return err != nil && !errors.Is(err, unix.EINTR)
		}
		errno, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if failed = err; err == nil && errno != 0 {
			failed = unix.Errno(errno)
		}
		return true
	}); err != nil {
		return err
	}
	return failed
}

package testcluster

import (
	"context"
	"io"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// forward forwards connections from listener to an address in another network namespace until ctx is done. It
// returns when all connections have ended.
func forward(ctx context.Context, listener net.Listener, netns, address string) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		near, err := listener.Accept()
		if err != nil {
			return // closed
		}
		all.Go(func() {
			defer near.Close()
			far, err := dialIn(ctx, netns, address)
			if err != nil {
				return
			}
			defer far.Close()
			stop := context.AfterFunc(ctx, func() { _ = near.Close(); _ = far.Close() })
			defer stop()
			join(near, far)
		})
	}
}

func join(near, far net.Conn) {
	done := make(chan struct{}, 2)
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_ = to.Close()
		done <- struct{}{}
	}
	go pass(near, far)
	pass(far, near)
	<-done
	<-done
}

// dialIn connects to an IP address and port in a network namespace. A socket belongs to its creator thread's namespace.
func dialIn(ctx context.Context, netns, address string) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The thread stays locked, so that it ends with this goroutine and no other goroutine runs in the namespace.
		runtime.LockOSThread()
		var file *os.File
		if file, err = os.Open(netns); err != nil {
			return
		}
		defer file.Close()
		if err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			return
		}
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}()
	<-done
	return conn, err
}

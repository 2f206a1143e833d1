// Package wire is a TCP proxy on loopback that tests can cut, silence and mend.
//
// Only tests import it; it imports no package of Coracle. Its invariant: data sent during a silence arrives after
// Mend, as over a network, or never if the wire is cut first.
package wire

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Wire is a proxy to one address. Its methods may be called concurrently.
type Wire struct {
	to       string
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	cut   bool
	ended bool
	open  chan struct{} // closed unless the wire is silent
}

// New returns a working wire to an address, such as 127.0.0.1:6443. It ends with the test.
func New(t testing.TB, to string) *Wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &Wire{to: to, listener: l, conns: map[net.Conn]bool{}, open: make(chan struct{})}
	close(w.open)
	w.wg.Go(w.accept)
	t.Cleanup(func() {
		_ = l.Close()
		w.mu.Lock()
		w.ended = true
		w.mu.Unlock()
		w.Cut()
		w.wg.Wait()
	})
	return w
}

// Address is the address to which clients connect.
func (w *Wire) Address() string { return w.listener.Addr().String() }

// Cut closes all connections, and every new connection at once, until Mend.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for c := range w.conns {
		_ = c.Close()
	}
	w.pass()
}

// Silence keeps connections open but forwards no data until Mend.
func (w *Wire) Silence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pass()
	w.open = make(chan struct{})
}

// Mend undoes Cut and Silence.
func (w *Wire) Mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = w.ended
	w.pass()
}

// pass releases the data that waits. The caller holds the lock.
func (w *Wire) pass() {
	select {
	case <-w.open:
	default:
		close(w.open)
	}
}

func (w *Wire) accept() {
	for {
		c, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.wg.Go(func() { w.serve(c) })
	}
}

func (w *Wire) add(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		_ = c.Close()
		return false
	}
	w.conns[c] = true
	return true
}

func (w *Wire) remove(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
	_ = c.Close()
}

func (w *Wire) wait() {
	w.mu.Lock()
	open := w.open
	w.mu.Unlock()
	<-open
}

func (w *Wire) serve(in net.Conn) {
	if !w.add(in) {
		return
	}
	defer w.remove(in)
	w.wait()
	out, err := net.Dial("tcp", w.to)
	if err != nil || !w.add(out) {
		return
	}
	defer w.remove(out)
	w.wg.Go(func() {
		w.copy(in, out)
		_ = in.Close()
	})
	w.copy(out, in)
}

func (w *Wire) copy(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			w.wait()
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

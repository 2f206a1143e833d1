// Package wire gives tests a connection that can be cut, or go silent, and be mended: a TCP proxy on loopback.
//
// It imports nothing of Coracle; only tests import it. Its invariant: what is sent while it is silent arrives once it
// is mended, as it would over a network, or never, if it is cut before.
package wire

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Wire is a way to a server. Its methods may be called at the same time.
type Wire struct {
	to       string
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	cut   bool
	ended bool
	open  chan struct{} // closed unless it is silent
}

// New returns a whole wire to an address, such as 127.0.0.1:6443, until the end of the test.
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

// Address is where clients connect to.
func (w *Wire) Address() string { return w.listener.Addr().String() }

// Cut ends all connections, and every further one as soon as it is made, until Mend.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for c := range w.conns {
		_ = c.Close()
	}
	w.pass()
}

// Silence lets connections be, but nothing through, until Mend.
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

// pass lets through what waits. The wire is locked.
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

// add counts a connection in, unless the wire is cut.
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

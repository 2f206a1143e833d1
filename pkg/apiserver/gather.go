package apiserver

import (
	"net"
	"sync"
	"time"
)

const (
	// gatherMost is how many bytes may wait to be sent on one connection; a write beyond it waits for the peer.
	gatherMost = 64 << 10
	// gatherKeep is the largest buffer that is kept for other connections.
	gatherKeep = 128 << 10
)

// gathering is a listener whose connections send together what is written at about the same time.
//
// HTTP/2 as net/http has it writes the head of each answer, and every four kilobytes of many streams' events, in a
// system call of its own: half of what an event to 1,000 watchers cost. Here, what is written while the last system call
// lasts goes with the next one.
type gathering struct{ net.Listener }

func (l gathering) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &gathered{Conn: c}
	g.moved.L = &g.mu
	return g, nil
}

// gathered is one such connection. A write returns when its bytes are in the buffer, which a goroutine that lives only
// as long as there are some sends; a failure to send is told to the next write.
type gathered struct {
	net.Conn
	mu      sync.Mutex
	moved   sync.Cond // the buffer was taken, or sending ended
	waiting []byte
	sending bool
	err     error
}

var gatherBuffers = sync.Pool{New: func() any { return new([]byte) }}

func (g *gathered) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.waiting) > 0 && len(g.waiting)+len(p) > gatherMost && g.err == nil {
		g.moved.Wait()
	}
	if g.err != nil {
		return 0, g.err
	}
	if g.waiting == nil {
		g.waiting = (*gatherBuffers.Get().(*[]byte))[:0]
	}
	g.waiting = append(g.waiting, p...)
	if !g.sending {
		g.sending = true
		go g.send()
	}
	return len(p), nil
}

// send sends until nothing waits.
func (g *gathered) send() {
	for {
		g.mu.Lock()
		b := g.waiting
		g.waiting = nil
		if g.sending = len(b) > 0 && g.err == nil; !g.sending {
			g.moved.Broadcast()
			g.mu.Unlock()
			return
		}
		g.moved.Broadcast()
		g.mu.Unlock()
		_, err := g.Conn.Write(b)
		if cap(b) <= gatherKeep {
			gatherBuffers.Put(&b)
		}
		if err != nil {
			g.mu.Lock()
			g.err = err
			g.mu.Unlock()
		}
	}
}

// settle waits until nothing is left to send.
func (g *gathered) settle() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.sending {
		g.moved.Wait()
	}
}

// Close sends what waits first. How long that may take is the write deadline's matter: crypto/tls sets one of five seconds.
func (g *gathered) Close() error {
	g.settle()
	return g.Conn.Close()
}

// SetWriteDeadline holds for writes to come: one that forbids them, as crypto/tls sets when it closes, must not keep
// from the peer what was written before.
func (g *gathered) SetWriteDeadline(t time.Time) error {
	if !t.IsZero() && !t.After(time.Now()) {
		g.settle()
	}
	return g.Conn.SetWriteDeadline(t)
}

func (g *gathered) SetDeadline(t time.Time) error {
	if err := g.SetReadDeadline(t); err != nil {
		return err
	}
	return g.SetWriteDeadline(t)
}

package apiserver

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// gatherMost is how many bytes may wait to be sent on one connection; a write beyond it waits for the peer.
	gatherMost = 64 << 10
	// gatherKeep is the largest buffer that is reused for other connections.
	gatherKeep = 128 << 10
)

// gathering is a listener whose connections coalesce concurrent writes.
//
// HTTP/2 as net/http has it writes the head of each answer, and every four kilobytes of many streams' events, in a
// system call of its own: half of what an event to 1,000 watchers cost. Here, what is written while the last system call
// lasts goes with the next one.
type gathering struct {
	net.Listener
	// stall is how long the peer may take nothing of what waits, before the connection fails. 0 is for ever.
	stall time.Duration
}

func (l gathering) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &gathered{Conn: c, stall: l.stall}
	g.moved.L = &g.mu
	return g, nil
}

// gathered is one such connection. A write returns when its bytes are in the buffer, which a goroutine that lives only
// as long as there are some sends; the next write returns a failure to send.
type gathered struct {
	net.Conn
	mu      sync.Mutex
	moved   sync.Cond // the buffer was taken, or sending ended
	waiting []byte
	sending bool
	err     error
	stall   time.Duration
	// deadline is the one passed to SetWriteDeadline; the connection's deadline is also bounded by stall, as of renewed.
	deadline, renewed time.Time
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
		err := g.sendAll(b)
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

// sendAll sends b for as long as the peer takes some of it within stall, and until the deadline.
func (g *gathered) sendAll(b []byte) error {
	for {
		g.mu.Lock()
		err := g.renew(false)
		g.mu.Unlock()
		if err != nil {
			return err
		}
		n, err := g.Conn.Write(b)
		if b = b[n:]; err == nil {
			return nil
		}
		g.mu.Lock()
		over := !g.deadline.IsZero() && !time.Now().Before(g.deadline)
		g.renewed = time.Time{}
		g.mu.Unlock()
		if n == 0 || over || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// renew extends the connection's write deadline. It is called with mu held, and does nothing if
// what it said before is nearly as good, unless changed.
func (g *gathered) renew(changed bool) error {
	if g.stall == 0 {
		if changed {
			return g.Conn.SetWriteDeadline(g.deadline)
		}
		return nil
	}
	now := time.Now()
	if !changed && now.Sub(g.renewed) < g.stall/4 {
		return nil
	}
	g.renewed = now
	until := now.Add(g.stall)
	if !g.deadline.IsZero() && g.deadline.Before(until) {
		until = g.deadline
	}
	return g.Conn.SetWriteDeadline(until)
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
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deadline = t
	return g.renew(true)
}

func (g *gathered) SetDeadline(t time.Time) error {
	if err := g.SetReadDeadline(t); err != nil {
		return err
	}
	return g.SetWriteDeadline(t)
}

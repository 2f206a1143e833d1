package apiserver

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// gatherMost is the number of bytes that a connection may buffer. Writes beyond it block.
	gatherMost = 64 << 10
	// gatherKeep is the capacity of the largest buffer that is pooled for reuse.
	gatherKeep = 128 << 10
)

// gathering is a listener whose connections coalesce concurrent writes.
//
// net/http makes a system call for each HTTP/2 response header and for every 4 KB of events: half the cost of an
// event for 1,000 watchers. Here, data written during a system call is sent with the next one.
type gathering struct {
	net.Listener
	// stall is how long the peer may read nothing before the connection fails. 0 disables the limit.
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

// gathered is a connection that buffers writes. Write returns once its bytes are buffered. A goroutine, which runs
// only while the buffer has bytes, sends them. If sending fails, the next Write returns the error.
type gathered struct {
	net.Conn
	mu      sync.Mutex
	moved   sync.Cond // signals that the buffer was taken or that sending has ended
	waiting []byte
	sending bool
	err     error
	stall   time.Duration
	// deadline is the time passed to SetWriteDeadline. The connection's own deadline is also at most stall after
	// renewed.
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

// send sends until the buffer is empty.
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

// sendAll sends b. It fails when the peer reads nothing for stall, or at the deadline.
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

// renew extends the connection's write deadline. The caller holds mu. Unless changed, it does nothing while less
// than a quarter of stall has passed since the last renewal.
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

// settle waits until the buffer is empty.
func (g *gathered) settle() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.sending {
		g.moved.Wait()
	}
}

// Close first sends buffered data, until the write deadline. crypto/tls sets one of five seconds.
func (g *gathered) Close() error {
	g.settle()
	return g.Conn.Close()
}

// SetWriteDeadline applies to later writes. Before it sets a deadline in the past, as crypto/tls does on close, it
// sends the buffered data.
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

// Package connlimit limits the open connections of a listener, in total and per client address. Invariant: a
// connection beyond a limit is closed as soon as it is accepted, before any read from it and without a goroutine.
package connlimit

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// few is the number of connections up to which an address may use the last quarter of a listener's limit.
const few = 8

// Config holds the limits of a Listener.
type Config struct {
	// Most limits all connections, Each the connections of one client address.
	Most, Each int
	// Opened is called with the number of open connections when it changes, Refused for each rejected connection.
	// Both are called with a lock held, must not block, and may be nil.
	Opened  func(open int)
	Refused func()
	Logger  *slog.Logger
}

// Listener limits the connections of the wrapped listener. The last quarter of Config.Most is reserved for addresses
// with few connections, so that a small number of clients cannot lock out the others.
type Listener struct {
	net.Listener
	c Config

	mu     sync.Mutex
	total  int
	of     map[netip.Addr]int
	logged time.Time
}

// New wraps l.
func New(l net.Listener, c Config) *Listener {
	if c.Opened == nil {
		c.Opened = func(int) {}
	}
	if c.Refused == nil {
		c.Refused = func() {}
	}
	return &Listener{Listener: l, c: c, of: map[netip.Addr]int{}}
}

// Accept waits for a connection within the limits.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var from netip.Addr
		if a, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
			from = a.Addr().Unmap()
		}
		if l.admit(from) {
			return &counted{Conn: c, end: sync.OnceFunc(func() { l.leave(from) })}, nil
		}
		_ = c.Close()
	}
}

func (l *Listener) admit(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.of[from]
	if n >= l.c.Each || l.total >= l.c.Most || (l.total >= l.c.Most/4*3 && n >= few) {
		l.c.Refused()
		if now := time.Now(); now.Sub(l.logged) > 10*time.Second {
			l.logged = now
			l.c.Logger.Warn("connection limit reached, refusing connection", "address", from, "openOfAddress", n, "open",
				l.total)
		}
		return false
	}
	l.of[from] = n + 1
	l.total++
	l.c.Opened(l.total)
	return true
}

func (l *Listener) leave(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[from]--; l.of[from] == 0 {
		delete(l.of, from)
	}
	l.total--
	l.c.Opened(l.total)
}

type counted struct {
	net.Conn
	end func()
}

func (c *counted) Close() error {
	defer c.end()
	return c.Conn.Close()
}

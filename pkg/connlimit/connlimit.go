// Package connlimit bounds the connections that a listener has open at once, in all and of each client address.
//
// It may import the standard library alone. Its invariant: what is beyond a bound is closed as soon as it is accepted, before any
// of it is read or a goroutine runs for it.
package connlimit

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// few is how many connections an address may have for which the last quarter of a listener's connections is kept.
const few = 8

// Config says what a Listener allows.
type Config struct {
	// Most bounds all connections, Each those of one client address.
	Most, Each int
	// Opened is called with the number of open connections when it changes, Refused for each connection that is closed at once.
	// Both are called with a lock held, must not block, and may be nil.
	Opened  func(open int)
	Refused func()
	Logger  *slog.Logger
}

// Listener bounds the connections of the listener within. In the last quarter of Config.Most, only addresses with few connections
// are let in, so that no small number of clients can keep the others out.
type Listener struct {
	net.Listener
	c Config

	mu     sync.Mutex
	total  int
	of     map[netip.Addr]int
	logged time.Time
}

// New makes a Listener around l.
func New(l net.Listener, c Config) *Listener {
	if c.Opened == nil {
		c.Opened = func(int) {}
	}
	if c.Refused == nil {
		c.Refused = func() {}
	}
	return &Listener{Listener: l, c: c, of: map[netip.Addr]int{}}
}

// Accept waits for a connection that is within the bounds.
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
			l.c.Logger.Warn("connection limit reached, refusing connection", "address", from, "openOfAddress", n, "open", l.total)
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

// counted is a connection that is counted until it is closed.
type counted struct {
	net.Conn
	end func()
}

func (c *counted) Close() error {
	defer c.end()
	return c.Conn.Close()
}

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

// Few is the number up to which a holder may use the last quarter of a limit.
const Few = 8

// Share counts what is open, in total and per holder, such as a client's address. The last quarter of the total is
// reserved for holders with few, so that a small number of them cannot lock out the others. It is not safe for
// concurrent use.
type Share[K comparable] struct {
	most, each, total int
	of                map[K]int
}

// NewShare returns a Share with the limit most in total, and each per holder.
func NewShare[K comparable](most, each int) *Share[K] {
	return &Share[K]{most: most, each: each, of: map[K]int{}}
}

// Enter counts one more for a holder, if that is within the limits.
func (s *Share[K]) Enter(from K) bool {
	n := s.of[from]
	if n >= s.each || s.total >= s.most || s.total >= s.most/4*3 && n >= Few {
		return false
	}
	s.of[from] = n + 1
	s.total++
	return true
}

// Leave undoes an Enter that returned true.
func (s *Share[K]) Leave(from K) {
	if s.of[from]--; s.of[from] == 0 {
		delete(s.of, from)
	}
	s.total--
}

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

// Listener limits the connections of the wrapped listener with a Share.
type Listener struct {
	net.Listener
	c Config

	mu     sync.Mutex
	share  *Share[netip.Addr]
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
	return &Listener{Listener: l, c: c, share: NewShare[netip.Addr](c.Most, c.Each)}
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
	if !l.share.Enter(from) {
		l.c.Refused()
		if now := time.Now(); now.Sub(l.logged) > 10*time.Second {
			l.logged = now
			l.c.Logger.Warn("connection limit reached, refusing connection", "address", from, "openOfAddress",
				l.share.of[from], "open", l.share.total)
		}
		return false
	}
	l.c.Opened(l.share.total)
	return true
}

func (l *Listener) leave(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.share.Leave(from)
	l.c.Opened(l.share.total)
}

type counted struct {
	net.Conn
	end func()
}

func (c *counted) Close() error {
	defer c.end()
	return c.Conn.Close()
}

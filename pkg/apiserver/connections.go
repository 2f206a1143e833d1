package apiserver

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// fewConnections is how many connections an address may have for which the last quarter of a server's connections is kept.
const fewConnections = 8

// connections is a listener that bounds the connections that are open at once: most in all, and each of one client address.
// In the last quarter of most, only addresses with few connections are let in, so that no small number of
// clients can keep the others out. What is beyond is closed as soon as it is accepted, before any of it is read.
type connections struct {
	net.Listener
	most, each int
	count      connectionMetrics
	log        *slog.Logger

	mu    sync.Mutex
	total int
	of    map[netip.Addr]int
	told  time.Time
}

type connectionMetrics struct {
	open    prometheus.Gauge
	refused prometheus.Counter
}

func newConnections(l net.Listener, most, each int, count connectionMetrics, log *slog.Logger) *connections {
	return &connections{Listener: l, most: most, each: each, count: count, log: log, of: map[netip.Addr]int{}}
}

func (l *connections) Accept() (net.Conn, error) {
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

func (l *connections) admit(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.of[from]
	if n >= l.each || l.total >= l.most || (l.total >= l.most/4*3 && n >= fewConnections) {
		l.count.refused.Inc()
		if now := time.Now(); now.Sub(l.told) > 10*time.Second {
			l.told = now
			l.log.Warn("too many connections: refused one", "from", from, "of-it", n, "of-all", l.total)
		}
		return false
	}
	l.of[from] = n + 1
	l.total++
	l.count.open.Set(float64(l.total))
	return true
}

func (l *connections) leave(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[from]--; l.of[from] == 0 {
		delete(l.of, from)
	}
	l.total--
	l.count.open.Set(float64(l.total))
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

// Package servers is a client's list of a cluster's API servers: which one it uses, which are down, and which one it
// fails over to.
//
// Invariant: the list is bounded, and it need not be trusted. An address only says where to connect; the transport
// verifies the server against the cluster's certificate authority.
//
// A client stays with its server until that fails or leaves the cluster, and does not fail back. Clients of a dead
// server fail over to different servers, because each client has its own order.
package servers

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// Most is the maximum number of learned servers, and of Config.Seeds.
	Most = 64
	// maxFile is the maximum size of the file, in bytes: an IPv6 address with port has at most 47 characters, and
	// zones are rejected.
	maxFile = Most * 64
	// A server that failed is not used for pauseFirst if there are others. The pause doubles with each failure, up to
	// pauseMost.
	pauseFirst = time.Second
	pauseMost  = 30 * time.Second
	// dialShort is the dial timeout while there are other servers.
	dialShort = 2 * time.Second
)

// Config configures a List.
type Config struct {
	// Seeds are 1 to Most hosts and ports given by the user. Once servers were learned, the seeds are tried last.
	Seeds []string
	// Client names this client; it determines the order of the servers.
	Client string
	// File persists the learned servers across restarts. Optional.
	File string
	// Dial makes connections. Required.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Log is slog.Default() if nil.
	Log *slog.Logger
}

// List is safe for concurrent use.
type List struct {
	Config

	mu      sync.Mutex
	learned []string // in this client's order of preference
	current string
	outages map[string]outage
	conns   map[string]map[*conn]struct{} // open connections, by dialled address
}

// outage is the period in which a failed server is not used.
type outage struct {
	pause backoff.Backoff
	until time.Time
}

// New creates a List of the seeds and of the servers in Config.File.
func New(c Config) (*List, error) {
	if len(c.Seeds) == 0 || len(c.Seeds) > Most {
		return nil, fmt.Errorf("servers: got %d seeds, need 1 to %d", len(c.Seeds), Most)
	}
	if c.Dial == nil {
		return nil, errors.New("servers: Dial is required")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	l := &List{Config: c, current: c.Seeds[0], outages: map[string]outage{}, conns: map[string]map[*conn]struct{}{}}
	if c.File == "" {
		return l, nil
	}
	data, err := bounded.File(c.File, maxFile)
	if err == nil {
		var kept []netip.AddrPort
		for line := range bytes.Lines(data) {
			a, err := netip.ParseAddrPort(string(bytes.TrimSpace(line)))
			if err != nil {
				c.Log.Warn("ignoring an address in the list of servers", "file", c.File, "error", err)
				continue
			}
			kept = append(kept, a)
		}
		l.learned = l.order(kept)
	} else if !errors.Is(err, fs.ErrNotExist) {
		c.Log.Warn("could not read the list of servers", "file", c.File, "error", err)
	}
	return l, nil
}

// order returns the valid addresses without duplicates, at most Most, in this client's order of preference.
func (l *List) order(addresses []netip.AddrPort) (list []string) {
	for _, a := range addresses {
		ip := a.Addr()
		text := a.String()
		if !ip.IsValid() || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() || a.Port() == 0 ||
			slices.Contains(list, text) {
			continue
		}
		if list = append(list, text); len(list) == Most {
			break
		}
	}
	// Rendezvous hashing: removing a server does not change the order of the others.
	weight := func(address string) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(l.Client + "\x00" + address)) // never fails
		// FNV alone gives similar hashes for addresses that differ in the last digit.
		x := h.Sum64()
		x ^= x >> 33
		x *= 0xff51afd7ed558ccd
		return x ^ x>>33
	}
	slices.SortFunc(list, func(a, b string) int { return cmp.Or(cmp.Compare(weight(a), weight(b)), cmp.Compare(a, b)) })
	return list
}

// Set replaces the learned servers. It closes connections to servers that are no longer listed. An empty list is
// ignored: every cluster has a server, and without an address this client could never recover.
func (l *List) Set(addresses []netip.AddrPort) {
	list := l.order(addresses)
	l.mu.Lock()
	if len(list) == 0 || slices.Equal(list, l.learned) {
		l.mu.Unlock()
		return
	}
	var left []*conn
	for _, a := range l.learned {
		if slices.Contains(list, a) {
			continue
		}
		delete(l.outages, a)
		for c := range l.conns[a] {
			left = append(left, c)
		}
		if l.current == a {
			l.current = ""
		}
	}
	l.learned = list
	l.mu.Unlock()
	for _, c := range left {
		_ = c.Close()
	}
	l.Log.Debug("servers of the cluster", "servers", list)
	if l.File == "" {
		return
	}
	if err := atomicfile.WriteDurably(l.File, []byte(strings.Join(list, "\n")+"\n")); err != nil {
		l.Log.Warn("could not save the list of servers", "file", l.File, "error", err)
	}
}

// all is Addresses. The caller holds mu.
func (l *List) all() []string {
	list := slices.Clone(l.learned)
	for _, s := range l.Seeds {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// Addresses returns the servers in the order in which they are tried.
func (l *List) Addresses() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all()
}

// Current returns the server to use now: the last used one, unless it failed or left the cluster; otherwise the first
// one that is not down, or else the one whose outage ends first.
func (l *List) Current() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	down := func(a string) bool { return now.Before(l.outages[a].until) }
	if l.current != "" && !down(l.current) {
		return l.current
	}
	list := l.all()
	next := list[0]
	for _, a := range list {
		if !down(a) {
			next = a
			break
		}
		if l.outages[a].until.Before(l.outages[next].until) {
			next = a
		}
	}
	l.current = next
	return next
}

func (l *List) others(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	return slices.ContainsFunc(l.all(), func(a string) bool { return a != address && !now.Before(l.outages[a].until) })
}

func (l *List) failed(address string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.outages[address]
	if now := time.Now(); !now.Before(o.until) { // count only the first of concurrent failures
		o.pause.First, o.pause.Most, o.pause.Jitter = pauseFirst, pauseMost, true
		o.until = now.Add(o.pause.Next())
		l.outages[address] = o
		if len(l.all()) > 1 {
			l.Log.Warn("API server unavailable, trying another", "server", address, "error", err)
		}
	}
}

func (l *List) works(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.outages, address)
}

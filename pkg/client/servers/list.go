// Package servers is a client's list of the servers of a cluster: which one it uses, which are down, and where it turns next.
//
// It may import bounded and pki. Its invariants: the list is bounded, and needs no trust. An address is only where a connection is tried: who
// answers there is verified by the transport, against the authority of the cluster.
//
// A client stays with the server it uses until that fails or leaves the cluster, and does not go back when another one returns. Clients of one
// server that dies turn to different ones: each has an order of its own.
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
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/bounded"
	"github.com/coracle-dev/coracle/pkg/pki"
)

const (
	// Most bounds the servers that are learned, and Config.Seeds.
	Most = 64
	// maxFile is the largest file that is read, in bytes: an address and port of IPv6 has at most 47 characters, and a zone is refused.
	maxFile = Most * 64
	// A server that failed is not tried for pauseFirst while there are others; this doubles up to pauseMost.
	pauseFirst = time.Second
	pauseMost  = 30 * time.Second
	// dialShort bounds the making of a connection while there are other servers to turn to.
	dialShort = 2 * time.Second
)

// Config configures a List.
type Config struct {
	// Seeds are the hosts and ports that the user gave: at least one, at most Most. They are tried last once servers were learned.
	Seeds []string
	// Client names this client; it determines the order of the servers.
	Client string
	// File keeps what was learned for the next start; empty for none.
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
	learned []string // in this client's order
	current string
	outages map[string]outage
	conns   map[string]map[*conn]struct{} // open ones, by the address dialled
}

// outage is why and until when a server is not tried.
type outage struct {
	pause time.Duration
	until time.Time
}

// New makes a List of the seeds, and of what an earlier process learned.
func New(c Config) (*List, error) {
	if len(c.Seeds) == 0 || len(c.Seeds) > Most {
		return nil, fmt.Errorf("servers: %d are given: give from one to %d", len(c.Seeds), Most)
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

// order returns the valid addresses, each once, at most Most, in the order in which this client turns to them.
func (l *List) order(addresses []netip.AddrPort) (list []string) {
	for _, a := range addresses {
		ip := a.Addr()
		text := a.String()
		if !ip.IsValid() || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() || a.Port() == 0 || slices.Contains(list, text) {
			continue
		}
		if list = append(list, text); len(list) == Most {
			break
		}
	}
	// Rendezvous hashing: without one server the others keep their order.
	weight := func(address string) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(l.Client + "\x00" + address)) // never fails
		// FNV alone leaves addresses that differ in the last digit close together.
		x := h.Sum64()
		x ^= x >> 33
		x *= 0xff51afd7ed558ccd
		return x ^ x>>33
	}
	slices.SortFunc(list, func(a, b string) int { return cmp.Or(cmp.Compare(weight(a), weight(b)), cmp.Compare(a, b)) })
	return list
}

// Set replaces what was learned. Connections to servers that are no longer listed are closed. An empty list is ignored: no cluster is without
// servers, and this client would be without any.
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
	if err := pki.WriteFile(l.File, []byte(strings.Join(list, "\n")+"\n")); err != nil {
		l.Log.Warn("could not save the list of servers", "file", l.File, "error", err)
	}
}

// all lists the servers in the order in which they are tried. The caller holds mu.
func (l *List) all() []string {
	list := slices.Clone(l.learned)
	for _, s := range l.Seeds {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// Addresses lists the servers in the order in which they are tried.
func (l *List) Addresses() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all()
}

// Current is the server to use now: the one used last, unless it has failed or left; else the first that is not down; else the one whose outage
// ends first.
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

// others reports whether there is a server to turn to from this one.
func (l *List) others(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	return slices.ContainsFunc(l.all(), func(a string) bool { return a != address && !now.Before(l.outages[a].until) })
}

// failed notes that a server did not answer.
func (l *List) failed(address string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.outages[address]
	if now := time.Now(); !now.Before(o.until) { // of requests that fail together the first counts
		o.pause = min(max(2*o.pause, pauseFirst), pauseMost)
		o.until = now.Add(o.pause*3/4 + rand.N(o.pause/2))
		l.outages[address] = o
		if len(l.all()) > 1 {
			l.Log.Warn("server does not answer, trying another", "server", address, "error", err)
		}
	}
}

// works notes that a server answered.
func (l *List) works(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.outages, address)
}

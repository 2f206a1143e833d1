package dns

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// cacheSize is the maximum number of cached responses, cacheBytes their maximum total size. A full cache evicts
	// random entries.
	cacheSize, cacheBytes = 2048, 4 << 20
	// longestTTL and negativeTTL limit the TTL of positive and negative cache entries, in seconds.
	longestTTL, negativeTTL = 3600, 30
	// forwardLimit is the number of queries in flight up to which a client may have more than clientLeast of them: at
	// most clientLimit, and at most half as many as are left. spareLimit are further queries in flight, for clients with
	// fewer than clientLeast, so that many pods together do not take all: 128 clients get their two. Further queries
	// get SERVFAIL.
	forwardLimit, spareLimit = 512, 256
	clientLimit, clientLeast = 64, 2
	// upstreamTimeout is the timeout per upstream. Upstreams are tried in order.
	upstreamTimeout = 2 * time.Second
)

type forwarder struct {
	fixed   []string // the upstreams; nil means the servers in file
	file    string   // a resolv.conf
	self    []string // our own addresses, never used as upstreams
	now     func() time.Time
	timeout time.Duration         // per upstream
	loops   func(netip.Addr) bool // reports whether a server would send queries back to us; may be nil

	mu      sync.Mutex
	cache   map[question]cached
	bytes   int                  // total size of the cache
	flights map[question]*flight // queries in flight, shared by identical queries
	clients map[netip.Addr]int   // queries in flight by client
	asked   int                  // queries in flight of all clients
	read    time.Time            // modification time of file when it was last read
	servers []string
}

type question struct {
	name       string
	kind       uint16
	do, noRecn bool // DNSSEC OK bit; recursion not desired
}

type flight struct {
	done   chan struct{} // closed when the query is complete
	answer *dns.Msg      // nil if all upstreams failed; not modified
}

type cached struct {
	answer []byte // packed
	at     time.Time
	ttl    uint32
}

func newForwarder(fixed []string, file string, self []string) *forwarder {
	return &forwarder{
		fixed: fixed, file: file, self: self, now: time.Now,
		timeout: upstreamTimeout, cache: map[question]cached{},
		flights: map[question]*flight{}, clients: map[netip.Addr]int{},
	}
}

func (f *forwarder) upstreams() []string {
	if f.fixed != nil {
		return f.fixed
	}
	info, err := os.Stat(f.file)
	if err != nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.read.Equal(info.ModTime()) {
		return f.servers
	}
	config, err := dns.ClientConfigFromFile(f.file)
	if err != nil {
		return f.servers
	}
	f.read, f.servers = info.ModTime(), nil
	for _, server := range config.Servers {
		if a := net.JoinHostPort(server, config.Port); !slices.Contains(f.self, a) {
			f.servers = append(f.servers, a)
		}
	}
	return f.servers
}

// ask resolves a client's request from the cache or an upstream.
func (f *forwarder) ask(client netip.Addr, request *dns.Msg) *dns.Msg {
	q := request.Question[0]
	key := question{name: strings.ToLower(q.Name), kind: q.Qtype, noRecn: !request.RecursionDesired}
	if o := request.IsEdns0(); o != nil {
		key.do = o.Do()
	}
	if answer := f.cached(key); answer != nil {
		return reply(request, answer)
	}
	if !f.enter(client) {
		return failure(request)
	}
	defer f.leave(client)
	if answer := f.fly(key); answer != nil {
		return reply(request, answer)
	}
	return failure(request)
}

func (f *forwarder) enter(client netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	left := forwardLimit - f.asked
	if f.asked >= forwardLimit+spareLimit || f.clients[client] >= min(clientLimit, max(clientLeast, left/2)) {
		return false
	}
	f.clients[client]++
	f.asked++
	return true
}

func (f *forwarder) leave(client netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked--
	if f.clients[client]--; f.clients[client] == 0 {
		delete(f.clients, client)
	}
}

// fly sends a query, or waits for an identical one in flight. It returns nil if all upstreams fail. If an upstream
// sends the query back to us, that copy waits for the original until the upstream's timeout instead of looping.
func (f *forwarder) fly(key question) *dns.Msg {
	f.mu.Lock()
	if other := f.flights[key]; other != nil {
		f.mu.Unlock()
		<-other.done
		return other.answer
	}
	own := &flight{done: make(chan struct{})}
	f.flights[key] = own
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.flights, key)
		f.mu.Unlock()
		close(own.done)
	}()
	own.answer = f.fetch(key)
	return own.answer
}

func (f *forwarder) fetch(key question) *dns.Msg {
	query := new(dns.Msg)
	query.SetQuestion(key.name, key.kind)
	query.RecursionDesired = !key.noRecn
	query.SetEdns0(udpSize, key.do)
	for _, server := range f.upstreams() {
		if a, err := netip.ParseAddrPort(server); err == nil && f.loops != nil && f.loops(a.Addr()) {
			continue
		}
		answer, err := f.exchange(query, server)
		if err != nil || answer.Rcode == dns.RcodeServerFailure || answer.Rcode == dns.RcodeRefused {
			continue
		}
		f.keep(key, answer)
		return answer
	}
	return nil
}

// exchange queries one server, over TCP if the response is too long for UDP. Each query has a random source port and
// ID (RFC 5452). Responses from another address or with another ID are ignored.
func (f *forwarder) exchange(query *dns.Msg, server string) (*dns.Msg, error) {
	query.Id = dns.Id()
	udp := dns.Client{Net: "udp", Timeout: f.timeout, UDPSize: udpSize}
	answer, _, err := udp.Exchange(query, server)
	if err == nil && answer.Truncated {
		tcp := dns.Client{Net: "tcp", Timeout: f.timeout}
		answer, _, err = tcp.Exchange(query, server)
	}
	if err == nil && !answers(query, answer) {
		err = errors.New("not an answer to this question")
	}
	return answer, err
}

func answers(query, answer *dns.Msg) bool {
	if !answer.Response || answer.Opcode != dns.OpcodeQuery || len(answer.Question) != 1 {
		return false
	}
	asked, got := query.Question[0], answer.Question[0]
	return strings.EqualFold(asked.Name, got.Name) && asked.Qtype == got.Qtype && asked.Qclass == got.Qclass
}

func (f *forwarder) cached(key question) *dns.Msg {
	f.mu.Lock()
	c, ok := f.cache[key]
	if !ok {
		f.mu.Unlock()
		return nil
	}
	age := uint32(f.now().Sub(c.at) / time.Second)
	if age >= c.ttl {
		f.drop(key)
		f.mu.Unlock()
		return nil
	}
	f.mu.Unlock()
	answer := new(dns.Msg)
	if answer.Unpack(c.answer) != nil {
		return nil
	}
	for _, section := range [][]dns.RR{answer.Answer, answer.Ns, answer.Extra} {
		for _, r := range section {
			if h := r.Header(); h.Rrtype != dns.TypeOPT {
				h.Ttl -= min(age, h.Ttl)
			}
		}
	}
	return answer
}

func (f *forwarder) keep(key question, answer *dns.Msg) {
	life := lifetime(answer)
	if life == 0 || answer.Truncated {
		return
	}
	compressed := *answer
	compressed.Compress = true
	packed, err := compressed.Pack()
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(key)
	for old := range f.cache {
		if len(f.cache) < cacheSize && f.bytes+len(packed) <= cacheBytes {
			break
		}
		f.drop(old)
	}
	f.cache[key] = cached{packed, f.now(), life}
	f.bytes += len(packed)
}

// drop removes a cache entry. The caller must hold f.mu.
func (f *forwarder) drop(key question) {
	f.bytes -= len(f.cache[key].answer)
	delete(f.cache, key)
}

// lifetime returns how long a response may be cached, in seconds (RFC 2308 for negative responses).
func lifetime(answer *dns.Msg) uint32 {
	if answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError {
		return 0
	}
	life := uint32(longestTTL)
	if len(answer.Answer) == 0 || answer.Rcode == dns.RcodeNameError {
		life = 0
		for _, r := range answer.Ns {
			if soa, ok := r.(*dns.SOA); ok {
				life = min(negativeTTL, soa.Minttl, soa.Hdr.Ttl)
			}
		}
		return life
	}
	for _, section := range [][]dns.RR{answer.Answer, answer.Ns} {
		for _, r := range section {
			life = min(life, r.Header().Ttl)
		}
	}
	return life
}

func reply(request, answer *dns.Msg) *dns.Msg {
	out := answer.Copy()
	out.Id, out.Question = request.Id, request.Question
	out.RecursionDesired, out.RecursionAvailable, out.Authoritative = request.RecursionDesired, true, false
	out.Extra = slices.DeleteFunc(out.Extra, func(r dns.RR) bool { return r.Header().Rrtype == dns.TypeOPT })
	if o := request.IsEdns0(); o != nil {
		out.SetEdns0(udpSize, o.Do())
	}
	return out
}

func failure(request *dns.Msg) *dns.Msg {
	out := new(dns.Msg)
	out.SetRcode(request, dns.RcodeServerFailure)
	out.RecursionAvailable = true
	return out
}

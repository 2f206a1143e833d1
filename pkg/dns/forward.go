package dns

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// cacheSize is how many answers are kept. When it is full, any one of them makes room.
	cacheSize = 2048
	// longestTTL and negativeTTL bound how long, in seconds, an answer or the absence of one is kept.
	longestTTL, negativeTTL = 3600, 30
	// forwardLimit is how many questions may be under way at once; further ones get SERVFAIL and are asked again.
	forwardLimit = 256
	// upstreamTimeout is for each of the upstreams, which are asked one after the other.
	upstreamTimeout = 2 * time.Second
)

// forwarder asks the upstreams, and keeps their answers as long as they allow.
type forwarder struct {
	fixed    []string // if not nil, the upstreams
	file     string   // else the file they are in
	self     []string // our own addresses, not to be asked
	underway chan struct{}
	now      func() time.Time
	timeout  time.Duration // for each upstream

	mu      sync.Mutex
	cache   map[question]cached
	read    time.Time // modification time of the file when it was read
	servers []string
}

type question struct {
	name       string
	kind       uint16
	do, noRecn bool // DNSSEC records wanted; no recursion wanted
}

type cached struct {
	answer *dns.Msg // never changed: copied for each use
	at     time.Time
	ttl    uint32
}

func newForwarder(fixed []string, file string, self []string) *forwarder {
	return &forwarder{fixed: fixed, file: file, self: self, underway: make(chan struct{}, forwardLimit), now: time.Now, timeout: upstreamTimeout, cache: map[question]cached{}}
}

// upstreams are the servers to ask, in order.
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

// ask answers a request from the cache or an upstream.
func (f *forwarder) ask(request *dns.Msg) *dns.Msg {
	q := request.Question[0]
	key := question{name: strings.ToLower(q.Name), kind: q.Qtype, noRecn: !request.RecursionDesired}
	if o := request.IsEdns0(); o != nil {
		key.do = o.Do()
	}
	if answer := f.cached(key); answer != nil {
		return reply(request, answer)
	}
	select {
	case f.underway <- struct{}{}:
		defer func() { <-f.underway }()
	default:
		return failure(request)
	}
	query := new(dns.Msg)
	query.SetQuestion(q.Name, q.Qtype)
	query.RecursionDesired = request.RecursionDesired
	query.SetEdns0(4096, key.do)
	for _, server := range f.upstreams() {
		answer, err := f.exchange(query, server)
		if err != nil || answer.Rcode == dns.RcodeServerFailure || answer.Rcode == dns.RcodeRefused {
			continue
		}
		f.keep(key, answer)
		return reply(request, answer)
	}
	return failure(request)
}

// exchange asks one server, by TCP if the answer is too long for UDP.
func (f *forwarder) exchange(query *dns.Msg, server string) (*dns.Msg, error) {
	udp := dns.Client{Net: "udp", Timeout: f.timeout, UDPSize: 4096}
	answer, _, err := udp.Exchange(query, server)
	if err == nil && answer.Truncated {
		tcp := dns.Client{Net: "tcp", Timeout: f.timeout}
		answer, _, err = tcp.Exchange(query, server)
	}
	if err == nil && !answer.Response {
		err = errors.New("not an answer")
	}
	return answer, err
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
		delete(f.cache, key)
		f.mu.Unlock()
		return nil
	}
	f.mu.Unlock()
	answer := c.answer.Copy()
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
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.cache) >= cacheSize {
		for old := range f.cache {
			delete(f.cache, old)
			break
		}
	}
	f.cache[key] = cached{answer.Copy(), f.now(), life}
}

// lifetime is how long an answer may be kept, in seconds (RFC 2308 for those that say that there is nothing).
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

// reply makes an upstream's answer one to the request.
func reply(request, answer *dns.Msg) *dns.Msg {
	out := answer.Copy()
	out.Id, out.Question = request.Id, request.Question
	out.RecursionDesired, out.RecursionAvailable, out.Authoritative = request.RecursionDesired, true, false
	out.Extra = slices.DeleteFunc(out.Extra, func(r dns.RR) bool { return r.Header().Rrtype == dns.TypeOPT })
	if o := request.IsEdns0(); o != nil {
		out.SetEdns0(4096, o.Do())
	}
	return out
}

func failure(request *dns.Msg) *dns.Msg {
	out := new(dns.Msg)
	out.SetRcode(request, dns.RcodeServerFailure)
	out.RecursionAvailable = true
	return out
}

package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testService(ns, name, ip string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip,
		Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP},
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
		}}}
	for _, c := range change {
		c(s)
	}
	return s
}

func testSlice(ns, service string, endpoints ...string) *discoveryv1.EndpointSlice {
	port, name := int32(8080), "http"
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns,
			Name:      service + "-1",
			Labels:    map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}
	for _, text := range endpoints {
		address, host, _ := strings.Cut(text, " ")
		ready := !strings.HasSuffix(host, "!")
		host = strings.TrimSuffix(host, "!")
		e := discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
		if host != "" {
			e.Hostname = &host
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func testZone() *zone {
	z := newZone("cluster.local")
	z.setService(testService("default", "web", "10.43.0.5"), true)
	z.setService(testService("default", "db", "None"), true)
	z.setSlice(testSlice("default", "db", "10.42.0.5 db-0", "10.42.0.6", "10.42.0.7 db-2!"), true)
	z.setService(testService("default", "idle", "None"), true)
	z.setService(testService("default", "early", "None", func(s *corev1.Service) {
		s.Spec.PublishNotReadyAddresses = true
	}), true)
	z.setSlice(testSlice("default", "early", "10.42.0.8 early-0!"), true)
	z.setService(testService("other", "out", "", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "www.example.org"
	}), true)
	return z
}

func TestLookup(t *testing.T) {
	z := testZone()
	for _, c := range []struct {
		name, kind string
		want       string // rcode or "forward", then the records' data, sorted
	}{
		{"web.default.svc.cluster.local.", "A", "NOERROR 10.43.0.5"},
		{"WEB.Default.svc.CLUSTER.local.", "A", "NOERROR 10.43.0.5"},
		{"web.default.svc.cluster.local.", "AAAA", "NOERROR"},
		{
			"web.default.svc.cluster.local.", "SRV",
			"NOERROR 0 100 53 web.default.svc.cluster.local. | 0 100 80 web.default.svc.cluster.local.",
		},
		{"_http._tcp.web.default.svc.cluster.local.", "SRV", "NOERROR 0 100 80 web.default.svc.cluster.local."},
		{"_http._udp.web.default.svc.cluster.local.", "SRV", "NXDOMAIN"},
		{"x.web.default.svc.cluster.local.", "A", "NXDOMAIN"},
		{"none.default.svc.cluster.local.", "A", "NXDOMAIN"},
		{"web.none.svc.cluster.local.", "A", "NXDOMAIN"},
		{"default.svc.cluster.local.", "A", "NOERROR"},
		{"svc.cluster.local.", "A", "NOERROR"},
		{"cluster.local.", "A", "NOERROR"},
		{"cluster.local.", "SOA", "NOERROR ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5"},
		{"dns-version.cluster.local.", "TXT", `NOERROR "1.1.0"`},
		{"none.cluster.local.", "A", "NXDOMAIN"},
		{"mycluster.local.", "A", "forward"},
		{"example.org.", "A", "forward"},
		{"db.default.svc.cluster.local.", "A", "NOERROR 10.42.0.5 | 10.42.0.6"},
		{"db-0.db.default.svc.cluster.local.", "A", "NOERROR 10.42.0.5"},
		{"db-2.db.default.svc.cluster.local.", "A", "NXDOMAIN"},
		{"10-42-0-6.db.default.svc.cluster.local.", "A", "NOERROR 10.42.0.6"},
		{
			"_http._tcp.db.default.svc.cluster.local.", "SRV",
			"NOERROR 0 100 8080 10-42-0-6.db.default.svc.cluster.local. | 0 100 8080 db-0.db.default.svc.cluster.local.",
		},
		{"idle.default.svc.cluster.local.", "A", "NXDOMAIN"},
		{"early-0.early.default.svc.cluster.local.", "A", "NOERROR 10.42.0.8"},
		{"out.other.svc.cluster.local.", "A", "NOERROR www.example.org."},
		{"10-42-0-5.default.pod.cluster.local.", "A", "NOERROR 10.42.0.5"},
		{"x.default.pod.cluster.local.", "A", "NXDOMAIN"},
		{"5.0.43.10.in-addr.arpa.", "PTR", "NOERROR web.default.svc.cluster.local."},
		{"5.0.42.10.in-addr.arpa.", "PTR", "NOERROR db-0.db.default.svc.cluster.local."},
		{"9.9.9.9.in-addr.arpa.", "PTR", "forward"},
	} {
		r := z.lookup(dns.Question{Name: c.name, Qtype: dns.StringToType[c.kind], Qclass: dns.ClassINET}, maxRecords)
		got := "forward"
		if r.ours {
			var records []string
			for _, rr := range r.answer {
				records = append(records, strings.TrimPrefix(rr.String(), rr.Header().String()))
			}
			slices.Sort(records)
			got = strings.TrimSpace(dns.RcodeToString[r.rcode] + " " + strings.Join(records, " | "))
		}
		require.Equal(t, c.want, got, "%s %s", c.name, c.kind)
	}
}

// TestForgets checks that removed objects leave nothing in the zone.
func TestForgets(t *testing.T) {
	z := testZone()
	z.setSlice(testSlice("default", "web", "10.42.0.9 x"), true) // moved to another service below
	moved := testSlice("default", "db", "10.42.0.9 x")
	moved.Name = "web-1"
	z.setSlice(moved, true)
	x := dns.Question{Name: "x.db.default.svc.cluster.local.", Qtype: dns.TypeA}
	require.True(t, z.lookup(x, maxRecords).answer != nil)
	z.setSlice(moved, false)
	for _, s := range []*discoveryv1.EndpointSlice{testSlice("default", "db"), testSlice("default", "early")} {
		z.setSlice(s, false)
	}
	for _, name := range []string{"default/web", "default/db", "default/idle", "default/early", "other/out"} {
		ns, n, _ := strings.Cut(name, "/")
		z.setService(testService(ns, n, "None"), false)
	}
	require.Empty(t, z.services)
	require.Empty(t, z.slices)
	require.Empty(t, z.sliceOwner)
	require.Empty(t, z.namespaces)
	require.Empty(t, z.reverse)
	require.Empty(t, z.pointing)
}

// ours returns an address that is free for UDP and TCP: each process has its own loopback address, and the port is
// not an ephemeral one.
func ours(port uint16) netip.AddrPort {
	pid := os.Getpid()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(1 + pid>>16), byte(pid >> 8), byte(pid)}), port)
}

// upstream is a DNS server that answers every A query with 192.0.2.7 and a TTL of 60, with a long answer for names
// that begin with "long" and NXDOMAIN for names that begin with "no". It counts queries.
func upstream(t *testing.T) (address string, asked *atomic.Int64) {
	asked = new(atomic.Int64)
	packets, err := net.ListenPacket("udp", ours(Port+1).String())
	require.NoError(t, err)
	stream, err := net.Listen("tcp", packets.LocalAddr().String())
	require.NoError(t, err)
	h := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		asked.Add(1)
		m := new(dns.Msg)
		m.SetReply(q)
		name := q.Question[0].Name
		switch {
		case strings.HasPrefix(name, "no"):
			m.Rcode = dns.RcodeNameError
			m.Ns = []dns.RR{
				&dns.SOA{
					Hdr:    dns.RR_Header{Name: "org.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 900},
					Minttl: 10,
					Ns:     "a.",
					Mbox:   "b.",
				},
			}
		case strings.HasPrefix(name, "long"):
			for i := range 200 {
				m.Answer = append(m.Answer, &dns.A{
					Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IP{192, 0, 2, byte(i)},
				})
			}
		default:
			m.Answer = []dns.RR{
				&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IP{192, 0, 2, 7}},
			}
		}
		if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
			m.Truncate(512)
		}
		_ = w.WriteMsg(m)
	})
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: h}, {Listener: stream, Handler: h}} {
		up, done := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(up) }
		go func() { defer close(done); _ = s.ActivateAndServe() }()
		<-up
		t.Cleanup(func() { _ = s.Shutdown(); <-done })
	}
	return packets.LocalAddr().String(), asked
}

func start(t *testing.T, change func(*Config)) (*Server, string) {
	c := Config{
		Client:          fakeClient{},
		Listen:          []netip.AddrPort{ours(Port)},
		Logger:          slog.New(slog.NewTextHandler(t.Output(), nil)),
		upstreamTimeout: time.Minute,
	}
	if change != nil {
		change(&c)
	}
	s, err := New(c)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	return s, ours(Port).String()
}

func query(t *testing.T, network, server, name string, kind uint16) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, kind)
	answer, _, err := (&dns.Client{Net: network, Timeout: time.Minute}).Exchange(m, server)
	require.NoError(t, err)
	return answer
}

func TestServer(t *testing.T) {
	up, asked := upstream(t)
	s, address := start(t, func(c *Config) { c.Upstreams = []string{"127.0.0.1:1", up} })
	for _, network := range []string{"udp", "tcp"} {
		a := query(t, network, address, "web.default.svc.cluster.local.", dns.TypeA)
		require.True(t, a.Authoritative)
		require.Len(t, a.Answer, 1)
		missing := query(t, network, address, "none.default.svc.cluster.local.", dns.TypeA)
		require.Equal(t, dns.RcodeNameError, missing.Rcode)
		require.Len(t, missing.Ns, 1)
	}
	// The answer to an external name includes the records of its target.
	out := query(t, "udp", address, "out.default.svc.cluster.local.", dns.TypeA)
	require.Len(t, out.Answer, 2)
	require.Equal(t, "192.0.2.7", out.Answer[1].(*dns.A).A.String())

	began := time.Now()
	later := func(d time.Duration) {
		s.forward.mu.Lock()
		defer s.forward.mu.Unlock()
		s.forward.now = func() time.Time { return began.Add(d) }
	}
	later(0)
	// Positive and negative answers are cached for their own TTL.
	for _, c := range []struct {
		name  string
		rcode int
		life  time.Duration
	}{{
		"mail.example.org.", dns.RcodeSuccess, 60 * time.Second,
	}, {"no.example.org.", dns.RcodeNameError, 10 * time.Second}} {
		before := asked.Load()
		for range 3 {
			require.Equal(t, c.rcode, query(t, "udp", address, c.name, dns.TypeA).Rcode)
		}
		require.Equal(t, before+1, asked.Load())
		later(c.life / 2)
		if a := query(t, "udp", address, c.name, dns.TypeA); c.rcode == dns.RcodeSuccess {
			require.Equal(t, uint32(30), a.Answer[0].Header().Ttl)
		}
		require.Equal(t, before+1, asked.Load())
		later(c.life)
		query(t, "udp", address, c.name, dns.TypeA)
		require.Equal(t, before+2, asked.Load())
		later(0)
	}
	require.True(t, query(t, "udp", address, "long.example.org.", dns.TypeA).Truncated)
	require.Len(t, query(t, "tcp", address, "long.example.org.", dns.TypeA).Answer, 200)

	for i := range cacheSize + 10 {
		m := new(dns.Msg)
		m.SetQuestion(fmt.Sprintf("n%d.example.org.", i), dns.TypeA)
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Ttl: 60}}}
		s.forward.keep(question{name: m.Question[0].Name}, m)
	}
	require.Len(t, s.forward.cache, cacheSize)
}

func TestRefuses(t *testing.T) {
	s, address := start(t, func(c *Config) {
		c.Allow = []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}
		c.Upstreams = []string{}
	})
	require.Equal(t, dns.RcodeSuccess, query(t, "udp", address, "web.default.svc.cluster.local.", dns.TypeA).Rcode)
	require.True(t, s.allowed(netip.MustParseAddr("10.42.3.4")))
	require.False(t, s.allowed(netip.MustParseAddr("192.0.2.1")))
	require.Equal(t, dns.RcodeServerFailure, query(t, "udp", address, "www.example.org.", dns.TypeA).Rcode, "no upstream")
	taken, err := New(s.Config)
	require.NoError(t, err)
	require.ErrorContains(t, taken.Run(t.Context()), "another DNS server")
}

func TestResolvConf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	f := newForwarder(nil, file, []string{"192.0.2.1:53"})
	require.Empty(t, f.upstreams(), "no file")
	write := func(text string, at time.Time) {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.NoError(t, os.Chtimes(file, at, at))
	}
	write("nameserver 192.0.2.1\nnameserver 192.0.2.2\n", time.Unix(1000, 0))
	require.Equal(t, []string{"192.0.2.2:53"}, f.upstreams(), "without ourselves")
	write("nameserver 192.0.2.3\n", time.Unix(2000, 0))
	require.Equal(t, []string{"192.0.2.3:53"}, f.upstreams(), "read again when changed")
}

func TestConfig(t *testing.T) {
	c := Config{}
	require.ErrorContains(t, c.Validate(), "client")
	c.Client = fakeClient{}
	require.ErrorContains(t, c.Validate(), "listen")
	c.Listen = []netip.AddrPort{Address(netip.MustParseAddr("192.0.2.1"))}
	require.NoError(t, c.Validate())
	c.Domain = "a..b"
	require.Error(t, c.Validate())
}

// FuzzLookup checks that no name makes the zone panic or return an inconsistent answer.
func FuzzLookup(f *testing.F) {
	z := testZone()
	f.Add("_http._tcp.db.default.svc.cluster.local.", dns.TypeSRV)
	f.Add("1.2.in-addr.arpa.", dns.TypePTR)
	f.Add(".cluster.local.", dns.TypeA)
	f.Fuzz(func(t *testing.T, name string, kind uint16) {
		r := z.lookup(dns.Question{Name: name, Qtype: kind, Qclass: dns.ClassINET}, maxRecords)
		if !r.ours && (len(r.answer) > 0 || r.rcode != 0) || r.rcode != 0 && len(r.answer) > 0 {
			t.Fatalf("%q: %+v", name, r)
		}
	})
}

func BenchmarkLookup(b *testing.B) {
	z := newZone("cluster.local")
	for i := range 5000 {
		z.setService(testService("default", fmt.Sprint("s", i), fmt.Sprintf("10.43.%d.%d", i/250, i%250+1)), true)
	}
	q := dns.Question{Name: "s4711.default.svc.cluster.local.", Qtype: dns.TypeA, Qclass: dns.ClassINET}
	for b.Loop() {
		if len(z.lookup(q, maxRecords).answer) != 1 {
			b.Fatal(errors.New("not found"))
		}
	}
}

// TestEndpointsOfAServiceAreBounded checks that a change of one slice stays cheap, however many endpoints a service
// has, and that nothing is left of a service that is gone.
func TestEndpointsOfAServiceAreBounded(t *testing.T) {
	z := newZone("cluster.local")
	headless := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "h"}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone},
	}
	z.setService(headless, true)
	var all []*discoveryv1.EndpointSlice
	for i := range 52 {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("h", i), Labels: map[string]string{
				discoveryv1.LabelServiceName: "h",
			}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for j := range 1000 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{
				fmt.Sprintf("10.42.%d.%d", 4*i+j/500, j%250), // each address twice
			}})
		}
		z.setSlice(s, true)
		all = append(all, s)
	}
	name := types.NamespacedName{Namespace: "a", Name: "h"}
	require.Len(t, z.hosts[name], maxHosts)
	require.Len(t, z.pointing[name], maxHosts/2)
	for _, s := range all {
		z.setSlice(s, false)
	}
	z.setService(headless, false)
	require.Empty(t, z.reverse)
	require.Empty(t, z.pointing)
	require.Empty(t, z.hosts)
}

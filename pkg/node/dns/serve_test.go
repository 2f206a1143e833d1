package dns

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/coracle-dev/coracle/pkg/base/connlimit"
)

func alias(name, to string) *corev1.Service {
	return testService("default", name, "", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, to
	})
}

func inCluster(name string) string { return name + ".default.svc.cluster.local" }

// TestExternalNamesEnd checks that loops and long chains of external names are answered.
func TestExternalNamesEnd(t *testing.T) {
	s, address := start(t, func(c *Config) { c.Upstreams = []string{} })
	s.zone.setService(alias("self", inCluster("self")), true)
	s.zone.setService(alias("a", inCluster("b")), true)
	s.zone.setService(alias("b", inCluster("a")), true)
	for i := range 9 {
		s.zone.setService(alias(fmt.Sprint("long", i), inCluster(fmt.Sprint("long", i+1))), true)
	}
	s.zone.setService(testService("default", "long9", "10.43.0.9"), true)
	for _, name := range []string{"self", "a", "long0"} {
		require.Equal(t, dns.RcodeServerFailure, query(t, "udp", address, inCluster(name)+".", dns.TypeA).Rcode, name)
		require.Len(t, query(t, "udp", address, inCluster(name)+".", dns.TypeCNAME).Answer, 1)
	}
	end := query(t, "udp", address, inCluster("long3")+".", dns.TypeA)
	require.Len(t, end.Answer, 7)
	require.Equal(t, "10.43.0.9", end.Answer[6].(*dns.A).A.String())
}

// TestAnUpstreamThatAsksUs checks that a query that an upstream sends back ends with the upstream's timeout, and
// that the cluster DNS address itself is not used as an upstream.
func TestAnUpstreamThatAsksUs(t *testing.T) {
	relay := ours(Port + 2)
	relayed := func(timeout time.Duration) func(*Config) {
		return func(c *Config) {
			c.Listen = append(c.Listen, relay)
			c.Upstreams = []string{relay.String()}
			c.upstreamTimeout = timeout
		}
	}
	t.Run("unknown", func(t *testing.T) {
		_, address := start(t, relayed(50*time.Millisecond))
		require.Equal(t, dns.RcodeServerFailure, query(t, "udp", address, "www.example.org.", dns.TypeA).Rcode)
	})
	t.Run("known", func(t *testing.T) {
		s, address := start(t, relayed(time.Hour)) // longer than the query's timeout
		s.zone.setService(testService(ServiceName.Namespace, ServiceName.Name, relay.Addr().String()), true)
		require.True(t, s.zone.isClusterDNS(relay.Addr()))
		require.Equal(t, dns.RcodeServerFailure, query(t, "udp", address, "www.example.org.", dns.TypeA).Rcode)
	})
}

// silent is an upstream that answers only after release.
func silent(t *testing.T) (address string, asked chan string, release func()) {
	conn, err := net.ListenPacket("udp", ours(Port+3).String())
	require.NoError(t, err)
	asked, done, go2 := make(chan string, 1000), make(chan struct{}), make(chan struct{})
	var waiting sync.WaitGroup
	go func() {
		defer close(done)
		buffer := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			m := new(dns.Msg)
			if m.Unpack(buffer[:n]) != nil {
				continue
			}
			asked <- m.Question[0].Name
			waiting.Go(func() {
				<-go2
				m.Response = true
				out, _ := m.Pack()
				_, _ = conn.WriteTo(out, from)
			})
		}
	}()
	release = sync.OnceFunc(func() { close(go2) })
	t.Cleanup(func() { release(); _ = conn.Close(); <-done; waiting.Wait() }) // once the loop starts no more
	return conn.LocalAddr().String(), asked, release
}

// TestOneClientDoesNotTakeAll checks that others are served while a client has its maximum number of queries in
// flight, and that identical queries are sent upstream once.
func TestOneClientDoesNotTakeAll(t *testing.T) {
	up, asked, release := silent(t)
	s, address := start(t, func(c *Config) { c.Upstreams = []string{up} })
	s.forward.timeout = time.Minute // none may time out before all have asked
	greedy, other := netip.MustParseAddr("10.42.0.2"), netip.MustParseAddr("10.42.0.3")
	ask := func(client netip.Addr, name string) *dns.Msg {
		m := new(dns.Msg)
		m.SetQuestion(name, dns.TypeA)
		return s.forward.ask(client, m)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer release()
	for i := range clientLimit {
		wg.Go(func() { ask(greedy, fmt.Sprintf("n%d.example.org.", i)) })
	}
	for range clientLimit {
		<-asked
	}
	require.Equal(t, dns.RcodeServerFailure, ask(greedy, "more.example.org.").Rcode)
	require.Len(t, query(t, "udp", address, inCluster("web")+".", dns.TypeA).Answer, 1)
	for range 10 {
		wg.Go(func() { ask(other, "one.example.org.") })
	}
	require.Equal(t, "one.example.org.", <-asked)
	require.Empty(t, asked)
	release()
	wg.Wait()
	require.Empty(t, s.forward.clients)
	require.Empty(t, s.forward.flights)
}

// TestManyClientsDoNotTakeAll checks that a client can ask however many others have as many queries in flight as they
// may.
func TestManyClientsDoNotTakeAll(t *testing.T) {
	f := newForwarder(nil, "", nil)
	client := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 42, 0, byte(n)}) }
	for n := range 110 { // the pods of a node
		held := 0
		for f.enter(client(n)) {
			held++
		}
		require.GreaterOrEqual(t, held, clientLeast, n)
		require.LessOrEqual(t, held, clientLimit)
	}
	require.Less(t, f.asked, forwardLimit+spareLimit)
	require.Less(t, f.asked, packetLimit)
	for n := range 110 {
		for range f.clients[client(n)] {
			f.leave(client(n))
		}
	}
	require.Empty(t, f.clients)
	require.Zero(t, f.asked)
}

// TestAnUpstreamsAnswerMustFit checks that an answer to another question is rejected.
func TestAnUpstreamsAnswerMustFit(t *testing.T) {
	q := new(dns.Msg)
	q.SetQuestion("www.example.org.", dns.TypeA)
	for name, c := range map[string]struct {
		change func(*dns.Msg)
		ok     bool
	}{
		"the same":        {func(*dns.Msg) {}, true},
		"another case":    {func(m *dns.Msg) { m.Question[0].Name = "WWW.example.org." }, true},
		"another name":    {func(m *dns.Msg) { m.Question[0].Name = "bank.example.org." }, false},
		"another type":    {func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA }, false},
		"no question":     {func(m *dns.Msg) { m.Question = nil }, false},
		"a question only": {func(m *dns.Msg) { m.Response = false }, false},
	} {
		a := q.Copy()
		a.Response = true
		c.change(a)
		require.Equal(t, c.ok, answers(q, a), name)
	}
}

// TestTheCacheIsBoundedInBytes checks that a few long answers fill the cache like many short ones.
func TestTheCacheIsBoundedInBytes(t *testing.T) {
	f := newForwarder(nil, "", nil)
	long := new(dns.Msg)
	long.SetQuestion("long.example.org.", dns.TypeA)
	for i := range 3000 {
		long.Answer = append(long.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: "long.example.org.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
			A:   net.IP{10, 0, byte(i >> 8), byte(i)},
		})
	}
	for i := range 300 {
		f.keep(question{name: fmt.Sprint(i)}, long)
		require.LessOrEqual(t, f.bytes, cacheBytes)
	}
	require.Greater(t, len(f.cache), 50)
	require.Len(t, f.cached(question{name: "299"}).Answer, 3000)
	for q := range f.cache {
		f.drop(q)
	}
	require.Zero(t, f.bytes)
}

// TestStreamsAreBounded checks that a client with idle connections does not lock out others.
func TestStreamsAreBounded(t *testing.T) {
	_, address := start(t, nil)
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range streamsPerClient {
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		open = append(open, c)
	}
	over, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer over.Close()
	_, err = over.Read(make([]byte, 1))
	require.Error(t, err, "closed by the server")
	host, _, _ := net.SplitHostPort(address)
	from := netip.MustParseAddr(host).Next()
	d := dns.Client{
		Net:     "tcp",
		Timeout: time.Minute,
		Dialer:  &net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))},
	}
	m := new(dns.Msg)
	m.SetQuestion(inCluster("web")+".", dns.TypeA)
	a, _, err := d.Exchange(m, address)
	require.NoError(t, err)
	require.Len(t, a.Answer, 1)
}

// TestAFloodOfOneClient checks that a client's query is served although another sends more than the server can answer.
func TestAFloodOfOneClient(t *testing.T) {
	s, address := start(t, func(c *Config) { c.Upstreams = []string{} })
	m := new(dns.Msg)
	m.SetQuestion(inCluster("web")+".", dns.TypeA)
	packet, err := m.Pack()
	require.NoError(t, err)
	to, err := net.ResolveUDPAddr("udp", address)
	require.NoError(t, err)
	client := func(last byte) net.PacketConn {
		c, err := net.ListenPacket("udp4", netip.AddrFrom4([4]byte{127, 0, 1, last}).String()+":0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	greedy, other := client(1), client(2)
	s.zone.mu.Lock() // as if each query took long
	unlock := sync.OnceFunc(s.zone.mu.Unlock)
	defer unlock()
	for range 5 * packetLimit {
		_, err := greedy.WriteTo(packet, to)
		require.NoError(t, err)
	}
	ask := func(query []byte, answers func(size int) bool) {
		t.Helper()
		for late := time.Now().Add(time.Minute); ; {
			require.True(t, time.Now().Before(late), "no answer")
			_, err := other.WriteTo(query, to) // again: the flood fills the buffer until it is read
			require.NoError(t, err)
			require.NoError(t, other.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
			if n, _, err := other.ReadFrom(make([]byte, dns.MinMsgSize)); err == nil && answers(n) {
				return
			}
		}
	}
	notification := make([]byte, headerSize)
	notification[2] = dns.OpcodeNotify << 3 // refused without the zone
	ask(notification, func(size int) bool { return size == headerSize })
	unlock()
	ask(packet, func(size int) bool { return size > len(packet) })
}

// TestStreamsOfManyClients checks that the pods of a node together leave connections to others.
func TestStreamsOfManyClients(t *testing.T) {
	streams := connlimit.NewShare[netip.Addr](streamLimit, streamsPerClient)
	client := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 42, 0, byte(n)}) }
	for range 2 { // the second time shows that everything was counted down
		var held [110]int
		for n := range held {
			for streams.Enter(client(n)) {
				held[n]++
			}
			require.GreaterOrEqual(t, held[n], connlimit.Few)
			require.LessOrEqual(t, held[n], streamsPerClient)
		}
		require.Equal(t, streamsPerClient, held[0])
		require.True(t, streams.Enter(client(200)))
		streams.Leave(client(200))
		for n, open := range held {
			for range open {
				streams.Leave(client(n))
			}
		}
	}
}

// TestAnswersThatCostTheSame checks that a response over UDP costs about the same for few endpoints and for many, and
// for an address of many services.
func TestAnswersThatCostTheSame(t *testing.T) {
	s, _ := start(t, func(c *Config) { c.Upstreams = []string{} })
	s.zone.setService(testService("default", "many", "None"), true)
	var all []string
	for i := range 5000 {
		all = append(all, fmt.Sprintf("10.44.%d.%d", i/250, i%250+1))
		name := fmt.Sprint("one", i)
		s.zone.setService(testService("default", name, "None"), true)
		s.zone.setSlice(testSlice("default", name, "10.45.0.1"), true)
	}
	s.zone.setSlice(testSlice("default", "many", all...), true)
	for name, kind := range map[string]uint16{
		inCluster("many") + ".": dns.TypeA, inCluster("many"): dns.TypeSRV, "1.0.45.10.in-addr.arpa.": dns.TypePTR,
	} {
		m := new(dns.Msg)
		m.SetQuestion(dns.Fqdn(name), kind)
		packet, err := m.Pack()
		require.NoError(t, err)
		require.Less(t, testing.AllocsPerRun(3, func() {
			s.respond(netip.MustParseAddr("10.42.0.2"), packet, true)
		}), 3000.0, name)
	}
}

// TestSlicesMadeByHand checks that all slices of a headless service count, each with its own ports.
func TestSlicesMadeByHand(t *testing.T) {
	z := newZone("cluster.local")
	z.setService(testService("default", "hand", "None"), true)
	for i, name := range []string{"http", "https"} {
		slice := testSlice("default", "hand", fmt.Sprintf("10.42.0.%d", i+1), "10.42.0.9 both", "10.42.0.10 off!")
		slice.Name = name
		port := int32(80 + i)
		slice.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port}}
		z.setSlice(slice, true)
	}
	ask := func(name string, kind uint16) result {
		return z.lookup(dns.Question{Name: name + inCluster("hand") + ".", Qtype: kind, Qclass: dns.ClassINET}, maxRecords)
	}
	require.Len(t, ask("", dns.TypeA).answer, 3, "each address once, and none that is not ready")
	require.Len(t, ask("", dns.TypeSRV).answer, 4)
	for i, name := range []string{"_http._tcp.", "_https._tcp."} {
		r := ask(name, dns.TypeSRV)
		require.Len(t, r.answer, 2, name)
		require.EqualValues(t, 80+i, r.answer[0].(*dns.SRV).Port)
		require.Len(t, r.extra, 2)
	}
	require.Len(t, ask("both.", dns.TypeA).answer, 1)
	require.Equal(t, dns.RcodeNameError, ask("off.", dns.TypeA).rcode)
}

package dns

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
)

// TestAPacketThatPanics checks that a panic yields SERVFAIL and that the next packet is served.
func TestAPacketThatPanics(t *testing.T) {
	s, address := start(t, func(c *Config) { c.Upstreams = []string{"127.0.0.1:1"} })
	s.forward.mu.Lock()
	s.forward.loops = func(netip.Addr) bool { panic("injected") }
	s.forward.mu.Unlock()
	for _, network := range []string{"udp", "tcp"} {
		require.Equal(t, dns.RcodeServerFailure, query(t, network, address, "www.example.org.", dns.TypeA).Rcode)
		require.Len(t, query(t, network, address, inCluster("web")+".", dns.TypeA).Answer, 1)
	}
	require.EqualValues(t, 2, s.guard.Panics())
	require.Empty(t, s.forward.flights)
	require.Empty(t, s.forward.clients)
}

// TestBrokenPackets checks that malformed packets are rejected or ignored, and that the answer for a service with
// many endpoints is truncated.
func TestBrokenPackets(t *testing.T) {
	s, address := start(t, func(c *Config) { c.Upstreams = []string{} })
	client := netip.MustParseAddr("127.0.0.1")
	q := new(dns.Msg)
	q.SetQuestion(inCluster("web")+".", dns.TypeA)
	whole, err := q.Pack()
	require.NoError(t, err)
	change := func(f func(p []byte)) []byte {
		p := append([]byte(nil), whole...)
		f(p)
		return p
	}
	loop := append(append([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, 0xc0, 12), 0, 1, 0, 1) // points to itself
	for name, c := range map[string]struct {
		packet []byte
		rcode  int // -1: no answer
	}{
		"whole":          {whole, dns.RcodeSuccess},
		"short":          {whole[:11], -1},
		"an answer":      {change(func(p []byte) { p[2] |= 0x80 }), -1},
		"an update":      {change(func(p []byte) { p[2] = dns.OpcodeUpdate << 3 }), dns.RcodeNotImplemented},
		"two questions":  {change(func(p []byte) { p[5] = 2 }), dns.RcodeFormatError},
		"many more":      {change(func(p []byte) { p[10], p[11] = 0xff, 0xff }), dns.RcodeFormatError},
		"cut":            {whole[:20], dns.RcodeFormatError},
		"loop":           {loop, dns.RcodeFormatError},
		"another class":  {change(func(p []byte) { p[len(p)-1] = 3 }), dns.RcodeRefused},
		"header alone":   {whole[:12], dns.RcodeFormatError},
		"rubbish behind": {append(change(func([]byte) {}), 1, 2, 3), dns.RcodeSuccess},
	} {
		out := s.respond(client, c.packet, true)
		if c.rcode < 0 {
			require.Nil(t, out, name)
			continue
		}
		require.GreaterOrEqual(t, len(out), headerSize, name)
		require.Equal(t, c.packet[:2], out[:2], name)
		require.Equal(t, c.rcode, int(out[3]&0xf), name)
	}
	s.zone.setService(testService("default", "many", "None"), true)
	var all []string
	for i := range 6000 {
		all = append(all, fmt.Sprintf("10.44.%d.%d", i/250, i%250+1))
	}
	s.zone.setSlice(testSlice("default", "many", all...), true)
	require.True(t, query(t, "udp", address, inCluster("many")+".", dns.TypeA).Truncated)
	byTCP := query(t, "tcp", address, inCluster("many")+".", dns.TypeA)
	require.Greater(t, len(byTCP.Answer), 4000)
	edns := new(dns.Msg)
	edns.SetQuestion(inCluster("many")+".", dns.TypeA)
	edns.SetEdns0(65535, false)
	packed, err := edns.Pack()
	require.NoError(t, err)
	require.LessOrEqual(t, len(s.respond(client, packed, true)), udpSize)
}

// FuzzPacket checks that no packet causes a panic, a missing response, or one that is too long. It also uses each
// packet as an upstream's response.
func FuzzPacket(f *testing.F) {
	s, err := New(Config{
		Client:    fakeClient{},
		Listen:    []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")},
		Upstreams: []string{},
	})
	require.NoError(f, err)
	s.zone = testZone()
	s.zone.setService(alias("self", inCluster("self")), true)
	for _, name := range []string{
		inCluster("web"), inCluster("self"), "_http._tcp." + inCluster("db"), "5.0.43.10.in-addr.arpa", "www.example.org",
	} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypePTR, dns.TypeANY} {
			m := new(dns.Msg)
			m.SetQuestion(name+".", kind)
			m.SetEdns0(4096, true)
			p, err := m.Pack()
			require.NoError(f, err)
			f.Add(p)
		}
	}
	f.Add([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1})
	client := netip.MustParseAddr("127.0.0.1")
	f.Fuzz(func(t *testing.T, packet []byte) {
		for _, udp := range []bool{true, false} {
			out := s.respond(client, packet, udp)
			if out == nil {
				continue
			}
			limit := dns.MaxMsgSize
			if udp {
				limit = udpSize
			}
			if len(out) < headerSize || len(out) > limit || out[2]&0x80 == 0 ||
				binary.BigEndian.Uint16(out) != binary.BigEndian.Uint16(packet) {
				t.Fatalf("%x is answered %x", packet, out)
			}
		}
		if n := s.guard.Panics(); n > 0 {
			t.Fatalf("%d panics", n)
		}
		// Only valid upstream responses are cached.
		if m := new(dns.Msg); m.Unpack(packet) == nil && len(m.Question) == 1 && answers(m, m) {
			key := question{name: m.Question[0].Name}
			s.forward.keep(key, m)
			if kept := s.forward.cached(key); kept != nil {
				_, _ = reply(m, kept).Pack()
			}
		}
	})
}

package dns

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/coracle-dev/coracle/pkg/base/run"
)

// metrics uses CoreDNS's names and labels. The label of other types and codes is "other".
type metrics struct {
	requests  [2][2]map[uint16]prometheus.Counter // by UDP, IPv4 and type
	responses map[int]prometheus.Counter
	duration  prometheus.Observer
}

// otherType and otherCode are the keys of the label "other". No message uses them: type 0 is reserved, and codes
// have four bits.
const (
	otherType uint16 = 0
	otherCode int    = -1
)

func newMetrics(reg prometheus.Registerer, guard *run.Guard) *metrics {
	with := promauto.With(reg)
	requests := with.NewCounterVec(prometheus.CounterOpts{
		Name: "coredns_dns_requests_total", Help: "Counter of DNS requests made per zone, protocol and family.",
	},
		[]string{"server", "zone", "view", "proto", "family", "type"})
	responses := with.NewCounterVec(prometheus.CounterOpts{
		Name: "coredns_dns_responses_total", Help: "Counter of response status codes.",
	},
		[]string{"server", "zone", "view", "rcode", "plugin"})
	duration := with.NewHistogramVec(prometheus.HistogramOpts{
		Name: "coredns_dns_request_duration_seconds", Help: "Histogram of the time (in seconds) each request took per zone.",
		Buckets: prometheus.ExponentialBuckets(0.00005, 4, 10),
	}, []string{"server", "zone", "view"})
	const server, zone = "dns://:53", "."
	m := &metrics{responses: map[int]prometheus.Counter{}, duration: duration.WithLabelValues(server, zone, "")}
	for i, proto := range []string{"tcp", "udp"} {
		for j, family := range []string{"2", "1"} {
			byType := map[uint16]prometheus.Counter{
				otherType: requests.WithLabelValues(server, zone, "", proto, family, "other"),
			}
			for _, t := range []uint16{
				dns.TypeA, dns.TypeAAAA, dns.TypeMX, dns.TypeSOA, dns.TypeCNAME, dns.TypePTR, dns.TypeTXT, dns.TypeNS, dns.TypeSRV,
				dns.TypeDS,
				dns.TypeDNSKEY, dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeHTTPS, dns.TypeIXFR, dns.TypeAXFR, dns.TypeANY,
			} {
				byType[t] = requests.WithLabelValues(server, zone, "", proto, family, dns.TypeToString[t])
			}
			m.requests[i][j] = byType
		}
	}
	for _, code := range []int{
		dns.RcodeSuccess, dns.RcodeFormatError, dns.RcodeServerFailure, dns.RcodeNameError, dns.RcodeNotImplemented,
		dns.RcodeRefused,
	} {
		m.responses[code] = responses.WithLabelValues(server, zone, "", dns.RcodeToString[code], "")
	}
	m.responses[otherCode] = responses.WithLabelValues(server, zone, "", "other", "")
	if reg != nil {
		reg.MustRegister(guard.Metrics())
	}
	return m
}

// answered counts a packet of at least headerSize bytes and its response, which is nil if there is none.
func (m *metrics) answered(began time.Time, client netip.Addr, packet, answer []byte, udp bool) {
	byType := m.requests[index(udp)][index(client.Is4())]
	c, ok := byType[questionType(packet)]
	if !ok {
		c = byType[otherType]
	}
	c.Inc()
	if len(answer) < headerSize {
		return
	}
	r, ok := m.responses[int(answer[3]&0xf)]
	if !ok {
		r = m.responses[otherCode]
	}
	r.Inc()
	m.duration.Observe(time.Since(began).Seconds())
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

// questionType returns the type of a packet's first question, or otherType if the packet is malformed.
func questionType(packet []byte) uint16 {
	i := headerSize
	for i < len(packet) && packet[i] != 0 {
		if packet[i] >= 0x40 { // a compressed name, which a question must not have
			return otherType
		}
		i += 1 + int(packet[i])
	}
	if i+3 > len(packet) {
		return otherType
	}
	return binary.BigEndian.Uint16(packet[i+1:])
}

package dns

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// result is the result of a lookup. If follow is set, the caller resolves that name next.
type result struct {
	ours   bool
	rcode  int
	answer []dns.RR
	extra  []dns.RR
	follow string
}

// lookup returns at most most records of each section.
func (z *zone) lookup(q dns.Question, most int) result {
	name := strings.ToLower(q.Name)
	z.mu.RLock()
	defer z.mu.RUnlock()
	if a, ok := reverseAddr(name); ok {
		return z.lookupReverse(q, a, most)
	}
	rest, ok := strings.CutSuffix(name, z.domain+".")
	if !ok || rest != "" && !strings.HasSuffix(rest, ".") {
		return notOurs
	}
	// The labels before the domain, from right to left.
	labels := strings.Split(strings.TrimSuffix(rest, "."), ".")
	if rest == "" {
		labels = nil
	}
	slices.Reverse(labels)
	switch {
	case len(labels) == 0:
		r := noRecord
		if q.Qtype == dns.TypeSOA {
			r.answer = []dns.RR{z.authority()}
		}
		return r
	case labels[0] == "dns-version" && len(labels) == 1:
		r := noRecord
		if q.Qtype == dns.TypeTXT {
			r.answer = []dns.RR{&dns.TXT{Hdr: header(q.Name, dns.TypeTXT), Txt: []string{"1.1.0"}}}
		}
		return r
	case labels[0] == "svc":
		return z.lookupService(q, labels[1:], most)
	case labels[0] == "pod":
		return lookupPod(q, labels[1:])
	}
	return noName
}

// lookupService resolves names below svc. Labels are from right to left: namespace, service, then an endpoint, or
// protocol and port.
func (z *zone) lookupService(q dns.Question, labels []string, most int) result {
	if len(labels) == 0 {
		return noRecord
	}
	if z.namespaces[labels[0]] == 0 {
		return noName
	}
	if len(labels) == 1 {
		return noRecord
	}
	name := types.NamespacedName{Namespace: labels[0], Name: labels[1]}
	s := z.services[name]
	if s == nil {
		return noName
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		if len(labels) > 2 {
			return noName
		}
		target := dns.Fqdn(s.Spec.ExternalName)
		return result{
			ours:   true,
			answer: []dns.RR{&dns.CNAME{Hdr: header(q.Name, dns.TypeCNAME), Target: target}},
			follow: target,
		}
	}
	found := z.hosts[name]
	switch len(labels) {
	case 2:
		if !headless(s) {
			return z.clusterIPs(q, s, most)
		}
		if len(found) == 0 {
			return noName
		}
		if q.Qtype == dns.TypeSRV {
			return z.portsOf(q, s, found, most, anyPort)
		}
		return hosts(q, found, most)
	case 3:
		if strings.HasPrefix(labels[2], "_") { // such as _tcp: names of ports may exist below it
			return noRecord
		}
		var named []endpoint
		for _, e := range found {
			if e.host == labels[2] {
				named = append(named, e)
			}
		}
		if len(named) == 0 {
			return noName
		}
		return hosts(q, named, most)
	case 4:
		protocol, isProtocol := strings.CutPrefix(labels[2], "_")
		port, isPort := strings.CutPrefix(labels[3], "_")
		if !isProtocol || !isPort {
			return noName
		}
		r := z.portsOf(q, s, found, most, func(name string, of corev1.Protocol) bool {
			return name == port && strings.EqualFold(string(of), protocol)
		})
		if len(r.answer) == 0 && r.rcode == dns.RcodeSuccess && q.Qtype == dns.TypeSRV {
			return noName
		}
		return r
	}
	return noName
}

func (z *zone) clusterIPs(q dns.Question, s *corev1.Service, most int) result {
	if q.Qtype == dns.TypeSRV {
		return z.portsOf(q, s, nil, most, anyPort)
	}
	r := noRecord
	seen := map[string]bool{}
	for _, ip := range append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...) {
		if a, err := netip.ParseAddr(ip); err == nil && !seen[ip] {
			seen[ip] = true
			r.answer = appendHost(r.answer, q, q.Name, a)
		}
	}
	return r
}

func anyPort(string, corev1.Protocol) bool { return true }

// portsOf returns the SRV records of the named ports that match: the ports of the service or, if it is headless, of
// its endpoints, whose slices may have other ports than the service.
func (z *zone) portsOf(q dns.Question, s *corev1.Service, found []endpoint, most int,
	match func(string, corev1.Protocol) bool) result {
	r := noRecord
	if q.Qtype != dns.TypeSRV {
		return r
	}
	most = min(most, maxServices)
	fqdn := z.fqdn(types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
	add := func(host string, port uint16, a netip.Addr) {
		r.answer = append(r.answer, &dns.SRV{Hdr: header(q.Name, dns.TypeSRV), Weight: 100, Port: port, Target: host})
		r.extra = appendHost(r.extra, dns.Question{Qtype: dns.TypeANY}, host, a)
	}
	if !headless(s) {
		for i := range s.Spec.Ports {
			p := &s.Spec.Ports[i]
			if a, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil && p.Name != "" && len(r.answer) < most &&
				match(p.Name, p.Protocol) {
				add(fqdn, uint16(p.Port), a)
			}
		}
		return r
	}
	looked := 0
	for _, e := range found {
		if looked += len(e.ports); len(r.answer) == most || looked > maxLooked {
			break
		}
		for _, p := range e.ports {
			protocol := corev1.ProtocolTCP
			if p.Protocol != nil {
				protocol = *p.Protocol
			}
			if p.Port != nil && p.Name != nil && *p.Name != "" && match(*p.Name, protocol) && len(r.answer) < most {
				add(e.host+"."+fqdn, uint16(*p.Port), e.addr)
			}
		}
	}
	return r
}

// maxRecords is the maximum number of records in a section, about as many addresses as fit into the longest message.
// packetRecords is more than fit into a UDP response, and maxServices about as many SRV records as fit into the longest
// message with their addresses.
const (
	maxRecords    = 4096
	packetRecords = 128
	maxServices   = 1024
	// maxLooked limits the ports of endpoints that a query for SRV records looks at: 1,000,000 take 10 ms.
	maxLooked = 1_000_000
)

// hosts returns the addresses of endpoints, each once. It starts at a random one to distribute clients.
func hosts(q dns.Question, found []endpoint, most int) result {
	r := noRecord
	first := rand.IntN(len(found))
	var last netip.Addr
	for i := range found {
		a := found[(first+i)%len(found)].addr
		// An endpoint may be in two slices, with different ports.
		if i > 0 && (a == last || a == found[first].addr) {
			continue
		}
		if last = a; len(r.answer) >= most {
			break
		}
		r.answer = appendHost(r.answer, q, q.Name, a)
	}
	return r
}

// lookupPod resolves 1-2-3-4.namespace.pod, whether or not such a pod exists.
func lookupPod(q dns.Question, labels []string) result {
	switch len(labels) {
	case 0, 1:
		return noRecord
	case 2:
		a, err := netip.ParseAddr(strings.ReplaceAll(labels[1], "-", "."))
		if err != nil {
			a, err = netip.ParseAddr(strings.ReplaceAll(labels[1], "-", ":"))
		}
		if err == nil {
			r := noRecord
			r.answer = appendHost(nil, q, q.Name, a)
			return r
		}
	}
	return noName
}

func (z *zone) lookupReverse(q dns.Question, a netip.Addr, most int) result {
	names := z.reverse[a][:min(len(z.reverse[a]), most)]
	if len(names) == 0 {
		return notOurs
	}
	r := noRecord
	if q.Qtype == dns.TypePTR || q.Qtype == dns.TypeANY {
		for _, p := range names {
			r.answer = append(r.answer, &dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: p.name})
		}
	}
	return r
}

// reverseAddr returns the address in a name such as 4.3.2.1.in-addr.arpa. (RFC 1035, section 3.5).
func reverseAddr(name string) (netip.Addr, bool) {
	rest, ok := strings.CutSuffix(name, ".in-addr.arpa.")
	if !ok {
		return netip.Addr{}, false
	}
	labels := strings.Split(rest, ".")
	slices.Reverse(labels)
	a, err := netip.ParseAddr(strings.Join(labels, "."))
	return a, err == nil && a.Is4()
}

func appendHost(records []dns.RR, q dns.Question, name string, a netip.Addr) []dns.RR {
	switch {
	case a.Is4() && (q.Qtype == dns.TypeA || q.Qtype == dns.TypeANY):
		return append(records, &dns.A{Hdr: header(name, dns.TypeA), A: a.AsSlice()})
	case a.Is6() && (q.Qtype == dns.TypeAAAA || q.Qtype == dns.TypeANY):
		return append(records, &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: a.AsSlice()})
	}
	return records
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

// authority returns the SOA record, which determines the TTL of negative responses.
func (z *zone) authority() dns.RR {
	return &dns.SOA{Hdr: header(z.domain+".", dns.TypeSOA), Ns: fmt.Sprintf("ns.dns.%s.", z.domain),
		Mbox: fmt.Sprintf("hostmaster.%s.", z.domain), Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl}
}

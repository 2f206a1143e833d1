package dns

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// used returns the processor time of the process.
func used() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestCostOfHeadlessServices measures two services of a tenant, whose 100 slices have 1,000 endpoints each, all with
// the same address, and 2,000 ports.
func TestCostOfHeadlessServices(t *testing.T) {
	z := newZone("cluster.local")
	var ports []discoveryv1.EndpointPort
	for i := range 2000 {
		name, port := fmt.Sprint("p", i), int32(80)
		ports = append(ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
	}
	slice := func(service string, n int) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: ports,
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint(service, n),
				Labels: map[string]string{discoveryv1.LabelServiceName: service}}}
		for e := range 1000 {
			host := fmt.Sprintf("h%d-%d", n, e)
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}, Hostname: &host})
		}
		return s
	}
	for _, service := range []string{"one", "two"} {
		for n := range 100 {
			z.setSlice(slice(service, n), true)
		}
		z.setService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: service},
			Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}, true)
	}
	cost := func(what string, most time.Duration, do func()) {
		before := used()
		do()
		took := used() - before
		t.Log(what, took)
		require.Less(t, took, most, what)
	}
	cost("a change of a slice", time.Second, func() { z.setSlice(slice("two", 0), true) })
	for _, name := range []string{"one", "_p1999._tcp.one", "_none._tcp.one", "h99-999.one"} {
		for _, kind := range []uint16{dns.TypeSRV, dns.TypeA} {
			q := dns.Question{Name: name + ".a.svc.cluster.local.", Qtype: kind}
			cost(fmt.Sprint(name, kind), 100*time.Millisecond, func() { z.lookup(q, maxRecords) })
		}
	}
	cost("reverse", 100*time.Millisecond, func() {
		z.lookup(dns.Question{Name: "1.0.0.10.in-addr.arpa.", Qtype: dns.TypePTR}, maxRecords)
	})
}

package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// big returns the state of 5,000 services with three endpoints each, one in ten with a node port.
func big() (*state, []types.NamespacedName) {
	s := newState()
	plans := map[types.NamespacedName]*servicePlan{}
	var names []types.NamespacedName
	for i := range 5000 {
		name := types.NamespacedName{Namespace: "default", Name: fmt.Sprint("s", i)}
		plans[name] = bigPlan(i, 3, nil)
		names = append(names, name)
	}
	s.apply(plans)
	return s, names
}

func bigPlan(i, endpoints int, before *servicePlan) *servicePlan {
	name := fmt.Sprint("s", i)
	svc := service(name, fmt.Sprintf("10.43.%d.%d", 1+i/250, 1+i%250), func(s *corev1.Service) {
		if i%10 == 0 {
			s.Spec.Type = corev1.ServiceTypeNodePort
			s.Spec.Ports[0].NodePort = 30000 + int32(i/10)
		}
	})
	var all []string
	for e := range endpoints {
		all = append(all, fmt.Sprintf("10.42.%d.%d@n%d", 1+(i+e)/250%250, 1+(i+e)%250, e))
	}
	return plan(testNode, svc, []*discoveryv1.EndpointSlice{slice(name, 8080, all...)}, before)
}

func benchKernel(b *testing.B) *kernel {
	c := &Config{Prefix: "bench", NodeIP: nodeAddr, ServiceCIDR: serviceCIDR, ClusterCIDR: clusterCIDR}
	k, err := newKernel(c)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, k.reset()); require.NoError(b, k.close()) })
	return k
}

// BenchmarkFullSync writes 5,000 services in one transaction, as at startup.
func BenchmarkFullSync(b *testing.B) {
	k := benchKernel(b)
	s, _ := big()
	for b.Loop() {
		require.NoError(b, k.replace(s.everything()))
	}
}

// BenchmarkUpdate changes one of 5,000 services: "scale" adds or removes an endpoint, "move" replaces all endpoints.
func BenchmarkUpdate(b *testing.B) {
	k := benchKernel(b)
	s, names := big()
	require.NoError(b, k.replace(s.everything()))
	for _, c := range []struct {
		name   string
		change func(i int) *servicePlan
	}{
		{"scale", func(i int) *servicePlan { return bigPlan(i%5000, 2+i/5000%3, s.plans[names[i%5000]]) }},
		{"move", func(i int) *servicePlan {
			p := bigPlan(i%5000, 3, s.plans[names[i%5000]])
			for _, to := range p.backends {
				to.endpoints = slices.Clone(to.endpoints)
				to.endpoints[i%3] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 42, 255, byte(i)}), 8080)
			}
			return p
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var worst time.Duration
			for i := 0; b.Loop(); i++ {
				began := time.Now()
				d := s.apply(map[types.NamespacedName]*servicePlan{names[i%5000]: c.change(i)})
				require.NoError(b, k.update(d))
				worst = max(worst, time.Since(began))
			}
			b.ReportMetric(float64(worst.Microseconds()), "worst-us")
		})
	}
}

// BenchmarkLarge moves one of the 1,000 endpoints of a service with a node port.
func BenchmarkLarge(b *testing.B) {
	k := benchKernel(b)
	s, _ := big()
	require.NoError(b, k.replace(s.everything()))
	name := types.NamespacedName{Namespace: "default", Name: "large"}
	svc := service(name.Name, "10.43.0.10", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 31080
	})
	var endpoints []string
	for i := range 1000 {
		endpoints = append(endpoints, fmt.Sprintf("10.42.%d.%d@n2", i/250, 1+i%250))
	}
	for i := 0; b.Loop(); i++ {
		endpoints[i%1000] = fmt.Sprintf("10.42.%d.%d@n2", 4+i/250%250, 1+i%250)
		d := s.apply(map[types.NamespacedName]*servicePlan{
			name: plan(testNode, svc, []*discoveryv1.EndpointSlice{slice(name.Name, 8080, endpoints...)}, s.plans[name]),
		})
		require.NoError(b, k.update(d))
	}
}

// BenchmarkConnect sends the first packet of a connection to one of 5,000 services, from the node.
func BenchmarkConnect(b *testing.B) {
	w := newWorld(b)
	for i := range 5000 {
		w.objects.deliver(nil, service(fmt.Sprint("s", i), fmt.Sprintf("10.43.%d.%d", 1+i/250, 1+i%250)))
		w.objects.deliver(nil, slice(fmt.Sprint("s", i), 8080, "10.42.200.1@n2", "10.42.200.2@n2", "10.42.200.3@n2"))
	}
	udp := corev1.ProtocolUDP
	for i, change := range []func(*corev1.Service){
		func(s *corev1.Service) {},
		func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080 },
		func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4"}
		},
		func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
	} {
		name := fmt.Sprint("u", i)
		w.objects.deliver(nil,
			service(name, fmt.Sprint("10.43.0.", 10+i), change, func(s *corev1.Service) { s.Spec.Ports[0].Protocol = udp }))
		endpoints := slice(name, 8080, "10.42.200.1@n2", "10.42.200.2@n2", "10.42.200.3@n2")
		endpoints.Ports[0].Protocol = &udp
		w.objects.deliver(nil, endpoints)
	}
	w.start()
	for _, c := range []struct{ name, to string }{
		{"none", "10.42.200.1:8080"},
		{"cluster", "10.43.0.10:80"},
		{"node", nodeAddr.String() + ":30080"},
		{"external", "10.43.0.12:80"},
		{"affinity", "10.43.0.13:80"},
	} {
		b.Run(c.name, func(b *testing.B) {
			require.NoError(b, netlink.ConntrackTableFlush(netlink.ConntrackTable))
			to := unix.SockaddrInet4{}
			at := netip.MustParseAddrPort(c.to)
			to.Addr, to.Port = at.Addr().As4(), int(at.Port())
			for b.Loop() {
				s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
				must(err)
				must(unix.Sendto(s, []byte("?"), 0, &to))
				must(unix.Close(s))
			}
		})
	}
}

func BenchmarkPlan(b *testing.B) {
	s, names := big()
	for i := 0; b.Loop(); i++ {
		s.apply(map[types.NamespacedName]*servicePlan{names[i%5000]: bigPlan(i%5000, 2+i%2, s.plans[names[i%5000]])})
	}
}

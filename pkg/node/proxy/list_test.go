package proxy

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/test/netns"
)

// TestNftListsAll checks that nft can list a table with every kind of service, including the services' names.
func TestNftListsAll(t *testing.T) {
	w := newWorld(t)
	a, client := w.pod("a"), w.pod("client")
	many := []string{a.String() + "@n1"}
	for i := range 100 {
		many = append(many, fmt.Sprintf("10.42.1.%d@n2", i+1))
	}
	local := corev1.ServiceInternalTrafficPolicyLocal
	further := func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.99.0.10", []string{"10.99.0.10"} }
	for i, c := range []struct {
		endpoints []string
		change    func(*corev1.Service)
	}{
		{many, func(*corev1.Service) {}},
		{many[:1], func(s *corev1.Service) {
			s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}},
		{many, func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4"}
		}},
		{many[:2], func(s *corev1.Service) {
			pooled("192.168.77.50")(s)
			s.Spec.Ports[0].NodePort = 30081
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "192.168.77.9/32", "203.0.113.128/25"}
		}},
		{many[1:], func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = &local
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP},
				corev1.ServicePort{Name: "sctp", Port: 53, Protocol: corev1.ProtocolSCTP})
		}},
		{many[:1], further},
	} {
		name := fmt.Sprint("s", i)
		w.objects.deliver(nil, service(name, fmt.Sprint("10.43.0.1", i), c.change))
		w.objects.deliver(nil, slice(name, 8080, c.endpoints...))
	}
	w.objects.deliver(nil, &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.99.0.0/24"}},
	})
	w.start()
	_, err := w.ask("client", "tcp", "10.43.0.11:80")
	require.NoError(t, err)
	text := netns.Listing(t)
	for _, want := range []string{
		`10.99.0.10 . tcp . 80 comment "default/s5" : goto endpoints-1-`,
		`10.43.0.10 . tcp . 80 comment "default/s0" : goto endpoints-101-`,
		`10.43.0.10 . tcp . 80 . 0x00000064 : `,
		`198.51.100.4 . tcp . 80 comment "default/s2" : goto backend-default/s2/TCP/80`,
		`192.168.77.50 . tcp . 80 comment "default/s3" : goto backend-default/s3/TCP/80`,
		`10.43.0.14 . sctp . 53 comment "default/s4" : goto refused`,
		`192.168.77.50 . tcp . 80 . 203.0.113.128/25`,
		"dnat ip to ip daddr . meta l4proto . th dport . numgen inc mod 101 map @endpoints",
		"goto refused comment \"a cluster IP or port that no service has\"",
	} {
		require.Contains(t, text, want)
	}
	require.Regexp(t, client.String()+` timeout 3h expires .* : `+a.String(), text)
}

// TestOtherLayout checks that a table from another version is replaced completely.
func TestOtherLayout(t *testing.T) {
	for name, table := range map[string]string{
		"a set with the name of one of ours": "map endpoints { type mark . mark . mark : ipv4_addr . inet_service\n }",
		"other sets":                         "set old { type ipv4_addr\n }\nchain any-3-17 { ip daddr @old drop\n }",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := w.pod("a")
			w.objects.deliver(nil, service("web", "10.43.0.10"))
			w.objects.deliver(nil, slice("web", 8080, a.String()+"@n1"))
			w.start()
			w.stop()
			text := netns.Listing(t)
			load := exec.Command("nft", "-f", "-")
			load.Stdin = strings.NewReader("delete table ip coracle_proxy\ntable ip coracle_proxy {\n" + table +
				"\nchain prerouting { type nat hook prerouting priority dstnat;\n drop\n }\n}\n")
			out, err := load.CombinedOutput()
			require.NoError(t, err, "%s", out)
			w.start()
			_, err = w.ask("", "tcp", "10.43.0.10:80")
			require.NoError(t, err)
			require.Equal(t, text, netns.Listing(t))
		})
	}
}

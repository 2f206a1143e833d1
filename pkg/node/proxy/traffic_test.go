package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/test/netns"
)

func TestMain(m *testing.M) { netns.Main(m) }

var (
	nodeAddr    = netip.MustParseAddr("192.168.77.1")
	serviceCIDR = netip.MustParsePrefix("10.43.0.0/16")
	clusterCIDR = netip.MustParsePrefix("10.42.0.0/16")
)

func TestTraffic(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.pod("a"), w.pod("b"), w.pod("c")
	client := w.pod("client")
	web := service("web", "10.43.0.10", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = 30080
		s.Spec.ExternalIPs = []string{"198.51.100.1"}
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP})
	})
	endpoints := slice("web", 8080, a.String()+"@n1", b.String()+"@n1", c.String()+"@n1")
	udp, name := corev1.ProtocolUDP, "udp"
	endpoints.Ports = append(endpoints.Ports, discoveryv1.EndpointPort{
		Name: &name, Protocol: &udp, Port: endpoints.Ports[0].Port,
	})
	w.objects.deliver(nil, web)
	w.objects.deliver(nil, endpoints)
	w.objects.deliver(nil, service("empty", "10.43.0.11"))
	w.start()

	inTurn := func(where, proto, to string, seen netip.Addr) {
		t.Helper()
		got := map[string]int{}
		for range 9 {
			answer, err := w.ask(where, proto, to)
			require.NoError(t, err, "%s -> %s", where, to)
			pod, from, _ := strings.Cut(answer, " ")
			got[pod]++
			require.Equal(t, seen.String(), from, "%s -> %s", where, to)
		}
		require.Equal(t, map[string]int{"a": 3, "b": 3, "c": 3}, got, "%s -> %s: in turn", where, to)
	}
	outside := netip.MustParseAddr("192.168.77.9")
	inTurn("client", "tcp", "10.43.0.10:80", client)
	inTurn("client", "udp", "10.43.0.10:53", client)
	inTurn("", "tcp", "10.43.0.10:80", nodeAddr)
	inTurn("", "udp", "10.43.0.10:53", nodeAddr)
	inTurn("outside", "tcp", "10.43.0.10:80", nodeAddr)
	inTurn("", "tcp", nodeAddr.String()+":30080", nodeAddr)
	inTurn("", "tcp", "127.0.0.1:30080", nodeAddr)
	inTurn("client", "tcp", nodeAddr.String()+":30080", nodeAddr)
	inTurn("outside", "tcp", nodeAddr.String()+":30080", nodeAddr)
	inTurn("outside", "tcp", "198.51.100.1:80", nodeAddr)
	inTurn("client", "tcp", "198.51.100.1:80", nodeAddr)
	_ = outside

	for range 6 { // "a" sees the node's address if it reaches itself; others see the address of "a"
		answer, err := w.ask("a", "tcp", "10.43.0.10:80")
		require.NoError(t, err)
		require.Contains(t, []string{"a " + nodeAddr.String(), "b " + a.String(), "c " + a.String()}, answer)
	}
	for _, where := range []string{"", "client", "outside"} {
		for _, to := range []string{"10.43.0.11:80", "10.43.0.10:81", "10.43.99.99:80"} {
			_, err := w.ask(where, "tcp", to)
			require.ErrorIs(t, err, unix.ECONNREFUSED, "%s -> %s", where, to)
			_, err = w.ask(where, "udp", to)
			if where == "" { // the kernel does not send at all
				require.ErrorIs(t, err, unix.EPERM, "%s -> %s", where, to)
			} else {
				require.ErrorIs(t, err, unix.ECONNREFUSED, "%s -> %s", where, to)
			}
		}
	}

	// Another process takes over while connections are made continuously, without a failure.
	stop := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := w.ask("", "tcp", "10.43.0.10:80"); err != nil {
				t.Error("during the restart:", err)
				return
			}
		}
	})
	for range 5 {
		w.stop()
		w.start()
	}
	close(stop)
	asking.Wait()

	w.objects.deliver(endpoints, slice("web", 8080, b.String()+"@n1"))
	w.settle()
	for range 4 {
		answer, err := w.ask("client", "tcp", "10.43.0.10:80")
		require.NoError(t, err)
		require.Equal(t, "b "+client.String(), answer)
	}
	w.objects.deliver(web, nil)
	w.settle()
	_, err := w.ask("outside", "tcp", nodeAddr.String()+":30080")
	require.ErrorIs(t, err, unix.ECONNREFUSED)
}

// TestPortsOfProcesses checks that a service on the node's address does not take a port from a process of the machine,
// and gets it once the process has ended.
func TestPortsOfProcesses(t *testing.T) {
	w := newWorld(t)
	l, err := net.Listen("tcp4", ":8070")
	require.NoError(t, err)
	defer l.Close()
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "process ")
			_ = c.Close()
		}
	})
	defer done.Wait()
	defer l.Close()
	for port, name := range map[int32]string{8070: "a", 8071: "b"} {
		w.objects.deliver(nil, service(name, fmt.Sprint("10.43.0.1", port-8070), onPort(port),
			external(nodeAddr.String())))
		w.objects.deliver(nil, slice(name, 8080, w.pod(name).String()+"@n1"))
	}
	w.start()
	for to, want := range map[string]string{":8070": "process", ":8071": "b"} {
		answer, err := w.ask("outside", "tcp", nodeAddr.String()+to)
		require.NoError(t, err)
		who, _, _ := strings.Cut(answer, " ")
		require.Equal(t, want, who)
	}
	require.NoError(t, l.Close())
	require.Eventually(t, func() bool {
		answer, err := w.ask("outside", "tcp", nodeAddr.String()+":8070")
		return err == nil && strings.HasPrefix(answer, "a ")
	}, patience, 10*time.Millisecond)
}

// TestFurtherRanges checks that cluster IPs of a ServiceCIDR are routed and rejected like Config.ServiceCIDR, unless
// machines have addresses in the range.
func TestFurtherRanges(t *testing.T) {
	w := newWorld(t)
	a, client := w.pod("a"), w.pod("client")
	ranges := func(cidrs ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
		}
	}
	further := ranges("10.99.0.0/24")
	w.objects.deliver(nil, further)
	w.objects.deliver(nil, service("web", "10.99.0.10"))
	w.objects.deliver(nil, slice("web", 8080, a.String()+"@n1"))
	w.start()
	routed := func(address string) bool {
		routes, err := netlink.RouteGet(net.ParseIP(address))
		require.NoError(t, err)
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		return routes[0].LinkIndex == lo.Attrs().Index
	}
	for where, from := range map[string]netip.Addr{"client": client, "": nodeAddr} {
		answer, err := w.ask(where, "tcp", "10.99.0.10:80")
		require.NoError(t, err)
		require.Equal(t, "a "+from.String(), answer)
		_, err = w.ask(where, "tcp", "10.99.0.77:80")
		require.ErrorIs(t, err, unix.ECONNREFUSED)
	}
	require.True(t, routed("10.99.0.77"))

	wide := ranges("192.168.77.0/25") // the node's network
	w.objects.deliver(further, wide)
	w.settle()
	require.False(t, routed("10.99.0.77"))
	require.True(t, routed("10.43.0.77"))
	require.False(t, routed("192.168.77.9"))
	answer, err := w.ask("client", "tcp", "10.99.0.10:80") // the service still works
	require.NoError(t, err)
	require.Equal(t, "a "+client.String(), answer)
	w.objects.deliver(wide, nil)
	w.settle()
	require.True(t, routed("10.43.0.77"))
}

// TestUDPForgets checks that a UDP client stays with its endpoint while that serves, as with TCP, and gets another
// one when it is removed, even if another program deleted the table.
func TestUDPForgets(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.pod("client")
	udp := corev1.ProtocolUDP
	svc := service("dns", "10.43.0.10", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = udp })
	at := func(endpoints ...string) *discoveryv1.EndpointSlice {
		s := slice("dns", 8080, endpoints...)
		s.Ports[0].Protocol = &udp
		return s
	}
	w.objects.deliver(nil, svc)
	w.objects.deliver(nil, at(a.String()+"@n1"))
	w.start()
	var c net.Conn
	require.NoError(t, w.in("client", func() (err error) { c, err = net.Dial("udp4", "10.43.0.10:80"); return err }))
	defer func() { _ = c.Close() }()
	ask := func(want string) {
		t.Helper()
		answer, err := exchange(c) // always from the same socket
		require.NoError(t, err)
		require.Contains(t, answer, want)
	}
	ask("a ")
	w.objects.deliver(nil, at(a.String()+"@n1~", b.String()+"@n1"))
	w.settle()
	ask("a ")
	answer, err := w.ask("client", "udp", "10.43.0.10:80")
	require.NoError(t, err)
	require.Contains(t, answer, "b ")
	near := at(a.String()+"@n1", b.String()+"@n1")
	for i, node := range []string{"n2", "n1"} {
		near.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: node}}}
	}
	w.objects.deliver(nil, near)
	w.settle()
	ask("a ")
	k, err := newKernel(&w.proxy.Config)
	require.NoError(t, err)
	require.NoError(t, errors.Join(k.reset(), k.close()))
	w.objects.deliver(nil, at(b.String()+"@n1"))
	w.settle()
	ask("b ")
}

func TestLocalPolicy(t *testing.T) {
	w := newWorld(t)
	a := w.pod("a")
	client := w.pod("client")
	free, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	healthPort := free.Addr().(*net.TCPAddr).Port
	require.NoError(t, free.Close())
	svc := service("web", "10.43.0.10", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.Ports[0].NodePort = 30080
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort = int32(healthPort)
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
	})
	w.objects.deliver(nil, svc)
	w.objects.deliver(nil, slice("web", 8080, a.String()+"@n1"))
	w.start()
	for where, seen := range map[string]string{
		"outside": "192.168.77.9",
		"client":  client.String(),
		"":        nodeAddr.String(),
	} {
		for _, to := range []string{nodeAddr.String() + ":30080", "198.51.100.1:80"} {
			answer, err := w.ask(where, "tcp", to)
			require.NoError(t, err, "%s -> %s", where, to)
			require.Equal(t, "a "+seen, answer, "the client's address is kept")
		}
	}
	answer, err := w.ask("", "tcp", "127.0.0.1:30080")
	require.NoError(t, err)
	require.Equal(t, "a "+nodeAddr.String(), answer)
	check := func(status int) {
		t.Helper()
		r, err := http.Get("http://127.0.0.1:" + strconv.Itoa(healthPort))
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, status, r.StatusCode)
	}
	check(200)
	// As if the pod were on another node: outside clients are not served here, inside clients are.
	w.objects.deliver(nil, slice("web", 8080, a.String()+"@n2"))
	w.settle()
	_, err = w.askWithin(soon, "outside", "tcp", nodeAddr.String()+":30080")
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout())
	for _, where := range []string{"client", ""} {
		_, err = w.ask(where, "tcp", nodeAddr.String()+":30080")
		require.NoError(t, err)
	}
	check(503)
	http.DefaultClient.CloseIdleConnections()
}

// TestRepair checks that after another program deleted the table, the next change restores all of it.
func TestRepair(t *testing.T) {
	w := newWorld(t)
	a := w.pod("a")
	w.objects.deliver(nil, service("web", "10.43.0.10"))
	w.objects.deliver(nil, slice("web", 8080, a.String()+"@n1"))
	w.start()
	k, err := newKernel(&w.proxy.Config)
	require.NoError(t, err)
	require.NoError(t, errors.Join(k.reset(), k.close()))
	_, err = w.askWithin(soon, "", "tcp", "10.43.0.10:80")
	require.Error(t, err)
	w.objects.deliver(nil, service("other", "10.43.0.11"))
	require.Eventually(t, func() bool {
		_, err := w.askWithin(soon, "", "tcp", "10.43.0.10:80")
		return err == nil
	}, patience, 10*time.Millisecond)
}

func TestReset(t *testing.T) {
	w := newWorld(t)
	rules := func() string {
		out, err := exec.Command("sh", "-c", "nft list tables; ip route show table all | grep -v fe80").CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	before := rules()
	w.objects.deliver(nil, service("web", "10.43.0.10"))
	w.start()
	running := rules()
	require.NotEqual(t, before, running)
	w.stop()
	require.Equal(t, running, rules(), "stopping leaves services working")
	require.NoError(t, Reset(context.Background(), Config{Prefix: "another"}))
	require.Equal(t, running, rules(), "another installation's reset is not ours")
	require.NoError(t, w.proxy.Reset(context.Background()))
	require.Equal(t, before, rules())
	require.NoError(t, w.proxy.Reset(context.Background()), "may be repeated")
}

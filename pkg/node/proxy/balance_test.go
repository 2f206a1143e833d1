package proxy

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func machineNode(name, ip string, ready bool) *corev1.Node {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}}}
}

func pooled(ip string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}}
		s.Status.Conditions = []metav1.Condition{{Type: conditionPool, Status: metav1.ConditionTrue, Reason: reasonPool}}
	}
}

// TestHolder checks that an address has one holder, with endpoints if any node has some, and that removing a node
// moves only that node's addresses.
func TestHolder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := slices.Sorted(slices.Values(rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,3}`), 1, 6, rapid.ID).
			Draw(t, "nodes")))
		var endpoints []string
		with := map[string]bool{}
		for _, n := range nodes {
			switch rapid.IntRange(0, 2).Draw(t, "endpoint") {
			case 0:
				endpoints = append(endpoints, "10.42.0.1@"+n)
				with[n] = true
			case 1:
				endpoints = append(endpoints, "10.42.0.2@"+n+"!")
			}
		}
		slices := []*discoveryv1.EndpointSlice{slice("a", 80, endpoints...)}
		a := netip.AddrFrom4([4]byte{192, 0, 2, rapid.Byte().Draw(t, "address")})
		is := holder(a, nodes, slices)
		if len(with) > 0 && !with[is] {
			t.Fatalf("%s has no endpoints", is)
		}
		gone := rapid.SampledFrom(nodes).Draw(t, "gone")
		var left []string
		for _, n := range nodes {
			if n != gone {
				left = append(left, n)
			}
		}
		if gone != is && (len(with) != 1 || !with[gone]) && holder(a, left, slices) != is {
			t.Fatalf("the address moves from %s though %s went", is, gone)
		}
		if len(left) == 0 && holder(a, left, slices) != "" {
			t.Fatal("nobody is left")
		}
	})
}

func TestSources(t *testing.T) {
	for _, c := range []struct {
		ranges     []string
		want       []string
		restricted bool
	}{
		{},
		{ranges: []string{"0.0.0.0/0"}, want: []string{"0.0.0.0/0"}},
		{
			ranges: []string{"10.1.2.3/32", "10.0.0.0/8", "10.0.0.0/8", "192.0.2.77/24"},
			want:   []string{"10.0.0.0/8", "192.0.2.0/24"}, restricted: true,
		},
		{ranges: []string{" 192.0.2.0/24", "10.0.0.0/8 "}, want: []string{"10.0.0.0/8", "192.0.2.0/24"}, restricted: true},
		{ranges: []string{"fd00::/8"}, restricted: true},
		{ranges: slices.Repeat([]string{"0.0.0.0/0"}, maxSources+1), restricted: true},
	} {
		got, restricted, err := sources(service("a", "10.43.0.5", func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = c.ranges
		}))
		require.Equal(t, len(c.ranges) > maxSources, err != nil)
		var texts []string
		for _, p := range got {
			texts = append(texts, p.String())
		}
		require.Equal(t, c.want, texts)
		require.Equal(t, c.restricted, restricted)
		if len(c.ranges) > 0 && slices.Index(c.ranges, "0.0.0.0/0") < 0 {
			again, restricted, err := sources(service("a", "10.43.0.5", func(s *corev1.Service) {
				s.Annotations = map[string]string{
					"service.beta.kubernetes.io/load-balancer-source-ranges": strings.Join(c.ranges, ", "),
				}
			}))
			require.NoError(t, err)
			require.Equal(t, got, again, "as an annotation")
			require.True(t, restricted)
		}
	}
}

// TestPoolAddress checks that machines on the link reach a service by its pool address while this node holds it,
// that source ranges apply, and that ports the service does not have are rejected.
func TestPoolAddress(t *testing.T) {
	const vip = "192.168.77.50"
	w := newWorld(t)
	pod := w.pod("a")
	client := w.pod("client")
	lb := service("lb", "10.43.0.10", pooled(vip))
	w.objects.deliver(nil, lb)
	w.objects.deliver(nil, slice("lb", 8080, pod.String()+"@n1"))
	self := machineNode("n1", nodeAddr.String(), true)
	w.objects.deliver(nil, self)
	w.start()

	seen := func(where, want string) {
		t.Helper()
		answer, err := w.ask(where, "tcp", vip+":80")
		require.NoError(t, err)
		require.Equal(t, "a "+want, answer)
	}
	seen("outside", nodeAddr.String())
	seen("", nodeAddr.String())
	seen("client", nodeAddr.String())
	seen("a", nodeAddr.String())
	for _, where := range []string{"outside", "", "client"} {
		_, err := w.ask(where, "tcp", vip+":81")
		require.ErrorIs(t, err, unix.ECONNREFUSED, where)
	}

	local := lb.DeepCopy()
	local.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	local.Spec.LoadBalancerSourceRanges = []string{"192.168.77.9/32", client.String() + "/32"}
	w.objects.deliver(lb, local)
	w.settle()
	seen("outside", "192.168.77.9")
	seen("client", client.String())
	for _, where := range []string{"", "a"} {
		_, err := w.askWithin(soon, where, "tcp", vip+":80")
		require.Error(t, err, where)
	}
	answer, err := w.ask("", "tcp", "10.43.0.10:80")
	require.NoError(t, err, "source ranges are about the address of the load balancer: %s", answer)

	others := local.DeepCopy()
	others.Spec.LoadBalancerSourceRanges = []string{
		"203.0.113.0/24", "192.168.77.10/31", "192.168.77.0/29", client.String() + "/32",
	}
	w.objects.deliver(local, others)
	w.settle()
	_, err = w.askWithin(soon, "outside", "tcp", vip+":80")
	require.Error(t, err)
	seen("client", client.String())

	// Another node with the service's only ready endpoint takes over the address.
	w.objects.deliver(others, lb)
	w.objects.deliver(nil, machineNode("n2", "192.168.77.2", true))
	w.objects.deliver(nil, slice("lb", 8080, pod.String()+"@n2"))
	w.settle()
	require.False(t, w.answers(vip))
	w.objects.deliver(nil, machineNode("n2", "192.168.77.2", false))
	w.settle()
	w.isAnswered(vip, "it is back from a node that is not ready")
	w.stop()
	require.False(t, w.answers(vip), "nobody answers for a process that is gone")
	w.start()
	w.isAnswered(vip, "the next process answers")
	w.objects.deliver(lb, nil)
	w.settle()
	require.False(t, w.answers(vip))
}

// isAnswered retries until a machine answers ARP for an address. The kernel waits only a fraction of a second for
// the answer, which a busy machine may exceed.
func (w *world) isAnswered(ip, why string) {
	w.t.Helper()
	for end := time.Now().Add(patience); !w.answers(ip); {
		require.True(w.t, time.Now().Before(end), why)
	}
}

func (w *world) answers(ip string) (found bool) {
	must(w.in("outside", func() error {
		h, err := netlink.NewHandle()
		must(err)
		defer h.Close()
		out, err := h.LinkByName("out0")
		must(err)
		neighbors, err := h.NeighList(out.Attrs().Index, netlink.FAMILY_V4)
		must(err)
		for _, n := range neighbors {
			if n.IP.String() == ip {
				must(h.NeighDel(&n))
			}
		}
		must(os.WriteFile("/proc/sys/net/ipv4/neigh/out0/retrans_time_ms", []byte("50"), 0))
		c, err := net.Dial("udp4", ip+":9")
		must(err)
		defer func() { _ = c.Close() }()
		_, _ = c.Write([]byte("?"))
		require.Eventually(w.t, func() bool {
			neighbors, err := h.NeighList(out.Attrs().Index, netlink.FAMILY_V4)
			must(err)
			for _, n := range neighbors {
				if n.IP.String() == ip && n.State&(netlink.NUD_REACHABLE|netlink.NUD_FAILED) != 0 {
					found = n.State == netlink.NUD_REACHABLE
					return true
				}
			}
			return false
		}, patience, 5*time.Millisecond)
		return nil
	}))
	return found
}

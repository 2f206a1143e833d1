package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func external(addresses ...string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.ExternalIPs = addresses }
}

func created(second int64) func(*corev1.Service) {
	return func(s *corev1.Service) { s.CreationTimestamp = metav1.NewTime(time.Unix(second, 0)) }
}

func onPort(port int32) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports[0].Port = port }
}

// TestPortsInUse: a service does not take a port of this node from a process that has it already, and keeps a port that
// it had before the process.
func TestPortsInUse(t *testing.T) {
	node := testNode
	node.Addresses = []netip.Addr{netip.MustParseAddr("192.168.77.1")}
	node.InUse = func(f Frontend) bool { return f.Port == 8080 }
	claims := func(before *servicePlan, port int32, on ...string) *servicePlan {
		return plan(node, service("a", "10.43.0.5", onPort(port), func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.ExternalIPs = on[:1]
			s.Spec.Ports[0].NodePort = 8080
			for _, ip := range on {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
			}
		}), []*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.1.3@n2")}, before)
	}
	at := func(ip string, port uint16) Frontend {
		return Frontend{netip.MustParseAddr(ip), unix.IPPROTO_TCP, port}
	}
	p := claims(nil, 8080, "192.168.77.2", "198.51.100.1")
	require.Contains(t, p.frontends, at("192.168.77.2", 8080), "another machine's")
	require.Contains(t, p.frontends, at("198.51.100.1", 8080))
	require.Empty(t, p.refused)

	node.Addresses = append(node.Addresses, netip.MustParseAddr("192.168.77.3"))
	p = claims(nil, 8080, "192.168.77.3")
	require.Contains(t, p.refused,
		"port 8080 of 192.168.77.3 is in use by a process of this machine: end it or choose another port")
	require.Equal(t, byNodePort, p.frontends[at("192.168.77.3", 8080)].class, "the API server allocates node ports")
	require.Empty(t, claims(nil, 8081, "192.168.77.3").refused)
	before := claims(nil, 8082, "192.168.77.3")
	node.InUse = func(Frontend) bool { return true }
	require.Empty(t, claims(before, 8082, "192.168.77.3").refused)
	require.NotEmpty(t, claims(nil, 8082, "192.168.77.3").refused)
}

// TestAddressesOfOtherNodes checks that a node leaves connections to the addresses of other nodes alone: an external
// address or load balancer of that address does not take them from a process there.
func TestAddressesOfOtherNodes(t *testing.T) {
	node := testNode
	own, other := netip.MustParseAddr("192.168.77.1"), netip.MustParseAddr("192.168.77.2")
	node.Addresses, node.Guarded = []netip.Addr{own}, &Guarded{Nodes: map[netip.Addr]bool{own: true, other: true}}
	for _, change := range []func(*corev1.Service){
		external(own.String(), other.String()),
		func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: own.String()}, {IP: other.String()}}
		},
	} {
		p := plan(node, service("a", "10.43.0.5", onPort(5432), change),
			[]*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.1.3@n2")}, nil)
		require.Contains(t, p.frontends, Frontend{own, unix.IPPROTO_TCP, 5432})
		require.NotContains(t, p.frontends, Frontend{other, unix.IPPROTO_TCP, 5432})
		require.Empty(t, p.refused, "the other node reports conflicts")
	}
}

func TestWhatIsGuarded(t *testing.T) {
	node := testNode
	node.Guarded = &Guarded{
		Ranges: []netip.Prefix{serviceCIDR, clusterCIDR}, Ports: []uint16{22, 6443, 10250},
		Nodes: map[netip.Addr]bool{netip.MustParseAddr("192.168.77.1"): true, netip.MustParseAddr("192.168.77.2"): true},
		API:   map[netip.AddrPort]bool{netip.MustParseAddrPort("192.0.2.1:443"): true},
	}
	for _, c := range []struct {
		address string
		port    int32
		refused string
	}{
		{"198.51.100.1", 22, ""},
		{"192.168.77.1", 443, ""},
		{"192.168.77.1", 22, "port 22 of 192.168.77.1 is the node's own"},
		{"192.168.77.2", 10250, "port 10250 of 192.168.77.2 is the node's own"},
		{"192.0.2.1", 443, "192.0.2.1:443 is the API server"},
		{"192.0.2.1", 444, ""},
		{"10.43.0.10", 53, "10.43.0.10 is in the cluster's own range 10.43.0.0/16"},
		{"10.42.3.4", 80, "10.42.3.4 is in the cluster's own range 10.42.0.0/16"},
		{"169.254.169.254", 80, "169.254.169.254 is not an address that clients can reach"},
		{"127.0.0.1", 80, "127.0.0.1 is not an address that clients can reach"},
	} {
		byIngress := func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: c.address}}
		}
		for _, change := range []func(*corev1.Service){external(c.address), byIngress} {
			p := plan(node, service("a", "10.43.0.5", onPort(c.port), change),
				[]*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.1.3@n2")}, nil)
			_, has := p.frontends[Frontend{netip.MustParseAddr(c.address), 6, uint16(c.port)}]
			require.Equal(t, c.refused == "", has, "%s:%d", c.address, c.port)
			if c.refused != "" {
				require.Equal(t, []string{c.refused}, p.refused)
			}
			require.Contains(t, p.frontends, Frontend{netip.MustParseAddr("10.43.0.5"), 6, uint16(c.port)},
				"the rest of the service works")
		}
	}
}

// TestWhoHasAFrontend checks that only a frontend's owner has elements for it, however services are added, changed
// and deleted.
func TestWhoHasAFrontend(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	wanted := Frontend{netip.MustParseAddr("10.43.0.1"), 6, 80} // a's cluster IP
	rapid.Check(t, func(t *rapid.T) {
		s, kernel := newState(), newModel()
		there := map[string]*corev1.Service{}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "name")
			i := slices.Index(names, name)
			svc := service(name, fmt.Sprint("10.43.0.", 1+i), created(rapid.Int64Range(0, 2).Draw(t, "created")))
			if rapid.Bool().Draw(t, "local") {
				svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}
			if i > 0 {
				svc.Spec.ExternalIPs = []string{wanted.Addr.String()}
			}
			if rapid.IntRange(0, 2).Draw(t, "gone") == 0 {
				svc = nil
			}
			there[name] = svc
			key := types.NamespacedName{Namespace: "default", Name: name}
			endpoints := []*discoveryv1.EndpointSlice{slice(name, 8080, fmt.Sprintf("10.42.0.%d@n2", 1+i))}
			kernel.apply(t, s.apply(map[types.NamespacedName]*servicePlan{key: plan(testNode, svc, endpoints, s.plans[key])}))

			var all []*corev1.Service
			for _, name := range names {
				if there[name] != nil {
					all = append(all, there[name])
				}
			}
			slices.SortFunc(all, func(x, y *corev1.Service) int {
				if x.Name == "a" || y.Name == "a" {
					return cmp.Compare(x.Name, y.Name)
				}
				return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
			})
			get := func(of set) (string, bool) {
				c, ok := kernel.elements[element{of, wanted.key()}]
				if of.verdicts() && ok {
					require.Equal(t, all[0].Name, c.service.Name)
				}
				return c.value, ok
			}
			if len(all) == 0 {
				for of := range setCount {
					_, ok := get(of)
					require.False(t, ok)
				}
				continue
			}
			owner := all[0]
			own := plan(testNode, owner,
				[]*discoveryv1.EndpointSlice{
					slice(owner.Name, 8080, fmt.Sprintf("10.42.0.%d@n2", 1+slices.Index(names, owner.Name))),
				}, nil).elements(nil)
			for _, of := range []set{setServices, setInside, setMasquerade} {
				want, has := own[element{of, wanted.key()}]
				got, ok := get(of)
				require.Equal(t, has, ok, "set %d of %s", of, owner.Name)
				require.Equal(t, want, got)
			}
			for _, loser := range all[1:] {
				require.NotEmpty(t, s.complaints(types.NamespacedName{Namespace: "default", Name: loser.Name}))
			}
			require.Empty(t, s.complaints(types.NamespacedName{Namespace: "default", Name: owner.Name}))
		}
	})
}

// TestServicesOfOtherProxies checks that a service or slice with the label of another proxy is ignored, and served
// again without the label. A service that claims guarded addresses gets an event.
func TestServicesOfOtherProxies(t *testing.T) {
	w := newWorld(t)
	a := w.pod("a")
	w.pod("client")
	ours, theirs := service("web", "10.43.0.10"), service("web", "10.43.0.10", func(s *corev1.Service) {
		s.Labels = map[string]string{labelProxyName: ""}
	})
	seen := slice("web", 8080, a.String()+"@n1")
	unseen := seen.DeepCopy()
	unseen.Labels[corev1.IsHeadlessService] = ""
	w.objects.deliver(nil, ours)
	w.objects.deliver(nil, seen)
	w.start()
	up := func() {
		t.Helper()
		w.settle()
		answer, err := w.ask("client", "tcp", "10.43.0.10:80")
		require.NoError(t, err)
		require.Contains(t, answer, "a ")
	}
	down := func() {
		t.Helper()
		w.settle()
		_, err := w.askWithin(soon, "client", "tcp", "10.43.0.10:80")
		require.Error(t, err)
	}
	up()
	w.objects.deliver(ours, theirs)
	down()
	w.objects.deliver(theirs, ours)
	up()
	w.objects.deliver(seen, unseen)
	down()
	w.objects.deliver(unseen, seen)
	up()
	thief := service("thief", "10.43.0.11", external("10.43.0.10", nodeAddr.String()), func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	w.objects.deliver(nil, thief)
	w.objects.deliver(nil, slice("thief", 8081, a.String()+"@n1"))
	up()
	require.Eventually(t, func() bool {
		w.objects.mu.Lock()
		defer w.objects.mu.Unlock()
		return slices.ContainsFunc(w.objects.events, func(e *corev1.Event) bool {
			return e.Reason == "ExternalAddressRefused" && e.InvolvedObject.Name == "thief"
		})
	}, patience, time.Millisecond)
	w.stop()
}

// TestAnExpensivePlanRests checks that a service with an expensive plan is planned again only after a rest, and then
// with its last change.
func TestAnExpensivePlanRests(t *testing.T) {
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.pod("client")
	var began, ended []time.Time
	w.change = func(p *Proxy) {
		p.plan = func(n Node, s *corev1.Service, e []*discoveryv1.EndpointSlice, before *servicePlan) *servicePlan {
			began = append(began, time.Now())
			for time.Since(began[len(began)-1]) <= expensive {
				runtime.Gosched()
			}
			defer func() { ended = append(ended, time.Now()) }()
			return plan(n, s, e, before)
		}
	}
	w.objects.deliver(nil, service("web", "10.43.0.10"))
	w.objects.deliver(nil, slice("web", 8080, a.String()+"@n1"))
	w.start()
	for _, to := range []netip.Addr{b, a, b} {
		w.objects.deliver(nil, slice("web", 8080, to.String()+"@n1"))
	}
	w.settle()
	answer, err := w.ask("client", "tcp", "10.43.0.10:80")
	require.NoError(t, err)
	require.Contains(t, answer, "b ")
	w.stop()
	require.GreaterOrEqual(t, len(began), 2)
	for i := range began[1:] {
		require.GreaterOrEqual(t, began[i+1].Sub(ended[i]), restFactor*expensive)
	}
}

// TestAPlanThatPanics checks that a service whose plan panics keeps its rules while others are served, and that a
// sync that panics starts again.
func TestAPlanThatPanics(t *testing.T) {
	w := newWorld(t)
	a := w.pod("a")
	w.pod("client")
	w.objects.deliver(nil, service("web", "10.43.0.10"))
	w.objects.deliver(nil, slice("web", 8080, a.String()+"@n1"))
	panics := 0
	w.change = func(p *Proxy) {
		p.plan = func(n Node, s *corev1.Service, e []*discoveryv1.EndpointSlice, before *servicePlan) *servicePlan {
			if s != nil && s.Name == "bad" {
				panics++
				panic("injected")
			}
			if s != nil && s.Name == "worse" && panics < 2 {
				panics++
				return nil // makes sync panic outside of plan
			}
			return plan(n, s, e, before)
		}
	}
	w.start()
	w.objects.deliver(nil, service("bad", "10.43.0.11"))
	w.objects.deliver(nil, service("good", "10.43.0.12"))
	w.objects.deliver(nil, slice("good", 8080, a.String()+"@n1"))
	for _, to := range []string{"10.43.0.10:80", "10.43.0.12:80"} {
		w.settle()
		_, err := w.ask("client", "tcp", to)
		require.NoError(t, err)
	}
	w.objects.deliver(nil, service("worse", "10.43.0.13"))
	w.objects.deliver(nil, slice("worse", 8080, a.String()+"@n1"))
	require.Eventually(t, func() bool {
		_, err := w.askWithin(soon, "client", "tcp", "10.43.0.13:80")
		return err == nil
	}, patience, 10*time.Millisecond)
	_, err := w.ask("client", "tcp", "10.43.0.12:80")
	require.NoError(t, err)
	w.stop()
}

package loadbalancer

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func service(name string, age int, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         "ns",
			Name:              name,
			CreationTimestamp: metav1.NewTime(now.Add(-time.Duration(age) * time.Second)),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func has(reason string, ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Finalizers = []string{finalizer}
		s.Status.Conditions = []metav1.Condition{
			{Type: Condition, Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.NewTime(now)},
		}
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{
				IP: ip, IPMode: ptr.To(corev1.LoadBalancerIPModeVIP),
			})
		}
	}
}

func class(c string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &c }
}
func asks(ip string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerIP = ip }
}
func port(n int32) func(*corev1.Service) { return func(s *corev1.Service) { s.Spec.Ports[0].Port = n } }
func udp(s *corev1.Service)              { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }
func local(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}
func deleted(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: now} }
func plain(s *corev1.Service)   { s.Spec.Type = corev1.ServiceTypeClusterIP }

func node(name, ip string, ready bool, labels ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, l := range labels {
		n.Labels[l] = ""
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	return n
}

// outcome returns each service's addresses or condition message after a plan.
func outcome(services []*corev1.Service, changes []Change) map[string]string {
	out := map[string]string{}
	put := func(s *corev1.Service) {
		text := ""
		for _, i := range s.Status.LoadBalancer.Ingress {
			text += i.IP + " "
		}
		if c := meta.FindStatusCondition(s.Status.Conditions, Condition); c != nil {
			text += c.Message
		}
		out[s.Name] = text
	}
	for _, s := range services {
		put(s)
	}
	for _, c := range changes {
		put(c.Next)
	}
	return out
}

func TestPlan(t *testing.T) {
	pool := []config.AddressRange{{First: netip.MustParseAddr("192.0.2.1"), Last: netip.MustParseAddr("192.0.2.3")}}
	nodes := []*corev1.Node{
		node("b", "198.51.100.3", true), node("a", "198.51.100.2", true), node("c", "198.51.100.4", false),
		node("d", "198.51.100.5", true, corev1.LabelNodeExcludeBalancers),
		node("in-pool", "192.0.2.2", true, corev1.LabelNodeExcludeBalancers),
	}
	for _, c := range []struct {
		name     string
		services []*corev1.Service
		noPool   bool
		noNodes  bool
		disabled bool
		ingress  []uint16
		want     map[string]string
	}{
		{
			name:     "the oldest first, and not a node's address",
			services: []*corev1.Service{service("young", 1), service("old", 2)},
			want:     map[string]string{"old": "192.0.2.1 ", "young": "192.0.2.3 "},
		},
		{
			name:     "kept, though another is older",
			services: []*corev1.Service{service("young", 1, has(ReasonPool, "192.0.2.1")), service("old", 2)},
			want:     map[string]string{"old": "192.0.2.3 ", "young": "192.0.2.1 "},
		},
		{
			name: "two with the same address",
			services: []*corev1.Service{
				service("young", 1, has(ReasonPool, "192.0.2.1")), service("old", 2, has(ReasonPool, "192.0.2.1")),
			},
			want: map[string]string{"old": "192.0.2.1 ", "young": "192.0.2.3 "},
		},
		{name: "full", services: []*corev1.Service{service("a", 3), service("b", 2), service("c", 1)},
			want: map[string]string{"a": "192.0.2.1 ", "b": "192.0.2.3 ", "c": "the pool has no free address"}},
		{
			name: "an address asked for",
			services: []*corev1.Service{
				service("a", 3), service("b", 2, asks("192.0.2.1")), service("c", 1, asks("203.0.113.1")),
				service("d", 0, asks("192.0.2.2")), service("e", 4, asks("192.0.2.3")),
			},
			want: map[string]string{
				"a": "192.0.2.1 ",
				"b": "loadBalancerIP 192.0.2.1 belongs to service ns/a",
				"c": "loadBalancerIP 203.0.113.1 is not in the pool",
				"d": "loadBalancerIP 192.0.2.2 is the address of a node",
				"e": "192.0.2.3 ",
			},
		},
		{
			name:     "asked for another than it has",
			services: []*corev1.Service{service("a", 3, has(ReasonPool, "192.0.2.1"), asks("192.0.2.3"))},
			want:     map[string]string{"a": "192.0.2.3 "},
		},
		{
			name: "no longer in the pool", services: []*corev1.Service{service("a", 3, has(ReasonPool, "203.0.113.1"))},
			want: map[string]string{"a": "192.0.2.1 "},
		},
		{
			name: "of another class",
			services: []*corev1.Service{
				service("a", 1, class("example.com/x")), service("b", 2, class(ClassPool)), service("c", 3, class(ClassNodes)),
			},
			want: map[string]string{"a": "", "b": "192.0.2.1 ", "c": "198.51.100.2 198.51.100.3 "},
		},
		{name: "no pool", noPool: true, services: []*corev1.Service{service("a", 1), service("b", 2, class(ClassPool))},
			want: map[string]string{
				"a": "198.51.100.2 198.51.100.3 ",
				"b": "no pool of addresses is configured: start the server with --load-balancer-pool",
			}},
		{
			name: "ports of nodes", noPool: true,
			services: []*corev1.Service{
				service("a", 2), service("b", 1), service("c", 1, udp), service("d", 1, port(6443)), service("e", 1, port(81)),
				service("f", 3, udp, has(ReasonNodes)),
			},
			want: map[string]string{
				"a": "198.51.100.2 198.51.100.3 ", "b": "port 80/TCP of the nodes belongs to service ns/a",
				"c": "port 80/UDP of the nodes belongs to service ns/f",
				"d": "port 6443/TCP is used by the nodes themselves", "e": "198.51.100.2 198.51.100.3 ",
				"f": "198.51.100.2 198.51.100.3 ",
			},
		},
		{
			name: "only nodes with endpoints", noPool: true, services: []*corev1.Service{service("a", 2, local)},
			want: map[string]string{"a": "198.51.100.3 "},
		},
		{
			name: "one node's address", noPool: true,
			services: []*corev1.Service{service("a", 2, asks("198.51.100.3")), service("b", 1, port(81), asks("203.0.113.9"))},
			want:     map[string]string{"a": "198.51.100.3 ", "b": "loadBalancerIP 203.0.113.9 is not the address of a node"},
		},
		{
			name: "ports of Ingresses", noPool: true, ingress: []uint16{80, 443},
			services: []*corev1.Service{
				service("has", 1, port(443), has(ReasonNodes)), service("new", 2), service("udp", 2, udp),
			},
			want: map[string]string{
				"has": "198.51.100.2 198.51.100.3 ",
				"new": "port 80/TCP of the nodes is used for Ingresses: use another port, or an Ingress",
				"udp": "198.51.100.2 198.51.100.3 ",
			},
		},
		{
			name: "no nodes", noPool: true, noNodes: true, services: []*corev1.Service{service("a", 2)},
			want: map[string]string{"a": ""},
		},
		{
			name: "given back",
			services: []*corev1.Service{
				service("a", 2, has(ReasonPool, "192.0.2.1"), deleted), service("b", 1, has(ReasonPool, "192.0.2.3"), plain),
				service("c", 0),
			},
			want: map[string]string{"a": "", "b": "", "c": "192.0.2.1 "},
		},
		{
			name: "disabled", disabled: true,
			services: []*corev1.Service{service("a", 2, has(ReasonPool, "192.0.2.1")), service("b", 1)},
			want:     map[string]string{"a": "", "b": ""},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := Observed{
				Services: c.services, Nodes: nodes, Pool: pool, Reserved: []uint16{6443}, Disabled: c.disabled,
				IngressPorts: c.ingress,
				Local:        func(*corev1.Service) map[string]bool { return map[string]bool{"b": true, "c": true} },
			}
			if c.noPool {
				o.Pool = nil
			}
			if c.noNodes {
				o.Nodes = nil
			}
			changes := Plan(o, now)
			require.Equal(t, c.want, outcome(c.services, changes))
			for _, ch := range changes {
				require.NotEmpty(t, ch.Events)
				wants := ch.Next.DeletionTimestamp == nil && ch.Next.Spec.Type == corev1.ServiceTypeLoadBalancer && !c.disabled
				require.Equal(t, wants, len(ch.Next.Finalizers) == 1,
					"the finalizer is there as long as there may be something to clean up")
				for _, i := range ch.Next.Status.LoadBalancer.Ingress {
					require.Equal(t, corev1.LoadBalancerIPModeVIP, *i.IPMode)
				}
			}
		})
	}
}

// TestNothingIsGivenTwice: over any history of services, no two have the same address or node port. A service
// keeps a valid address, and a second plan changes nothing.
func TestNothingIsGivenTwice(t *testing.T) {
	pool := []config.AddressRange{
		{First: netip.MustParseAddr("192.0.2.1"), Last: netip.MustParseAddr("192.0.2.4")},
		{First: netip.MustParseAddr("203.0.113.7"), Last: netip.MustParseAddr("203.0.113.7")},
	}
	nodes := []*corev1.Node{node("a", "198.51.100.2", true), node("b", "198.51.100.3", true)}
	rapid.Check(t, func(t *rapid.T) {
		services := map[string]*corev1.Service{}
		for step := range rapid.IntRange(1, 30).Draw(t, "steps") {
			name := fmt.Sprint("s", rapid.IntRange(0, 8).Draw(t, "service"))
			if services[name] != nil && rapid.Bool().Draw(t, "delete") {
				delete(services, name)
			} else if services[name] == nil {
				services[name] = service(name, -step, port(int32(rapid.IntRange(80, 82).Draw(t, "port"))), func(s *corev1.Service) {
					if rapid.Bool().Draw(t, "nodes") {
						s.Spec.LoadBalancerClass = ptr.To(ClassNodes)
					} else if rapid.Bool().Draw(t, "asks") {
						s.Spec.LoadBalancerIP = fmt.Sprint("192.0.2.", rapid.IntRange(1, 6).Draw(t, "ip"))
					}
				})
			}
			o := Observed{Nodes: nodes, Pool: pool}
			for _, s := range services {
				o.Services = append(o.Services, s)
			}
			for _, c := range Plan(o, now) {
				if holding(c.Was) == 1 && c.Next.DeletionTimestamp == nil {
					t.Fatalf("%s had %v and lost it", c.Was.Name, c.Was.Status.LoadBalancer)
				}
				services[c.Was.Name] = c.Next
			}
			seen := map[string]string{}
			for _, s := range services {
				for _, i := range s.Status.LoadBalancer.Ingress {
					key := i.IP
					if s.Spec.LoadBalancerClass != nil {
						key = fmt.Sprint(key, s.Spec.Ports[0].Port)
					}
					if seen[key] != "" {
						t.Fatalf("%s belongs to %s and %s", key, seen[key], s.Name)
					}
					seen[key] = s.Name
				}
			}
			o.Services = nil
			for _, s := range services {
				o.Services = append(o.Services, s)
			}
			if again := Plan(o, now.Add(time.Hour)); len(again) > 0 {
				t.Fatalf("a second plan changes %s: %v, %v", again[0].Was.Name, again[0].Was.Status, again[0].Next.Status)
			}
		}
	})
}

package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var testNode = Node{
	Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr("192.168.77.1"), netip.MustParseAddr("127.0.0.1")},
}

func service(name, ip string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}}}}
	for _, c := range change {
		c(s)
	}
	return s
}

// slice parses endpoints of the form address@node with optional marks: ! not ready, ~ terminating and serving.
func slice(service string, port int32, endpoints ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      service + "-1",
			Labels:    map[string]string{discoveryv1.LabelServiceName: service},
		},
		Ports: []discoveryv1.EndpointPort{{Port: &port}}}
	for _, text := range endpoints {
		var e discoveryv1.Endpoint
		yes, no := true, false
		e.Conditions.Ready = &yes
		switch text[len(text)-1] {
		case '!':
			e.Conditions.Ready = &no
			text = text[:len(text)-1]
		case '~':
			e.Conditions.Ready, e.Conditions.Serving, e.Conditions.Terminating = &no, &yes, &yes
			text = text[:len(text)-1]
		}
		var address, node string
		for i, c := range text {
			if c == '@' {
				address, node = text[:i], text[i+1:]
			}
		}
		e.Addresses, e.NodeName = []string{address}, &node
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// describe prints a plan as lines: frontend -> endpoints or verdict.
func describe(p *servicePlan) []string {
	var lines []string
	put := func(label string, m map[Frontend]action) {
		for f, a := range m {
			line := fmt.Sprintf("%s%s:%d/%d ->", label, f.Addr, f.Port, f.Protocol)
			switch a.verdict {
			case reject:
				line += " reject"
			case drop:
				line += " drop"
			default:
				b := p.backends[a.backend]
				for _, e := range b.endpoints {
					line += " " + e.String()
				}
				if b.affinity > 0 {
					line += fmt.Sprintf(" affinity %d", b.affinity)
				}
			}
			if p.masquerade[f] {
				line += " masquerade"
			}
			lines = append(lines, line)
		}
	}
	put("", p.frontends)
	put("inside ", p.inside)
	for a := range p.hairpin {
		lines = append(lines, "hairpin "+a.String())
	}
	if p.healthPort != 0 {
		lines = append(lines, fmt.Sprintf("health %d: %d", p.healthPort, p.healthCount))
	}
	slices.Sort(lines)
	return lines
}

func TestPlan(t *testing.T) {
	nodePort := func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = 30080
	}
	outsideLocal := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	insideLocal := func(s *corev1.Service) {
		l := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &l
	}
	loadBalancer := func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.HealthCheckNodePort = 31000
		proxied := corev1.LoadBalancerIPModeProxy
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
			{IP: "203.0.113.5"}, {IP: "203.0.113.6", IPMode: &proxied}, {Hostname: "x"},
		}
	}
	for _, c := range []struct {
		name      string
		service   *corev1.Service
		endpoints []*discoveryv1.EndpointSlice
		want      []string
	}{
		{"gone", nil, nil, nil},
		{"headless", service("a", "None"), nil, nil},
		{
			"external name", service("a", "", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }), nil,
			nil,
		},
		{
			"another proxy's",
			service("a", "10.43.0.5", func(s *corev1.Service) {
				s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"}
			}), nil, nil,
		},
		{"no endpoints", service("a", "10.43.0.5"), nil, []string{"10.43.0.5:80/6 -> reject"}},
		{"ready ones of both nodes", service("a", "10.43.0.5"),
			[]*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.0.3@n1", "10.42.1.3@n2", "10.42.0.4@n1!", "10.42.0.5@n1~")},
			[]string{"10.43.0.5:80/6 -> 10.42.0.3:8080 10.42.1.3:8080", "hairpin 10.42.0.3"}},
		{"terminating ones if no other is ready", service("a", "10.43.0.5"),
			[]*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.1.3@n2~", "10.42.1.4@n2!")},
			[]string{"10.43.0.5:80/6 -> 10.42.1.3:8080"}},
		{"the same endpoint in two slices", service("a", "10.43.0.5"),
			[]*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.1.3@n2"), slice("a", 8080, "10.42.1.3@n2")},
			[]string{"10.43.0.5:80/6 -> 10.42.1.3:8080"}},
		{"node port", service("a", "10.43.0.5", nodePort), []*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.1.3@n2")},
			[]string{
				"10.43.0.5:80/6 -> 10.42.1.3:8080", "127.0.0.1:30080/6 -> 10.42.1.3:8080 masquerade",
				"192.168.77.1:30080/6 -> 10.42.1.3:8080 masquerade",
			}},
		{
			"external traffic policy without local endpoints", service("a", "10.43.0.5", nodePort, outsideLocal),
			[]*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.1.3@n2")},
			[]string{"10.43.0.5:80/6 -> 10.42.1.3:8080", "127.0.0.1:30080/6 -> drop", "192.168.77.1:30080/6 -> drop",
				"inside 127.0.0.1:30080/6 -> 10.42.1.3:8080", "inside 192.168.77.1:30080/6 -> 10.42.1.3:8080"},
		},
		{"load balancer with local policy", service("a", "10.43.0.5", loadBalancer, outsideLocal),
			[]*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.0.3@n1", "10.42.1.3@n2")},
			[]string{
				"10.43.0.5:80/6 -> 10.42.0.3:8080 10.42.1.3:8080", "203.0.113.5:80/6 -> 10.42.0.3:8080", "hairpin 10.42.0.3",
				"health 31000: 1", "inside 203.0.113.5:80/6 -> 10.42.0.3:8080 10.42.1.3:8080",
			}},
		{"load balancer whose local endpoints end", service("a", "10.43.0.5", loadBalancer, outsideLocal),
			[]*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.0.3@n1~", "10.42.1.3@n2")},
			[]string{"10.43.0.5:80/6 -> 10.42.1.3:8080", "203.0.113.5:80/6 -> 10.42.0.3:8080", "hairpin 10.42.0.3",
				"health 31000: 0", "inside 203.0.113.5:80/6 -> 10.42.1.3:8080"}},
		{
			"internal traffic policy", service("a", "10.43.0.5", insideLocal),
			[]*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.0.3@n1", "10.42.1.3@n2")},
			[]string{"10.43.0.5:80/6 -> 10.42.0.3:8080", "hairpin 10.42.0.3"},
		},
		{
			"internal traffic policy without local endpoints", service("a", "10.43.0.5", insideLocal),
			[]*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.1.3@n2")},
			[]string{"10.43.0.5:80/6 -> drop"},
		},
		{"external address and affinity", service("a", "10.43.0.5", func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"198.51.100.1", "fd00::1"}
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}), []*discoveryv1.EndpointSlice{slice("a", 8080, "10.42.1.3@n2")},
			[]string{
				"10.43.0.5:80/6 -> 10.42.1.3:8080 affinity 10800", "198.51.100.1:80/6 -> 10.42.1.3:8080 affinity 10800 masquerade",
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, describe(plan(testNode, c.service, c.endpoints, nil)))
		})
	}
	local := testNode
	local.Local = map[types.NamespacedName]netip.AddrPort{
		{Namespace: "default", Name: "a"}: netip.MustParseAddrPort("192.168.77.1:5353"),
	}
	require.Equal(t, []string{"10.43.0.5:80/6 -> 192.168.77.1:5353", "hairpin 192.168.77.1"},
		describe(plan(local, service("a", "10.43.0.5"), nil, nil)))
}

// TestHints checks that hints select endpoints as in upstream's kube-proxy.
func TestHints(t *testing.T) {
	// endpoint is address@node; nodes and zones are the ones in its hints.
	type hinted struct{ endpoint, nodes, zones string }
	const one, two, three = "10.42.0.3:8080", "10.42.1.3:8080", "10.42.2.3:8080"
	for name, c := range map[string]struct {
		endpoints []hinted
		want      []string
	}{
		"none":                        {[]hinted{{"10.42.0.3@n1", "", ""}, {"10.42.1.3@n2", "", ""}}, []string{one, two}},
		"this node":                   {[]hinted{{"10.42.0.3@n1", "n1", "a"}, {"10.42.1.3@n2", "n2", "a"}}, []string{one}},
		"this node among others":      {[]hinted{{"10.42.0.3@n1", "n3 n1", ""}, {"10.42.1.3@n2", "n2", ""}}, []string{one}},
		"the zone, without this node": {[]hinted{{"10.42.1.3@n2", "n2", "a"}, {"10.42.2.3@n3", "n3", "b"}}, []string{two}},
		"the zone": {
			[]hinted{{"10.42.0.3@n1", "", "b"}, {"10.42.1.3@n2", "", "a"}, {"10.42.2.3@n3", "", "a"}},
			[]string{two, three},
		},
		"neither node nor zone": {
			[]hinted{{"10.42.1.3@n2", "n2", "b"}, {"10.42.2.3@n3", "n3", "b"}}, []string{two, three},
		},
		"one without a hint": {
			[]hinted{{"10.42.0.3@n1", "n1", "a"}, {"10.42.1.3@n2", "", ""}}, []string{one, two},
		},
		"one without one for nodes": {[]hinted{{"10.42.0.3@n1", "n1", "b"}, {"10.42.1.3@n2", "", "a"}}, []string{two}},
		"one that is not ready":     {[]hinted{{"10.42.0.3@n1!", "n1", "a"}, {"10.42.1.3@n2", "n2", "b"}}, []string{two}},
		"without one, but not ready": {
			[]hinted{{"10.42.0.3@n1", "n1", "a"}, {"10.42.1.3@n2!", "", ""}, {"10.42.2.3@n3", "n3", "a"}}, []string{one},
		},
		"all of them terminating": {
			[]hinted{{"10.42.0.3@n1~", "n1", "a"}, {"10.42.1.3@n2~", "n2", "a"}}, []string{one, two},
		},
		"this one terminating, another": {[]hinted{{"10.42.0.3@n1~", "n1", "a"}, {"10.42.1.3@n2", "n2", "a"}}, []string{two}},
	} {
		t.Run(name, func(t *testing.T) {
			var texts []string
			for _, e := range c.endpoints {
				texts = append(texts, e.endpoint)
			}
			s := slice("a", 8080, texts...)
			for i, e := range c.endpoints {
				var h discoveryv1.EndpointHints
				for _, n := range strings.Fields(e.nodes) {
					h.ForNodes = append(h.ForNodes, discoveryv1.ForNode{Name: n})
				}
				for _, z := range strings.Fields(e.zones) {
					h.ForZones = append(h.ForZones, discoveryv1.ForZone{Name: z})
				}
				if len(h.ForNodes)+len(h.ForZones) > 0 {
					s.Endpoints[i].Hints = &h
				}
			}
			node := testNode
			node.Zone = "a"
			p := plan(node, service("a", "10.43.0.5"), []*discoveryv1.EndpointSlice{s}, nil)
			require.Contains(t, describe(p), "10.43.0.5:80/6 -> "+strings.Join(c.want, " "))
		})
	}
}

// TestHintsAndLocalPolicy checks that the policy Local uses this node's endpoints regardless of hints.
func TestHintsAndLocalPolicy(t *testing.T) {
	s := slice("a", 8080, "10.42.0.3@n1", "10.42.1.3@n2")
	s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "b"}}}
	s.Endpoints[1].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}}
	node := testNode
	node.Zone = "a"
	svc := service("a", "10.43.0.5", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	lines := describe(plan(node, svc, []*discoveryv1.EndpointSlice{s}, nil))
	require.Contains(t, lines, "10.43.0.5:80/6 -> 10.42.1.3:8080")
	require.Contains(t, lines, "192.168.77.1:30080/6 -> 10.42.0.3:8080")
	require.Contains(t, lines, "hairpin 10.42.0.3")
}

// TestZoneOfNode checks that a new zone of this node causes new plans only for services with hints.
func TestZoneOfNode(t *testing.T) {
	p := &Proxy{
		Config: Config{NodeName: "n1"}, wake: make(chan struct{}, 1), nodes: map[string]machine{},
		dirty:    map[types.NamespacedName]bool{},
		services: map[types.NamespacedName]*corev1.Service{},
		slices:   map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice{},
	}
	with, without := slice("with", 8080, "10.42.0.3@n1"), slice("without", 8080, "10.42.0.3@n1")
	with.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}}
	for _, s := range []*discoveryv1.EndpointSlice{with, without} {
		p.slices[types.NamespacedName{Namespace: "default", Name: s.Labels[discoveryv1.LabelServiceName]}] =
			map[string]*discoveryv1.EndpointSlice{s.Name: s}
	}
	set := func(name, zone string) map[types.NamespacedName]bool {
		clear(p.dirty)
		p.setNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		}, true)
		return p.dirty
	}
	require.Equal(t, map[types.NamespacedName]bool{{Namespace: "default", Name: "with"}: true}, set("n1", "a"))
	require.Equal(t, "a", p.node.Zone)
	require.Empty(t, set("n1", "a"))
	require.Empty(t, set("n2", "b"))
	require.Len(t, set("n1", "b"), 1)
}

// TestCopiesAreBounded checks that endpoints are in the kernel about once, however many frontends lead to them.
func TestCopiesAreBounded(t *testing.T) {
	for _, frontends := range []int{1, 3, 500} {
		for _, n := range []int{1, 100, 500} {
			svc := service("a", "10.43.0.5", func(s *corev1.Service) {
				for i := range frontends {
					s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("198.51.%d.%d", 100+i/200, 1+i%200))
				}
			})
			var endpoints []string
			for i := range n {
				endpoints = append(endpoints, fmt.Sprintf("10.42.%d.%d@n2", i/200, 1+i%200))
			}
			count := 0
			for e := range plan(testNode, svc, []*discoveryv1.EndpointSlice{slice("a", 8080, endpoints...)}, nil).elements(nil) {
				if e.set == setEndpoints || e.set == setBackends {
					count++
				}
			}
			require.GreaterOrEqual(t, count, n)
			require.LessOrEqual(t, count, n+maxCopies)
		}
	}
}

// TestElementsAreBounded checks that a service with too many ports and endpoints is served up to the limit and
// reports the rest.
func TestElementsAreBounded(t *testing.T) {
	for name, c := range map[string]struct{ ports, endpoints, externals, served int }{
		"as usual":      {20, 1000, 0, 20},
		"ports":         {15_000, 1, 0, 10_000},
		"product":       {3000, 100, 0, 300},
		"external ones": {100, 1, 50_000, 0},
	} {
		t.Run(name, func(t *testing.T) {
			svc, endpoints := service("a", "10.43.0.5"), slice("a", 0)
			svc.Spec.Ports, endpoints.Ports = nil, nil
			for i := range c.ports {
				name, number := fmt.Sprint("p", i), int32(i+1)
				svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Port: number, Protocol: corev1.ProtocolTCP})
				endpoints.Ports = append(endpoints.Ports, discoveryv1.EndpointPort{Name: &name, Port: &number})
			}
			for i := range c.endpoints {
				endpoints.Endpoints = append(endpoints.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{fmt.Sprintf("10.42.%d.%d", i/200, 1+i%200)},
				})
			}
			for i := range c.externals {
				svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, fmt.Sprintf("198.51.%d.%d", i/250, i%250))
			}
			p := plan(testNode, svc, []*discoveryv1.EndpointSlice{endpoints}, nil)
			require.LessOrEqual(t, len(p.elements(nil)), maxElements)
			served := 0
			for i := range c.ports {
				if p.frontends[Frontend{netip.MustParseAddr("10.43.0.5"), 6, uint16(i + 1)}].backend != (slot{}) {
					served++
				}
			}
			if c.served == c.ports {
				require.Equal(t, c.ports, served)
				require.Empty(t, p.refused)
				return
			}
			require.GreaterOrEqual(t, served, c.served/2)
			require.Less(t, served, c.ports)
			require.Len(t, p.refused, 1)
			require.Contains(t, p.refused[0], fmt.Sprintf("%d ports from %d on", c.ports-served, served+1))
		})
	}
}

package ingress

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

var then = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// ingressOf returns an Ingress with rules "host Type path service"; an empty host is "-". "default service" is the
// default backend.
func ingressOf(name string, age int, rules ...string) *networkingv1.Ingress {
	i := &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         "ns",
			Name:              name,
			CreationTimestamp: metav1.NewTime(then.Add(-time.Duration(age) * time.Second)),
		},
	}
	to := func(service string) networkingv1.IngressBackend {
		return networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Number: 80}},
		}
	}
	for _, rule := range rules {
		f := strings.Fields(rule)
		if f[0] == "default" {
			i.Spec.DefaultBackend = ptr.To(to(f[1]))
			continue
		}
		if f[0] == "tls" {
			i.Spec.TLS = append(i.Spec.TLS, networkingv1.IngressTLS{SecretName: f[1], Hosts: f[2:]})
			continue
		}
		i.Spec.Rules = append(i.Spec.Rules, networkingv1.IngressRule{
			Host: strings.Trim(f[0], "-"),
			IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
				Paths: []networkingv1.HTTPIngressPath{
					{Path: f[2], PathType: ptr.To(networkingv1.PathType(f[1])), Backend: to(f[3])},
				}}},
		})
	}
	return i
}

// named returns a backend for each service, with the service's name in why.
var named = reader{
	backend: func(_ string, ref *networkingv1.IngressServiceBackend) (*backend, error) {
		return &backend{endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.42.0.1:80")}, why: ref.Name}, nil
	},
	certificate: func(name types.NamespacedName) (*tls.Certificate, error) {
		if name.Name == "bad" {
			return nil, errors.New("bad")
		}
		return &tls.Certificate{Leaf: &x509.Certificate{DNSNames: []string{name.Name + ".example.com"}}}, nil
	},
}

func (t *table) to(host, path string) string {
	if r := t.route(host, path); r != nil {
		return r.backend.why
	}
	return ""
}

// TestPaths has the examples of the Ingress documentation (kubernetes.io/docs/concepts/services-networking/ingress,
// "Path types").
func TestPaths(t *testing.T) {
	for _, c := range []struct {
		rules []string
		path  string
		want  string
	}{
		{[]string{"Prefix / a"}, "/anything/at/all", "a"},
		{[]string{"Exact /foo a"}, "/foo", "a"},
		{[]string{"Exact /foo a"}, "/bar", ""},
		{[]string{"Exact /foo a"}, "/foo/", ""},
		{[]string{"Exact /foo/ a"}, "/foo", ""},
		{[]string{"Prefix /foo a"}, "/foo", "a"},
		{[]string{"Prefix /foo a"}, "/foo/", "a"},
		{[]string{"Prefix /foo/ a"}, "/foo", "a"},
		{[]string{"Prefix /foo/ a"}, "/foo/", "a"},
		{[]string{"Prefix /aaa/bb a"}, "/aaa/bbb", ""},
		{[]string{"Prefix /aaa/bbb a"}, "/aaa/bbb", "a"},
		{[]string{"Prefix /aaa/bbb/ a"}, "/aaa/bbb", "a"},
		{[]string{"Prefix /aaa/bbb a"}, "/aaa/bbb/", "a"},
		{[]string{"Prefix /aaa/bbb a"}, "/aaa/bbb/ccc", "a"},
		{[]string{"Prefix /aaa/bbb a"}, "/aaa/bbbxyz", ""},
		{[]string{"Prefix / a", "Prefix /aaa b"}, "/aaa/ccc", "b"},
		{[]string{"Prefix / a", "Prefix /aaa b"}, "/ccc", "a"},
		{[]string{"Prefix /aaa a"}, "/ccc", ""},
		{[]string{"Prefix /foo a", "Exact /foo b"}, "/foo", "b"},
		{[]string{"Prefix /foo a", "Exact /foo b"}, "/foo/x", "a"},
		{[]string{"Prefix /foo a"}, "/FOO", ""},
		{[]string{"ImplementationSpecific /foo a"}, "/foo/x", "a"},
	} {
		var rules []string
		for _, r := range c.rules {
			rules = append(rules, "a.example.com "+r)
		}
		require.Equal(t, c.want,
			build([]*networkingv1.Ingress{ingressOf("i", 0, rules...)}, named).to("a.example.com", c.path), "%v %s", c.rules,
			c.path)
	}
}

func TestHosts(t *testing.T) {
	table := build([]*networkingv1.Ingress{
		ingressOf("young", 1, "a.example.com Prefix /x stolen", "a.example.com Prefix /young young", "default second"),
		ingressOf("old", 2, "a.example.com Prefix /x exact", "*.example.com Prefix / wild", "- Prefix /any any",
			"default first"),
	}, named)
	for request, want := range map[string]string{
		"a.example.com /x": "exact", "A.Example.COM:8080 /x/y": "exact", "a.example.com. /x": "exact",
		"a.example.com /young": "young",
		"a.example.com /other": "wild", "b.example.com /x": "wild", "a.b.example.com /x": "first", "example.com /x": "first",
		"other /any/thing": "any", "other /": "first", "[fd00::1]:80 /any": "any",
	} {
		host, path, _ := strings.Cut(request, " ")
		require.Equal(t, want, table.to(host, path), request)
	}
	require.Equal(t, map[types.NamespacedName][]string{{Namespace: "ns", Name: "young"}: {
		"the default backend is that of the older Ingress ns/old",
		`host "a.example.com", path "/x" belong to the older Ingress ns/old`}}, table.refused)
}

func TestCertificates(t *testing.T) {
	table := build([]*networkingv1.Ingress{
		ingressOf("a", 2, "tls one a.example.com *.example.org"),
		ingressOf("b", 1, "tls two", "tls bad b.example.com", "tls three A.example.com"),
	}, named)
	for name, want := range map[string]string{
		"A.example.com":   "one",
		"x.example.org":   "one",
		"x.y.example.org": "",
		"two.example.com": "two",
		"b.example.com":   "",
		"":                "",
	} {
		got := ""
		if c := table.certificate(name); c != nil {
			got, _, _ = strings.Cut(c.Leaf.DNSNames[0], ".")
		}
		require.Equal(t, want, got, name)
	}
	require.Equal(t,
		[]string{"secret bad: bad", `the certificate of host "a.example.com" is that of the older Ingress ns/a`},
		table.refused[types.NamespacedName{Namespace: "ns", Name: "b"}])
}

// TestProblemsAreBounded checks that an Ingress with many paths of another's host has few reports.
func TestProblemsAreBounded(t *testing.T) {
	rules := []string{"a.example.com Prefix / other"}
	for n := range 10 * maxProblems {
		rules = append(rules, fmt.Sprintf("a.example.com Prefix /%d other", n))
	}
	table := build([]*networkingv1.Ingress{ingressOf("old", 2, rules...), ingressOf("new", 1, rules...)}, named)
	require.Len(t, table.refused[types.NamespacedName{Namespace: "ns", Name: "new"}], maxProblems)
}

// TestRoutesAsSpecified compares the table with the specification, rule by rule, for any rules and request.
func TestRoutesAsSpecified(t *testing.T) {
	hosts := []string{"-", "a.com", "b.a.com", "*.a.com", "*.com"}
	paths := []string{"/", "/a", "/a/", "/a/b", "/a/b/", "/ab", "/b"}
	rapid.Check(t, func(t *rapid.T) {
		type rule struct{ host, kind, path, name string }
		var rules []rule
		var ingresses []*networkingv1.Ingress
		for n := range rapid.IntRange(0, 12).Draw(t, "rules") {
			r := rule{
				rapid.SampledFrom(hosts).Draw(t, "host"), rapid.SampledFrom([]string{"Exact", "Prefix"}).Draw(t, "kind"),
				rapid.SampledFrom(paths).Draw(t, "path"), fmt.Sprint("s", n),
			}
			rules = append(rules, r)
			ingresses = append(ingresses,
				ingressOf(fmt.Sprint("i", n), 100-n, strings.Join([]string{r.host, r.kind, r.path, r.name}, " ")))
		}
		host := rapid.SampledFrom([]string{"a.com", "b.a.com", "c.b.a.com", "x.com", "com"}).Draw(t, "request host")
		path := rapid.SampledFrom([]string{"/", "/a", "/a/", "/a/b", "/a/b/", "/a/b/c", "/ab", "/b/x", "/c"}).Draw(t,
			"request path")
		elements := func(p string) []string { return strings.Split(strings.Trim(p, "/"), "/") }
		best, rank := "", -1
		for _, r := range rules { // the oldest first
			var score int
			switch _, parent, _ := strings.Cut(host, "."); r.host {
			case host:
				score = 2000
			case "*." + parent:
				score = 1000
			case "-":
			default:
				continue
			}
			if r.kind == "Exact" {
				if r.path != path {
					continue
				}
				score += 500
			} else if want, got := elements(r.path), elements(path); r.path == "/" {
				score++
			} else if len(got) < len(want) || strings.Join(got[:len(want)], "/") != strings.Join(want, "/") {
				continue
			} else {
				score += 1 + len(want)
			}
			if score > rank {
				best, rank = r.name, score
			}
		}
		if got := build(ingresses, named).to(host, path); got != best {
			t.Fatalf("%s%s goes to %q, not %q", host, path, got, best)
		}
	})
}

func TestEndpoints(t *testing.T) {
	port := func(name string, n int32) []discoveryv1.EndpointPort {
		return []discoveryv1.EndpointPort{{Name: &name, Port: &n}}
	}
	got := endpoints([]discoveryv1.EndpointSlice{
		{
			Ports: port("web", 8080),
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.9"}}, {Addresses: []string{"10.42.0.3"}},
				{Addresses: []string{"10.42.0.4"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false)}}},
		},
		{Ports: port("other", 9), Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.5"}}}},
		{
			Ports: port("web", 8081),
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"127.0.0.1"}},
				{Addresses: []string{"169.254.169.254"}},
				{Addresses: []string{"10.42.0.3"}},
			},
		},
	}, "web")
	require.Equal(t, "[10.42.0.3:8080 10.42.0.3:8081 10.42.0.9:8080]", fmt.Sprint(got))
	ending := []discoveryv1.EndpointSlice{
		{Ports: port("web", 8080), Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.9"},
			Conditions: discoveryv1.EndpointConditions{
				Ready:       ptr.To(false),
				Serving:     ptr.To(true),
				Terminating: ptr.To(true),
			}}}},
	}
	require.Equal(t, "[10.42.0.9:8080]", fmt.Sprint(endpoints(ending, "web")), "the last one may be used while it ends")
}

// Package dns is the cluster's DNS server, which runs in every node's process. It resolves names of services and
// pods from the API and forwards all others to the machine's resolvers.
//
// It listens on the node's address (Address). Pods query the cluster IP of the service kube-system/kube-dns
// (Service), which has no endpoints: through Config.Local, each node's proxy redirects it to the node's own server.
// DNS needs no pods and works as soon as the proxy does:
//
//	create dns.Service(clusterIP)
//	proxy.Config{Local: map[types.NamespacedName]netip.AddrPort{dns.ServiceName: dns.Address(nodeIP)}, ...}
//	dns.New(dns.Config{Listen: []netip.AddrPort{dns.Address(nodeIP)}, Allow: []netip.Prefix{clusterCIDR}, ...})
//
// Its invariant: a response is consistent with the services and endpoint slices at one point in time. The cache and
// the resources that a client can use are bounded: see serve.go and forward.go.
package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
)

// ServiceName is the conventional name of the DNS service.
var ServiceName = types.NamespacedName{Namespace: "kube-system", Name: "kube-dns"}

// Port is the port on which each node serves DNS. It is not 53, which the machine's own resolver may use.
const Port = 10053

// Address returns where a node serves DNS, over UDP and TCP.
func Address(node netip.Addr) netip.AddrPort { return netip.AddrPortFrom(node, Port) }

// Service returns the service that reserves the cluster IP of DNS.
func Service(clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ServiceName.Namespace, Name: ServiceName.Name,
			Labels: map[string]string{
				"k8s-app":                       "kube-dns",
				"kubernetes.io/name":            "CoreDNS",
				"kubernetes.io/cluster-service": "true",
			}},
		Spec: corev1.ServiceSpec{ClusterIP: clusterIP, Ports: []corev1.ServicePort{
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(Port)},
			{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(Port)},
		}},
	}
}

// Config configures New.
type Config struct {
	Client client.Interface
	Domain string // the cluster's domain; default "cluster.local"
	// Listen are the addresses to listen on, over UDP and TCP.
	Listen []netip.AddrPort
	// Allow are the clients to serve, besides this machine itself; empty means all. An open resolver on a public
	// address can be abused for amplification attacks.
	Allow []netip.Prefix
	// Upstreams ("192.0.2.1:53") resolve names outside the cluster. Nil means the servers in ResolvConf, which is
	// read again when it changes.
	Upstreams  []string
	ResolvConf string       // default /etc/resolv.conf
	Logger     *slog.Logger // default slog.Default()
	// Metrics registers the server's metrics; it may be nil.
	Metrics prometheus.Registerer

	// upstreamTimeout overrides the constant in tests.
	upstreamTimeout time.Duration
}

// Validate sets defaults and checks all fields.
func (c *Config) Validate() error {
	c.Domain = cmp.Or(c.Domain, "cluster.local")
	c.ResolvConf = cmp.Or(c.ResolvConf, "/etc/resolv.conf")
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Domain = strings.ToLower(strings.Trim(c.Domain, "."))
	if _, ok := dns.IsDomainName(c.Domain); !ok || c.Domain == "" {
		return fmt.Errorf("dns: cluster domain %q is not a domain name", c.Domain)
	}
	if c.Client == nil {
		return errors.New("dns: no client given")
	}
	if len(c.Listen) == 0 {
		return errors.New("dns: no address to listen on given")
	}
	return nil
}

// Server is the DNS server. It implements run.Component.
type Server struct {
	Config
	guard   run.Guard
	metrics *metrics
	zone    *zone
	forward *forwarder
	own     map[netip.Addr]bool // the listen addresses
	// Ready is closed once the server listens and knows all services.
	run.Readiness
}

var _ run.Component = (*Server)(nil)

// New returns a server, which listens once Run is called.
func New(c Config) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		Config: c,
		guard:  run.Guard{Log: c.Logger, Component: "dns"},
		zone:   newZone(c.Domain),
		own:    map[netip.Addr]bool{},
	}
	s.metrics = newMetrics(c.Metrics, &s.guard)
	var self []string
	for _, a := range c.Listen {
		s.own[a.Addr()] = true
		self = append(self, a.String())
	}
	s.forward = newForwarder(c.Upstreams, c.ResolvConf, self)
	if c.upstreamTimeout > 0 {
		s.forward.timeout = c.upstreamTimeout
	}
	s.forward.loops = s.zone.isClusterDNS
	return s, nil
}

// Name implements run.Component.
func (s *Server) Name() string { return "dns" }

// Run implements run.Component.
func (s *Server) Run(ctx context.Context) error {
	for _, what := range []struct {
		object  ctrl.Object
		handler toolscache.ResourceEventHandler
	}{
		{&corev1.Service{}, handler(&s.guard, s.zone.setService)},
		{&discoveryv1.EndpointSlice{}, handler(&s.guard, s.zone.setSlice)},
	} {
		end, err := client.Follow(ctx, s.Client.Cache(), what.object, what.handler)
		if ctx.Err() != nil {
			return nil // the error results from the cancelled context
		}
		if err != nil {
			return err
		}
		defer end()
	}
	var listeners []*listener
	defer func() {
		for _, l := range listeners {
			l.close()
		}
	}()
	ended := make(chan error, 2*len(s.Listen))
	for _, a := range s.Listen {
		l, err := s.listen(a)
		if err != nil {
			return fmt.Errorf("listen on %s for DNS: %w (is another DNS server running?)", a, err)
		}
		listeners = append(listeners, l)
		l.start(ended)
	}
	s.SetReady()
	select {
	case err := <-ended:
		return fmt.Errorf("DNS: %w", err)
	case <-ctx.Done():
		return nil
	}
}

func handler[T ctrl.Object](guard *run.Guard, set func(object T, there bool)) toolscache.ResourceEventHandler {
	deliver := func(o any, there bool) {
		if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if object, ok := o.(T); ok {
			_ = guard.Do("event", func() { set(object, there) }, "object", ctrl.ObjectKeyFromObject(object))
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { deliver(o, true) },
		UpdateFunc: func(_, o any) { deliver(o, true) },
		DeleteFunc: func(o any) { deliver(o, false) },
	}
}

func (s *Server) allowed(a netip.Addr) bool {
	if len(s.Allow) == 0 {
		return true
	}
	if a.IsLoopback() || s.own[a] {
		return true
	}
	return slices.ContainsFunc(s.Allow, func(p netip.Prefix) bool { return p.Contains(a) })
}

// maxChain limits the number of external names that a query follows.
const maxChain = 8

func (s *Server) answer(client netip.Addr, request *dns.Msg, most int) *dns.Msg {
	q := request.Question[0]
	found := s.zone.lookup(q, most)
	if !found.ours {
		return s.forward.ask(client, request)
	}
	answer := new(dns.Msg)
	answer.SetReply(request)
	answer.Authoritative, answer.RecursionAvailable = true, true
	answer.Rcode, answer.Answer, answer.Extra = found.rcode, found.answer, found.extra
	// If an address of an external name is queried, add the address to the answer.
	for links := 1; found.follow != "" && q.Qtype != dns.TypeCNAME; links++ {
		if links == maxChain {
			return failure(request) // too long, or a loop
		}
		next := new(dns.Msg)
		next.SetQuestion(found.follow, q.Qtype)
		if found = s.zone.lookup(next.Question[0], most); found.ours {
			answer.Answer = append(answer.Answer, found.answer...)
		} else if target := s.forward.ask(client, next); target.Rcode == dns.RcodeSuccess {
			answer.Answer = append(answer.Answer, target.Answer...)
		}
	}
	if len(answer.Answer) == 0 {
		answer.Ns = []dns.RR{s.zone.authority()}
	}
	return answer
}

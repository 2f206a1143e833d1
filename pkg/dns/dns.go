// Package dns is the cluster's DNS, in the process that runs the node: names
// of services and pods are answered straight from events, all others by the machine's own resolvers.
//
// Every node runs one, on the node's address (Address). Pods ask the cluster IP of the service
// kube-system/kube-dns (Service makes the object), which has no endpoints: the proxy of each node is told, by its
// Config.Local, that the node answers this service itself at Address. So a query never leaves the node
// unless it must, no pod is needed, and DNS works on a node as soon as its proxy does. Whoever starts
// a server wires it so:
//
//	create dns.Service(clusterIP)
//	proxy.Config{Local: map[types.NamespacedName]netip.AddrPort{dns.ServiceName: dns.Address(nodeIP)}, ...}
//	dns.New(dns.Config{Listen: []netip.AddrPort{dns.Address(nodeIP)}, Allow: []netip.Prefix{clusterCIDR}, ...})
//
// It may import client and miekg/dns. Its invariant: an answer is made from whole services
// and endpoint slices as they were at one time, and everything it keeps of other names is bounded and expires. So is what
// a client can keep it busy with: see the limits in serve.go and forward.go.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
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

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/run"
)

// ServiceName is the service that pods ask, under the name that everything expects.
var ServiceName = types.NamespacedName{Namespace: "kube-system", Name: "kube-dns"}

// Port is where each node listens. Not 53, which a resolver of the machine may have.
const Port = 10053

// Address is where the DNS of the node with this address listens, UDP and TCP.
func Address(node netip.Addr) netip.AddrPort { return netip.AddrPortFrom(node, Port) }

// Service is the object that gives the cluster's DNS its cluster IP.
func Service(clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ServiceName.Namespace, Name: ServiceName.Name,
			Labels: map[string]string{"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS", "kubernetes.io/cluster-service": "true"}},
		Spec: corev1.ServiceSpec{ClusterIP: clusterIP, Ports: []corev1.ServicePort{
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(Port)},
			{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(Port)},
		}},
	}
}

// Config of New.
type Config struct {
	Client client.Interface
	Domain string // of the cluster; default "cluster.local"
	// Listen are the addresses to answer on, UDP and TCP.
	Listen []netip.AddrPort
	// Allow are the clients that get answers besides this machine's own addresses. Empty: all. An open resolver on a
	// public address is an invitation to abuse.
	Allow []netip.Prefix
	// Upstreams ("192.0.2.1:53") answer names outside of the cluster. If nil, they are those of ResolvConf,
	// read again when the file changes.
	Upstreams  []string
	ResolvConf string       // default /etc/resolv.conf
	Logger     *slog.Logger // default slog.Default()
	// Metrics takes the server's metrics; nil for none.
	Metrics prometheus.Registerer

	// upstreamTimeout takes the place of the constant in tests.
	upstreamTimeout time.Duration
}

// Validate fills in defaults and says what is wrong.
func (c *Config) Validate() error {
	if c.Domain == "" {
		c.Domain = "cluster.local"
	}
	if c.ResolvConf == "" {
		c.ResolvConf = "/etc/resolv.conf"
	}
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

// Server is the component "dns".
type Server struct {
	Config
	guard   run.Guard
	metrics *metrics
	zone    *zone
	forward *forwarder
	own     map[netip.Addr]bool // addresses of this machine, as far as they are known: those listened on, and loopback
	ready   chan struct{}
}

var _ run.Component = (*Server)(nil)

// New makes a server. It listens only in Run.
func New(c Config) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &Server{Config: c, guard: run.Guard{Log: c.Logger, Component: "dns"}, zone: newZone(c.Domain), ready: make(chan struct{}), own: map[netip.Addr]bool{}}
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

// Ready is closed once it listens and knows all services.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run implements run.Component.
func (s *Server) Run(ctx context.Context) error {
	for _, what := range []struct {
		object  ctrl.Object
		handler toolscache.ResourceEventHandler
	}{
		{&corev1.Service{}, handler(&s.guard, s.zone.setService)},
		{&discoveryv1.EndpointSlice{}, handler(&s.guard, s.zone.setSlice)},
	} {
		informer, err := s.Client.Cache().GetInformer(ctx, what.object)
		if ctx.Err() != nil {
			return nil // what err says of it is not our failure
		}
		if err != nil {
			return fmt.Errorf("watch %T: %w", what.object, err)
		}
		registration, err := informer.AddEventHandler(what.handler)
		if err != nil {
			return fmt.Errorf("watch %T: %w", what.object, err)
		}
		defer func() { _ = informer.RemoveEventHandler(registration) }()
		select {
		case <-registration.HasSyncedChecker().Done():
		case <-ctx.Done():
			return nil
		}
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
	close(s.ready)
	select {
	case err := <-ended:
		return fmt.Errorf("DNS: %w", err)
	case <-ctx.Done():
		return nil
	}
}

// handler calls set for each event.
func handler[T ctrl.Object](guard *run.Guard, set func(object T, there bool)) toolscache.ResourceEventHandler {
	tell := func(o any, there bool) {
		if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if object, ok := o.(T); ok {
			_ = guard.Do("event", func() { set(object, there) }, "object", ctrl.ObjectKeyFromObject(object))
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { tell(o, true) },
		UpdateFunc: func(_, o any) { tell(o, true) },
		DeleteFunc: func(o any) { tell(o, false) },
	}
}

// allowed tells whether a client gets answers.
func (s *Server) allowed(a netip.Addr) bool {
	if len(s.Allow) == 0 {
		return true
	}
	if a.IsLoopback() || s.own[a] {
		return true
	}
	for _, p := range s.Allow {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// maxChain is how many names a question may lead through, from one external name to the next.
const maxChain = 8

func (s *Server) answer(client netip.Addr, request *dns.Msg) *dns.Msg {
	q := request.Question[0]
	found := s.zone.lookup(q)
	if !found.ours {
		return s.forward.ask(client, request)
	}
	answer := new(dns.Msg)
	answer.SetReply(request)
	answer.Authoritative, answer.RecursionAvailable = true, true
	answer.Rcode, answer.Answer, answer.Extra = found.rcode, found.answer, found.extra
	// Behind an external name, whoever asks for an address expects the address.
	for links := 1; found.follow != "" && q.Qtype != dns.TypeCNAME; links++ {
		if links == maxChain {
			return failure(request) // too long, or without end
		}
		next := new(dns.Msg)
		next.SetQuestion(found.follow, q.Qtype)
		if found = s.zone.lookup(next.Question[0]); found.ours {
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

package ingress

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/pki"
)

// controlPlane is the label of nodes with a server. A node cannot set it on itself.
const controlPlane = "node-role.kubernetes.io/control-plane"

// h2cProtocol is the appProtocol of backends with unencrypted HTTP/2, such as gRPC (KEP-3726).
const h2cProtocol = "kubernetes.io/h2c"

func (i *Ingress) build(ctx context.Context, ingresses []*networkingv1.Ingress) *table {
	kept := map[types.NamespacedName]parsed{}
	found := lookups{slices: map[string]map[string][]discoveryv1.EndpointSlice{}, looked: map[string]int{}}
	t := build(ingresses, reader{
		backend: func(namespace string, ref *networkingv1.IngressServiceBackend) (*backend, error) {
			return i.backend(ctx, namespace, ref, found)
		},
		certificate: func(name types.NamespacedName) (*tls.Certificate, error) {
			p, known := kept[name]
			if !known {
				p = i.certificate(ctx, name)
				kept[name] = p
			}
			return p.certificate, p.err
		},
		resource: i.resource,
	})
	i.parsed = kept
	used := map[string]bool{}
	for name := range kept {
		used[name.Namespace] = true
	}
	i.turns.keep(used)
	i.keepSecured()
	i.mu.Lock()
	i.uses = t
	i.mu.Unlock()
	return t
}

// maxLooked limits the endpoints and ports of slices that a table's backends in one namespace look at, each time the
// table is built: services of 2,000 ports with 100,000 endpoints would take seconds and gigabytes. 500,000 take 30 ms.
const maxLooked = 500_000

// lookups are what building one table has read.
type lookups struct {
	// slices are by namespace and service. A list for each service would compare all slices each time.
	slices map[string]map[string][]discoveryv1.EndpointSlice
	looked map[string]int // by namespace
}

// slicesOf returns the slices of a service, if they are within the limit of its namespace.
func (l lookups) slicesOf(ctx context.Context, c ctrl.Reader, name types.NamespacedName) ([]discoveryv1.EndpointSlice,
	error) {
	services, known := l.slices[name.Namespace]
	if !known {
		var list discoveryv1.EndpointSliceList
		if err := c.List(ctx, &list, ctrl.InNamespace(name.Namespace)); err != nil {
			return nil, err
		}
		services = map[string][]discoveryv1.EndpointSlice{}
		for _, s := range list.Items {
			if service := s.Labels[discoveryv1.LabelServiceName]; service != "" {
				services[service] = append(services[service], s)
			}
		}
		l.slices[name.Namespace] = services
	}
	all := services[name.Name]
	for i := range all {
		l.looked[name.Namespace] += len(all[i].Ports) + len(all[i].Endpoints)
	}
	if l.looked[name.Namespace] > maxLooked {
		return nil, errors.New("the services of this namespace's Ingresses have too many endpoints: use fewer ports or " +
			"services as backends")
	}
	return all, nil
}

func (i *Ingress) backend(ctx context.Context, namespace string, ref *networkingv1.IngressServiceBackend,
	found lookups) (*backend, error) {
	var s corev1.Service
	if err := i.Client.Cache().Get(ctx, ctrl.ObjectKey{Namespace: namespace, Name: ref.Name}, &s); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, errors.New("there is no such service")
		}
		return nil, err
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil, errors.New("services of type ExternalName are not supported as backends")
	}
	n := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Protocol == corev1.ProtocolTCP &&
			(ref.Port.Name != "" && p.Name == ref.Port.Name || ref.Port.Name == "" && p.Port == ref.Port.Number)
	})
	if n < 0 {
		return nil, fmt.Errorf("the service has no TCP port %s", cmp.Or(ref.Port.Name, fmt.Sprint(ref.Port.Number)))
	}
	port := &s.Spec.Ports[n]
	b := &backend{}
	if port.AppProtocol != nil {
		b.h2c = *port.AppProtocol == h2cProtocol
		if isSecure(*port.AppProtocol) {
			var err error
			if b.secured, b.secret, err = i.secure(ctx, &s); err != nil {
				return b, err
			}
		}
	}
	list, err := found.slicesOf(ctx, i.Client.Cache(), types.NamespacedName{Namespace: namespace, Name: s.Name})
	if err != nil {
		return nil, err
	}
	b.endpoints = endpoints(list, port.Name)
	return b, nil
}

// endpoints returns the ready endpoints of a port or, if there are none, the endpoints that are serving while
// terminating (KEP-1669), in order. It ignores addresses that are not global unicast, such as loopback.
func endpoints(list []discoveryv1.EndpointSlice, port string) []netip.AddrPort {
	var all, ending []netip.AddrPort
	for n := range list {
		s := &list[n]
		for _, p := range s.Ports {
			if p.Port == nil || p.Name != nil && *p.Name != port || p.Name == nil && port != "" ||
				p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
				continue
			}
			for _, e := range s.Endpoints {
				if len(e.Addresses) == 0 {
					continue
				}
				a, err := netip.ParseAddr(e.Addresses[0])
				if err != nil || !a.IsGlobalUnicast() {
					continue
				}
				switch to := netip.AddrPortFrom(a, uint16(*p.Port)); {
				case e.Conditions.Ready == nil || *e.Conditions.Ready:
					all = append(all, to)
				case e.Conditions.Serving != nil && *e.Conditions.Serving && e.Conditions.Terminating != nil &&
					*e.Conditions.Terminating:
					ending = append(ending, to)
				}
			}
		}
	}
	if len(all) == 0 {
		all = ending
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// parsed is the certificate in a version of a Secret.
type parsed struct {
	version     string
	certificate *tls.Certificate
	err         error
}

// certificate parses a Secret, or returns the earlier result for the same version.
func (i *Ingress) certificate(ctx context.Context, name types.NamespacedName) parsed {
	var s corev1.Secret
	if err := i.Client.Cache().Get(ctx, name, &s); err != nil {
		if apierrors.IsNotFound(err) {
			err = errors.New("there is no such secret")
		}
		return parsed{err: err}
	}
	version := string(s.UID) + " " + s.ResourceVersion
	if p, ok := i.parsed[name]; ok && p.version == version {
		return p
	}
	c, err := parse(&s)
	if err == nil {
		i.turns.pace(name.Namespace, c)
	}
	return parsed{version, c, err}
}

func parse(s *corev1.Secret) (*tls.Certificate, error) {
	if s.Type != corev1.SecretTypeTLS {
		return nil, fmt.Errorf("its type is %s, not %s", s.Type, corev1.SecretTypeTLS)
	}
	c, err := pki.ForeignPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	return &c, nil
}

// shadowed describes the services and pods that take our ports on the first address: their nftables rules apply
// before traffic reaches our listeners.
func (i *Ingress) shadowed(ctx context.Context) (texts []string) {
	var services corev1.ServiceList
	if err := i.Client.Cache().List(ctx, &services); err != nil {
		return nil
	}
	own := i.Addresses[0].String()
	takes := func(owner, address string, port int32) {
		if address == own && port != 0 && (port == int32(i.HTTPPort) || port == int32(i.HTTPSPort)) &&
			len(texts) < maxProblems {
			texts = append(texts, fmt.Sprintf("port %d of %s belongs to %s", port, address, owner))
		}
	}
	for n := range services.Items {
		s := &services.Items[n]
		for _, p := range s.Spec.Ports {
			if p.Protocol != corev1.ProtocolTCP {
				continue
			}
			for _, a := range s.Status.LoadBalancer.Ingress {
				takes("service "+s.Namespace+"/"+s.Name, a.IP, p.Port)
			}
			for _, a := range s.Spec.ExternalIPs {
				takes("service "+s.Namespace+"/"+s.Name, a, p.Port)
			}
			takes("service "+s.Namespace+"/"+s.Name, own, p.NodePort)
		}
	}
	var pods corev1.PodList
	if err := i.Client.Cache().List(ctx, &pods); err != nil {
		return texts
	}
	for n := range pods.Items {
		p := &pods.Items[n]
		if p.Spec.NodeName != i.NodeName || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, c := range p.Spec.Containers {
			for _, port := range c.Ports {
				takes("pod "+p.Namespace+"/"+p.Name, own, port.HostPort)
			}
		}
	}
	return texts
}

// publish writes the addresses of all servers into the status of the Ingresses.
func (i *Ingress) publish(ctx context.Context, ingresses []*networkingv1.Ingress) error {
	var nodes corev1.NodeList
	if err := i.Client.Cache().List(ctx, &nodes, ctrl.HasLabels{controlPlane}); err != nil {
		return err
	}
	all := []string{i.Addresses[0].String()}
	for n := range nodes.Items {
		for _, a := range nodes.Items[n].Status.Addresses {
			if a.Type == corev1.NodeInternalIP && !slices.Contains(all, a.Address) {
				all = append(all, a.Address)
			}
		}
	}
	slices.Sort(all)
	var want []networkingv1.IngressLoadBalancerIngress
	for _, a := range all {
		want = append(want, networkingv1.IngressLoadBalancerIngress{IP: a})
	}
	var errs []error
	for _, o := range ingresses {
		same := slices.EqualFunc(o.Status.LoadBalancer.Ingress, want,
			func(a, b networkingv1.IngressLoadBalancerIngress) bool {
				return a.IP == b.IP && a.Hostname == b.Hostname
			})
		if same {
			continue
		}
		next := o.DeepCopy()
		next.Status.LoadBalancer.Ingress = want
		if err := i.Client.Status().Patch(ctx, next, ctrl.MergeFrom(o)); ctrl.IgnoreNotFound(err) != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/request"
	podstrategy "k8s.io/kubernetes/pkg/registry/core/pod"

	"github.com/coracle-dev/coracle/pkg/registry"
)

// insecure reaches pods and services that serve TLS with certificates of their own, as upstream does.
var insecure = &http.Transport{ //nolint:gochecknoglobals // a pool of connections, closed when idle
	TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
}

func (s *Server) proxy(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, t registry.Target) error {
	var location *url.URL
	var rt http.RoundTripper = insecure
	var err error
	switch t.Resource.Plural {
	case "pods":
		location, rt, err = podstrategy.ResourceLocation(req.Context(), podGetter{s, t}, insecure, t.Name)
	case "services":
		location, err = s.service(t)
	default:
		if runsCommands(info.Parts[min(3, len(info.Parts)):]) {
			if err := s.mayCreate(req.Context()); err != nil {
				return err
			}
		}
		location, rt, err = s.nodeLocation(req.Context(), t)
	}
	if err != nil {
		return err
	}
	if location.Scheme == "" {
		location.Scheme = "http"
	}
	// The proxy keeps a trailing slash, and sends who asks for nothing to "/", by itself.
	location.Path = ""
	if len(info.Parts) > 3 {
		location.Path = "/" + strings.Join(info.Parts[3:], "/")
	}
	location.RawQuery = req.URL.RawQuery
	s.passer(location, rt, true, false).ServeHTTP(w, withoutCredentials(req))
	return nil
}

func (s *Server) nodeLocation(ctx context.Context, t registry.Target) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(t.Name)
	if !ok {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", t.Name))
	}
	if s.cfg.Nodes == nil {
		return nil, nil, apierrors.NewServiceUnavailable("this server has no way to reach nodes")
	}
	u, rt, err := s.cfg.Nodes.Connect(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if port == "" || port == u.Port() {
		return &url.URL{Scheme: u.Scheme, Host: u.Host}, rt, nil
	}
	if err := proxyable(u.Hostname()); err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	return &url.URL{Scheme: scheme, Host: net.JoinHostPort(u.Hostname(), port)}, insecure, nil
}

// runsCommands reports whether a path of a node's API leads into containers. These take a GET to begin a WebSocket, which
// "get nodes/proxy" must not be enough for: whoever monitors nodes has it.
func runsCommands(path []string) bool {
	return len(path) > 0 && slices.Contains([]string{"exec", "attach", "run", "portForward"}, path[0])
}

var errNotProxyable = errors.New("address not allowed")

// proxyable refuses what is not the address of another host: loopback, link-local (cloud metadata among them), multicast and
// unspecified addresses, and names, which could resolve to one. A node's own API is not subject to it: it proves itself with
// a certificate for the node's name.
func proxyable(host string) error {
	if a, err := netip.ParseAddr(host); err != nil || !a.Unmap().IsGlobalUnicast() {
		return errNotProxyable
	}
	return nil
}

// podAddress reports whether an endpoint is the address of a pod of its own namespace: who may write endpoints may not
// make the API server call any address they like.
func (s *Server) podAddress(namespace string, ep *discoveryv1.Endpoint) bool {
	if ep.TargetRef == nil || ep.TargetRef.Namespace != namespace || proxyable(ep.Addresses[0]) != nil {
		return false
	}
	pod, err := s.auth.GetPod(context.Background(), namespace, ep.TargetRef.Name)
	return err == nil && slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == ep.Addresses[0] })
}

// service picks one ready endpoint of a service, which must be a pod, at random.
func (s *Server) service(t registry.Target) (*url.URL, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(t.Name)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", t.Name))
	}
	e := s.cfg.Cache.Get(t.Resource, t.Namespace, name)
	if e == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("services"), name)
	}
	svc := e.Object.(*corev1.Service)
	if port == "" && len(svc.Spec.Ports) != 1 {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	i := slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool {
		return port == "" || p.Name == port || itoa(int64(p.Port)) == port
	})
	if i < 0 {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %q found for service %q", port, name))
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("service %q has no endpoints of its own: it is an external name", name))
	}
	var hosts []string
	slicesRow := s.cfg.Kinds.Table().ByGVR(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"))
	for _, slice := range all[*discoveryv1.EndpointSlice](s.cfg.Cache, slicesRow, t.Namespace) {
		if slice.Labels[discoveryv1.LabelServiceName] != name {
			continue
		}
		for _, p := range slice.Ports {
			if p.Port == nil || (p.Name != nil && *p.Name != svc.Spec.Ports[i].Name) {
				continue
			}
			for _, ep := range slice.Endpoints {
				if (ep.Conditions.Ready == nil || *ep.Conditions.Ready) && len(ep.Addresses) > 0 && s.podAddress(t.Namespace, &ep) {
					hosts = append(hosts, net.JoinHostPort(ep.Addresses[0], itoa(int64(*p.Port))))
				}
			}
		}
	}
	if len(hosts) == 0 {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", t.Name))
	}
	return &url.URL{Scheme: scheme, Host: hosts[rand.IntN(len(hosts))]}, nil
}

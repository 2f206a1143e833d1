package builtin

import (
	"cmp"
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
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	coreapi "k8s.io/kubernetes/pkg/apis/core"
	podstrategy "k8s.io/kubernetes/pkg/registry/core/pod"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// insecure connects to pods and services without verifying their certificates, as upstream.
var insecure = &http.Transport{ //nolint:gochecknoglobals // a pool of connections, closed when idle
	TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
}

func proxyPod(req *http.Request, on kind.Connection) (http.Handler, error) {
	if err := on.Admit(req.Context(), &coreapi.PodProxyOptions{Path: proxyPath(on)}); err != nil {
		return nil, err
	}
	_, _, target := on.Target()
	location, rt, err := podstrategy.ResourceLocation(req.Context(), podGetter{on}, insecure, target)
	if err != nil {
		return nil, err
	}
	return forwardPath(req, on, location, rt), nil
}

// proxyService returns a handler that forwards requests to a ready endpoint of a service. The endpoint must be a
// pod.
func proxyService(req *http.Request, on kind.Connection) (http.Handler, error) {
	if err := on.Admit(req.Context(), &coreapi.ServiceProxyOptions{Path: proxyPath(on)}); err != nil {
		return nil, err
	}
	location, err := serviceLocation(on)
	if err != nil {
		return nil, err
	}
	return forwardPath(req, on, location, insecure), nil
}

// proxyNode returns a handler that forwards requests to the node's API or to another port of the node.
func proxyNode(req *http.Request, on kind.Connection) (http.Handler, error) {
	if runsCommands(on.Path()) {
		if err := on.MayCreate(req.Context()); err != nil {
			return nil, err
		}
	}
	if err := on.Admit(req.Context(), &coreapi.NodeProxyOptions{Path: proxyPath(on)}); err != nil {
		return nil, err
	}
	location, rt, err := nodeLocation(req.Context(), on)
	if err != nil {
		return nil, err
	}
	return forwardPath(req, on, location, rt), nil
}

// proxyPath returns the path behind the subresource, or "".
func proxyPath(on kind.Connection) string {
	if path := on.Path(); len(path) > 0 {
		return "/" + strings.Join(path, "/")
	}
	return ""
}

// forwardPath returns a handler that forwards requests to location, with the path behind the subresource.
func forwardPath(req *http.Request, on kind.Connection, location *url.URL, rt http.RoundTripper) http.Handler {
	location.Scheme = cmp.Or(location.Scheme, "http")
	// The handler keeps a trailing slash and redirects an empty path to "/".
	location.Path = proxyPath(on)
	location.RawQuery = req.URL.RawQuery
	return withoutCredentials(forwarder(on, location, rt, false))
}

func nodeLocation(ctx context.Context, on kind.Connection) (*url.URL, http.RoundTripper, error) {
	_, _, target := on.Target()
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(target)
	if !ok {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", target))
	}
	u, rt, err := on.Node(ctx, name)
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

// runsCommands reports whether a path of a node's API runs commands in containers. A WebSocket begins with a GET,
// and monitoring systems often have "get nodes/proxy", so this permission must not suffice.
func runsCommands(path []string) bool {
	return len(path) > 0 && slices.Contains([]string{"exec", "attach", "run", "portForward"}, path[0])
}

var errNotProxyable = errors.New("address not allowed")

// proxyable refuses hosts that are not global unicast addresses: loopback, link-local (including cloud metadata),
// multicast and unspecified addresses, and names, which could resolve to one. It does not apply to a node's own API,
// whose certificate is for the node's name.
func proxyable(host string) error {
	if a, err := netip.ParseAddr(host); err != nil || !a.Unmap().IsGlobalUnicast() {
		return errNotProxyable
	}
	return nil
}

// podAddress reports whether an endpoint is an address of a pod in its namespace. Otherwise, a user who may write
// endpoints could make the API server connect to any address.
func podAddress(on kind.Connection, namespace string, ep *discoveryv1.Endpoint) bool {
	if ep.TargetRef == nil || ep.TargetRef.Namespace != namespace || proxyable(ep.Addresses[0]) != nil {
		return false
	}
	pod, ok := on.Read(corev1.SchemeGroupVersion.WithKind("Pod"), namespace, ep.TargetRef.Name).(*corev1.Pod)
	return ok && slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == ep.Addresses[0] })
}

func noEndpoints(service string) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", service))
}

// serviceLocation picks a ready endpoint of a service at random. The endpoint must be a pod.
func serviceLocation(on kind.Connection) (*url.URL, error) {
	r, namespace, target := on.Target()
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(target)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", target))
	}
	svc, ok := on.Read(r.GroupVersionKind, namespace, name).(*corev1.Service)
	if !ok {
		return nil, noEndpoints(name) // upstream looks up the endpoints, with this error
	}
	if port == "" && len(svc.Spec.Ports) != 1 {
		return nil, noEndpoints(name)
	}
	i := slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool {
		return port == "" || p.Name == port || strconv.Itoa(int(p.Port)) == port
	})
	if i < 0 {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return nil, noEndpoints(name)
		}
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %s found for service %q", port, name))
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("service %q has no endpoints: it is of type ExternalName",
			name))
	}
	var hosts []string
	for _, o := range on.List(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), namespace) {
		slice, ok := o.(*discoveryv1.EndpointSlice)
		if !ok || slice.Labels[discoveryv1.LabelServiceName] != name {
			continue
		}
		for _, p := range slice.Ports {
			if p.Port == nil || (p.Name != nil && *p.Name != svc.Spec.Ports[i].Name) {
				continue
			}
			for _, ep := range slice.Endpoints {
				if (ep.Conditions.Ready == nil || *ep.Conditions.Ready) && len(ep.Addresses) > 0 && podAddress(on, namespace, &ep) {
					hosts = append(hosts, net.JoinHostPort(ep.Addresses[0], strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	if len(hosts) == 0 {
		return nil, noEndpoints(name)
	}
	return &url.URL{Scheme: scheme, Host: hosts[rand.IntN(len(hosts))]}, nil
}

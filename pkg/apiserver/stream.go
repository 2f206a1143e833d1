package apiserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authfilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	translator "k8s.io/apiserver/pkg/util/proxy"
	core "k8s.io/kubernetes/pkg/apis/core"
	corev1conv "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	kubelet "k8s.io/kubernetes/pkg/kubelet/client"
	podstrategy "k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/coracle-dev/coracle/pkg/registry"
)

// stream answers the subresources that are byte streams: log, exec, attach, portforward and proxy. They are passed to
// the node's agent, upgrades (SPDY, WebSocket) unchanged.
func (s *Server) stream(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, t registry.Target) {
	// A stream ends with the server.
	ctx, cancel := s.living(req.Context())
	defer cancel()
	req = req.WithContext(ctx)
	kind := t.Resource.Plural + "/" + t.Subresource
	var err error
	switch kind {
	case "pods/log":
		if req.Method != http.MethodGet {
			s.wrongMethod(w, req, info)
			return
		}
		err = s.logs(w, req, t)
	case "pods/exec", "pods/attach", "pods/portforward":
		if req.Method != http.MethodGet && req.Method != http.MethodPost {
			s.wrongMethod(w, req, info)
			return
		}
		err = s.upgrade(w, req, t)
	case "pods/proxy", "services/proxy", "nodes/proxy":
		err = s.proxy(w, req, info, t)
	default:
		s.notFound(w, req)
		return
	}
	if err != nil {
		s.fail(w, req, err)
	}
}

// podGetter gives upstream's location functions the internal form of pods.
type podGetter struct {
	s *Server
	t registry.Target
}

func (g podGetter) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	res, err := g.s.cfg.Registry.Get(ctx, registry.Target{Resource: g.t.Resource, Namespace: g.t.Namespace, Name: name}, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return g.t.Resource.Internal(res.Entry.Object)
}

// agents gives upstream's location functions the way to a node's agent.
type agents struct{ s *Server }

func (a agents) GetConnectionInfo(ctx context.Context, name types.NodeName) (*kubelet.ConnectionInfo, error) {
	if a.s.cfg.Nodes == nil {
		return nil, apierrors.NewServiceUnavailable("this server has no way to reach nodes")
	}
	u, rt, err := a.s.cfg.Nodes.Connect(ctx, string(name))
	if err != nil {
		return nil, err
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return &kubelet.ConnectionInfo{Scheme: u.Scheme, Hostname: u.Hostname(), Port: port, Transport: rt, InsecureSkipTLSVerifyTransport: rt}, nil
}

// streamOptions decodes the query of a stream into its versioned options, defaults them, and gives the internal form.
func streamOptions[V, I any](req *http.Request, from func(*url.Values, *V, conversion.Scope) error, defaults func(*V), to func(*V, *I, conversion.Scope) error) (*I, error) {
	var v V
	var in I
	q := req.URL.Query()
	if err := from(&q, &v, nil); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if defaults != nil {
		defaults(&v)
	}
	if err := to(&v, &in, nil); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return &in, nil
}

func (s *Server) logs(w http.ResponseWriter, req *http.Request, t registry.Target) error {
	o, err := streamOptions(req, corev1conv.Convert_url_Values_To_v1_PodLogOptions, nil, corev1conv.Convert_v1_PodLogOptions_To_core_PodLogOptions)
	if err != nil {
		return err
	}
	if o.Stream == nil {
		all := core.LogStreamAll
		o.Stream = &all
	}
	if errs := validation.ValidatePodLogOptions(o, true); len(errs) > 0 {
		return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), t.Name, errs)
	}
	location, transport, err := podstrategy.LogLocation(req.Context(), podGetter{s, t}, agents{s}, t.Name, o)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/plain")
	if location == nil { // not on a node yet: nothing was logged
		w.WriteHeader(http.StatusOK)
		return nil
	}
	streamer := &genericrest.LocationStreamer{
		Location: location, Transport: transport, ContentType: "text/plain", Flush: o.Follow,
		ResponseChecker: genericrest.NewGenericHttpResponseChecker(corev1.Resource("pods/log"), t.Name),
		RedirectChecker: genericrest.PreventRedirects,
	}
	in, _, _, err := streamer.InputStream(req.Context(), "", "")
	if err != nil {
		w.Header().Del("Content-Type")
		return err
	}
	if in == nil {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	defer in.Close()
	if wsstream.IsWebSocketRequest(req) {
		w.Header().Del("Content-Type")
		// The reader drops what comes together with the end, as a body of known length does; a buffer parts the two.
		return wsstream.NewReader(bufio.NewReader(in), true, wsstream.NewDefaultReaderProtocols()).Copy(w, req)
	}
	w.WriteHeader(http.StatusOK)
	if !o.Follow {
		_, _ = io.Copy(w, in)
		return nil
	}
	rc := http.NewResponseController(w)
	_ = rc.Flush()
	buf := make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return nil //nolint:nilerr // the client went away
			}
			_ = rc.Flush()
		}
		if err != nil {
			return nil //nolint:nilerr // the end of the log, or of the container
		}
	}
}

func (s *Server) upgrade(w http.ResponseWriter, req *http.Request, t registry.Target) error {
	// A WebSocket opens with GET, so "get" alone must not be enough to run commands.
	attrs, err := authfilters.GetAuthorizerAttributes(req.Context())
	if err != nil {
		return err
	}
	if attrs.GetVerb() != "create" {
		record := *attrs.(*authorizer.AttributesRecord)
		record.Verb = "create"
		if d, reason, _ := s.auth.Authorize(req.Context(), record); d != authorizer.DecisionAllow {
			return responsewriters.ForbiddenStatusError(record, reason)
		}
	}
	var location *url.URL
	var info *kubelet.ConnectionInfo
	var streams translator.Options
	pods := podGetter{s, t}
	switch t.Subresource {
	case "exec":
		o, err := streamOptions(req, corev1conv.Convert_url_Values_To_v1_PodExecOptions, nil, corev1conv.Convert_v1_PodExecOptions_To_core_PodExecOptions)
		if err != nil {
			return err
		}
		if len(o.Command) == 0 {
			return apierrors.NewBadRequest("you must specify at least 1 command for the container")
		}
		streams = translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
		location, info, err = podstrategy.ExecLocation(req.Context(), pods, agents{s}, t.Name, o)
		if err != nil {
			return err
		}
	case "attach":
		o, err := streamOptions(req, corev1conv.Convert_url_Values_To_v1_PodAttachOptions, nil, corev1conv.Convert_v1_PodAttachOptions_To_core_PodAttachOptions)
		if err != nil {
			return err
		}
		streams = translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
		location, info, err = podstrategy.AttachLocation(req.Context(), pods, agents{s}, t.Name, o)
		if err != nil {
			return err
		}
	default:
		o, err := streamOptions(req, corev1conv.Convert_url_Values_To_v1_PodPortForwardOptions, nil, corev1conv.Convert_v1_PodPortForwardOptions_To_core_PodPortForwardOptions)
		if err != nil {
			return err
		}
		location, info, err = podstrategy.PortForwardLocation(req.Context(), pods, agents{s}, t.Name, o)
		if err != nil {
			return err
		}
	}
	// The two WebSocket protocols of kubectl are SPDY in another dress (KEP-4006): they are undressed here, so that
	// agents need to speak SPDY and the plain channel protocols only.
	var h http.Handler = s.passer(location, info.Transport, false, true)
	if t.Subresource == "portforward" {
		if wsstream.IsWebSocketRequestWithTunnelingProtocol(req) {
			h = translator.NewTunnelingHandler(s.passer(location, info.Transport, false, true))
		}
	} else if wsstream.IsWebSocketRequestWithStreamCloseProtocol(req) {
		h = translator.NewStreamTranslatorHandler(location, info.Transport, 0, streams)
	}
	h.ServeHTTP(w, withoutCredentials(req))
	return nil
}

// passer hands requests on to location.
func (s *Server) passer(location *url.URL, rt http.RoundTripper, rewrite, upgradeOnly bool) *proxy.UpgradeAwareHandler {
	h := proxy.NewUpgradeAwareHandler(location, rt, rewrite, upgradeOnly, responder{s})
	h.UseLocationHost = true
	return h
}

// withoutCredentials is the request without what must not leave this server.
func withoutCredentials(req *http.Request) *http.Request {
	req = req.Clone(req.Context())
	req.Header.Del("Authorization")
	return req
}

type responder struct{ s *Server }

func (r responder) Error(w http.ResponseWriter, req *http.Request, err error) {
	var status *apierrors.StatusError
	if known, ok := err.(*apierrors.StatusError); ok { //nolint:errorlint // the proxy gives it bare
		status = known
	} else {
		status = apierrors.NewServiceUnavailable("error trying to reach service: " + err.Error())
	}
	r.s.fail(w, req, status)
}

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
	return &url.URL{Scheme: scheme, Host: net.JoinHostPort(u.Hostname(), port)}, insecure, nil
}

// service picks one ready endpoint of a service at random.
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
	slicesRow := s.cfg.Table.ByGVR(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"))
	for _, slice := range all[*discoveryv1.EndpointSlice](s.cfg.Cache, slicesRow, t.Namespace) {
		if slice.Labels[discoveryv1.LabelServiceName] != name {
			continue
		}
		for _, p := range slice.Ports {
			if p.Port == nil || (p.Name != nil && *p.Name != svc.Spec.Ports[i].Name) {
				continue
			}
			for _, ep := range slice.Endpoints {
				if (ep.Conditions.Ready == nil || *ep.Conditions.Ready) && len(ep.Addresses) > 0 {
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

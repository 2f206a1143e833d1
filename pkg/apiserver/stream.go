package apiserver

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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

// mayCreate checks that the user of the request, whatever its method, may create what it is about.
func (s *Server) mayCreate(ctx context.Context) error {
	attrs, err := authfilters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if attrs.GetVerb() == "create" {
		return nil
	}
	as := *attrs.(*authorizer.AttributesRecord)
	as.Verb = "create"
	decision, reason, err := s.auth.Authorize(ctx, as)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		s.log.Debug("authorization failed", "error", err)
	}
	return responsewriters.ForbiddenStatusError(as, reason)
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
	// A WebSocket begins with a GET, and must not need less than a POST does (kubernetes/kubernetes#133515).
	if err := s.mayCreate(req.Context()); err != nil {
		return err
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

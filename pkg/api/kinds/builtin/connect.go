package builtin

import (
	"cmp"
	"context"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	corev1conv "k8s.io/kubernetes/pkg/apis/core/v1"
	kubelet "k8s.io/kubernetes/pkg/kubelet/client"
	podstrategy "k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// podGetter returns pods in the internal version, for upstream's location functions.
type podGetter struct{ on kind.Connection }

func (g podGetter) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return g.on.Get(ctx, name)
}

// agents connects to node agents, for upstream's location functions.
type agents struct{ on kind.Connection }

func (a agents) GetConnectionInfo(ctx context.Context, name types.NodeName) (*kubelet.ConnectionInfo, error) {
	u, rt, err := a.on.Node(ctx, string(name))
	if err != nil {
		return nil, err
	}
	port := cmp.Or(u.Port(), "443")
	return &kubelet.ConnectionInfo{
		Scheme:                         u.Scheme,
		Hostname:                       u.Hostname(),
		Port:                           port,
		Transport:                      rt,
		InsecureSkipTLSVerifyTransport: rt,
	}, nil
}

// streamOptions decodes a stream's query and converts it to the internal version.
func streamOptions[V, I any](req *http.Request, from func(*url.Values, *V, conversion.Scope) error,
	to func(*V, *I, conversion.Scope) error) (*I, error) {
	var v V
	var in I
	q := req.URL.Query()
	if err := from(&q, &v, nil); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if err := to(&v, &in, nil); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return &in, nil
}

// execPod returns a handler that runs a command in a container, through the node's agent.
func execPod(req *http.Request, on kind.Connection) (http.Handler, error) {
	// A WebSocket begins with a GET, so require the permission to create as well (kubernetes/kubernetes#133515).
	if err := on.MayCreate(req.Context()); err != nil {
		return nil, err
	}
	o, err := streamOptions(req, corev1conv.Convert_url_Values_To_v1_PodExecOptions,
		corev1conv.Convert_v1_PodExecOptions_To_core_PodExecOptions)
	if err != nil {
		return nil, err
	}
	if len(o.Command) == 0 {
		return nil, apierrors.NewBadRequest("you must specify at least 1 command for the container")
	}
	if err := on.Admit(req.Context(), o); err != nil {
		return nil, err
	}
	_, _, name := on.Target()
	location, agent, err := podstrategy.ExecLocation(req.Context(), podGetter{on}, agents{on}, name, o)
	if err != nil {
		return nil, err
	}
	return terminal(req, on, location, agent.Transport, translator.Options{
		Stdin:  o.Stdin,
		Stdout: o.Stdout,
		Stderr: o.Stderr,
		Tty:    o.TTY,
	}), nil
}

func attachPod(req *http.Request, on kind.Connection) (http.Handler, error) {
	if err := on.MayCreate(req.Context()); err != nil {
		return nil, err
	}
	o, err := streamOptions(req, corev1conv.Convert_url_Values_To_v1_PodAttachOptions,
		corev1conv.Convert_v1_PodAttachOptions_To_core_PodAttachOptions)
	if err != nil {
		return nil, err
	}
	if err := on.Admit(req.Context(), o); err != nil {
		return nil, err
	}
	_, _, name := on.Target()
	location, agent, err := podstrategy.AttachLocation(req.Context(), podGetter{on}, agents{on}, name, o)
	if err != nil {
		return nil, err
	}
	return terminal(req, on, location, agent.Transport, translator.Options{
		Stdin:  o.Stdin,
		Stdout: o.Stdout,
		Stderr: o.Stderr,
		Tty:    o.TTY,
	}), nil
}

func forwardPorts(req *http.Request, on kind.Connection) (http.Handler, error) {
	if err := on.MayCreate(req.Context()); err != nil {
		return nil, err
	}
	o, err := streamOptions(req, corev1conv.Convert_url_Values_To_v1_PodPortForwardOptions,
		corev1conv.Convert_v1_PodPortForwardOptions_To_core_PodPortForwardOptions)
	if err != nil {
		return nil, err
	}
	if err := on.Admit(req.Context(), o); err != nil {
		return nil, err
	}
	_, _, name := on.Target()
	location, agent, err := podstrategy.PortForwardLocation(req.Context(), podGetter{on}, agents{on}, name, o)
	if err != nil {
		return nil, err
	}
	upgrade := forwarder(on, location, agent.Transport, true)
	if wsstream.IsWebSocketRequestWithTunnelingProtocol(req) {
		return withoutCredentials(translator.NewTunnelingHandler(upgrade)), nil
	}
	return withoutCredentials(upgrade), nil
}

// terminal returns a handler that forwards a process's streams. It translates kubectl's WebSocket protocols
// (KEP-4006) to SPDY, so agents need only SPDY and the plain channel protocols.
func terminal(req *http.Request, on kind.Connection, location *url.URL, rt http.RoundTripper,
	streams translator.Options) http.Handler {
	if wsstream.IsWebSocketRequestWithStreamCloseProtocol(req) {
		return withoutCredentials(translator.NewStreamTranslatorHandler(location, rt, 0, streams))
	}
	return withoutCredentials(forwarder(on, location, rt, true))
}

func forwarder(on kind.Connection, location *url.URL, rt http.RoundTripper, upgrade bool) *proxy.UpgradeAwareHandler {
	h := proxy.NewUpgradeAwareHandler(location, rt, !upgrade, upgrade, responder{on})
	h.UseLocationHost = true
	return h
}

// withoutCredentials removes the Authorization header, which must not leave this server, before h serves a request.
func withoutCredentials(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		req = req.Clone(req.Context())
		req.Header.Del("Authorization")
		h.ServeHTTP(w, req)
	})
}

type responder struct{ on kind.Connection }

func (r responder) Error(w http.ResponseWriter, req *http.Request, err error) {
	var status *apierrors.StatusError
	if known, ok := err.(*apierrors.StatusError); ok { //nolint:errorlint // the proxy does not wrap it
		status = known
	} else {
		status = apierrors.NewServiceUnavailable("error trying to reach service: " + err.Error())
	}
	r.on.Fail(w, req, status)
}

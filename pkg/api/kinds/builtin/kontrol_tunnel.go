package builtin

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/pull"
)

// tunnelled adds to Clusters the subresource by which their agents connect, and the one by which people reach those clusters. Whoever may create
// the tunnel of a Cluster is that Cluster.
func tunnelled(r *kind.Resource) *kind.Resource {
	r.Subresources = append(r.Subresources,
		kind.Subresource{Name: "tunnel", GroupVersionKind: r.GroupVersionKind, Verbs: []string{"create"}, Connect: tunnel, Methods: []string{http.MethodPost}},
		kind.Subresource{Name: "proxy", GroupVersionKind: r.GroupVersionKind, Verbs: proxyVerbs, Connect: proxyCluster})
	return r
}

// proxyCluster forwards requests for objects to the API of a cluster that has connected itself. They are made with its agent's credentials, as what
// Resources do: who may use it has the rights of the agent, but for the verbs of the requests, which are those of this subresource.
func proxyCluster(req *http.Request, on kind.Connection) (http.Handler, error) {
	r, namespace, name := on.Target()
	c, ok := on.Read(r.GroupVersionKind, namespace, name).(*kontrol.Cluster)
	if !ok {
		return nil, apierrors.NewNotFound(r.GR(), name)
	}
	if !c.Spec.Pull {
		return nil, apierrors.NewConflict(r.GR(), name, errors.New("spec.pull is not true: it has no agent, and is reached with its kubeconfig"))
	}
	t := on.Tunnels()
	if t == nil {
		return nil, apierrors.NewServiceUnavailable(pull.ErrElsewhere.Error())
	}
	if httpstream.IsUpgradeRequest(req) {
		return nil, apierrors.NewBadRequest("agents pass on requests for objects alone, without upgrades")
	}
	location := &url.URL{Scheme: "http", Host: "agent", Path: proxyPath(on), RawQuery: req.URL.RawQuery}
	h := proxy.NewUpgradeAwareHandler(location, t.Transport(name), false, false, responder{on})
	h.UseLocationHost = true
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		req = req.Clone(req.Context())
		for name := range req.Header {
			if name == "Authorization" || name == "Cookie" || strings.HasPrefix(name, "Impersonate-") || strings.HasPrefix(name, "X-Remote-") {
				req.Header.Del(name)
			}
		}
		h.ServeHTTP(w, req)
	}), nil
}

// tunnel takes the connection of a cluster's agent.
func tunnel(_ *http.Request, on kind.Connection) (http.Handler, error) {
	r, namespace, name := on.Target()
	c, ok := on.Read(r.GroupVersionKind, namespace, name).(*kontrol.Cluster)
	if !ok {
		return nil, apierrors.NewNotFound(r.GR(), name)
	}
	if !c.Spec.Pull {
		return nil, apierrors.NewConflict(r.GR(), name, errors.New("spec.pull is not true: the hub connects to this cluster"))
	}
	t := on.Tunnels()
	if t == nil {
		return nil, apierrors.NewServiceUnavailable(pull.ErrElsewhere.Error())
	}
	if err := t.Ready(name); err != nil {
		return nil, apierrors.NewServiceUnavailable(err.Error())
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		pull.Accept(w, req, func(conn net.Conn) { _ = t.Serve(req.Context(), name, conn) })
	}), nil
}

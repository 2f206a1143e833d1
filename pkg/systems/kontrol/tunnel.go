package kontrol

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/streaming/pkg/httpstream"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/builtin"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/pull"
)

// tunnelled adds to Clusters the subresources tunnel, to which agents connect, and proxy, through which users reach
// connected clusters. A user who may create the tunnel of a Cluster acts as that cluster.
func tunnelled(hub *pull.Hub, r *kind.Resource) *kind.Resource {
	r.Subresources = append(r.Subresources,
		kind.Subresource{
			Name:             "tunnel",
			GroupVersionKind: r.GroupVersionKind,
			Verbs:            []string{"create"},
			Connect:          tunnels{hub}.accept,
			Methods:          []string{http.MethodPost},
		},
		kind.Subresource{
			Name:             "proxy",
			GroupVersionKind: r.GroupVersionKind,
			Verbs:            []string{"create", "delete", "get", "patch", "update"},
			Connect:          tunnels{hub}.proxy,
		})
	return r
}

// tunnels serves the subresources. hub is nil if this server accepts no agents.
type tunnels struct{ hub *pull.Hub }

// proxy forwards requests for objects through the agent of a pull cluster. The agent sends them with its own
// credentials, so a user has the agent's rights, limited to the verbs that RBAC allows on this subresource.
func (t tunnels) proxy(req *http.Request, on kind.Connection) (http.Handler, error) {
	r, namespace, name := on.Target()
	c, ok := on.Read(r.GroupVersionKind, namespace, name).(*kontrol.Cluster)
	if !ok {
		return nil, apierrors.NewNotFound(r.GR(), name)
	}
	if !c.Spec.Pull {
		return nil, apierrors.NewConflict(r.GR(), name,
			errors.New("spec.pull is not true: the hub reaches the cluster with its kubeconfig, not through an agent"))
	}
	if t.hub == nil {
		return nil, apierrors.NewServiceUnavailable(pull.ErrElsewhere.Error())
	}
	if httpstream.IsUpgradeRequest(req) {
		return nil, apierrors.NewBadRequest("agents forward only requests for objects, without upgrades")
	}
	h := builtin.Forward(req, on, &url.URL{Scheme: "http", Host: "agent"}, t.hub.Transport(name))
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		req = req.Clone(req.Context())
		for name := range req.Header {
			if name == "Authorization" || name == "Cookie" || strings.HasPrefix(name, "Impersonate-") ||
				strings.HasPrefix(name, "X-Remote-") {
				req.Header.Del(name)
			}
		}
		h.ServeHTTP(w, req)
	}), nil
}

// accept upgrades the connection of a cluster's agent, and serves it until it ends.
func (t tunnels) accept(_ *http.Request, on kind.Connection) (http.Handler, error) {
	r, namespace, name := on.Target()
	c, ok := on.Read(r.GroupVersionKind, namespace, name).(*kontrol.Cluster)
	if !ok {
		return nil, apierrors.NewNotFound(r.GR(), name)
	}
	if !c.Spec.Pull {
		return nil, apierrors.NewConflict(r.GR(), name, errors.New("spec.pull is not true: the hub connects to this cluster"))
	}
	if t.hub == nil {
		return nil, apierrors.NewServiceUnavailable(pull.ErrElsewhere.Error())
	}
	if err := t.hub.Ready(name); err != nil {
		return nil, apierrors.NewServiceUnavailable(err.Error())
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		pull.Accept(w, req, func(conn net.Conn) { _ = t.hub.Serve(req.Context(), name, conn) })
	}), nil
}

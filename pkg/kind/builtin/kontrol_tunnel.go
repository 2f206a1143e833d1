package builtin

import (
	"errors"
	"net"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/kontrol/pull"
)

// tunnelled adds to Clusters the subresource by which their agents connect. Who may create it for a Cluster is that Cluster.
func tunnelled(r *kind.Resource) *kind.Resource {
	r.Subresources = append(r.Subresources, kind.Subresource{Name: "tunnel", GroupVersionKind: r.GroupVersionKind, Verbs: []string{"create"}, Connect: tunnel, Methods: []string{http.MethodPost}})
	return r
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

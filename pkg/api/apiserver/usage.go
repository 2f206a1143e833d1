package apiserver

import (
	"context"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/endpoints/request"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// Usage provides the objects of metrics.k8s.io. It omits nodes and pods without metrics.
type Usage interface {
	Nodes(ctx context.Context, nodes []*corev1.Node) []*metricsv1beta1.NodeMetrics
	Pods(ctx context.Context, pods []*corev1.Pod) []*metricsv1beta1.PodMetrics
}

// usage serves metrics.k8s.io. Nothing is stored: each read asks the nodes.
func (s *Server) usage(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, r *kind.Resource) {
	t := registry.Target{Resource: r, Namespace: info.Namespace, Name: info.Name}
	if s.cfg.Usage == nil {
		s.fail(w, req, apierrors.NewServiceUnavailable("this server does not read the usage of nodes"))
		return
	}
	switch whole, ok := s.unstored(w, req, info, r); {
	case !ok:
	case whole:
		s.listUsage(w, req, t)
	default:
		s.getUsage(w, req, t)
	}
}

func (s *Server) getUsage(w http.ResponseWriter, req *http.Request, t registry.Target) {
	n, err := negotiate(req, can(t.Resource))
	if err != nil {
		s.fail(w, req, err)
		return
	}
	name := t.Name
	if t.Resource.Namespaced {
		name = t.Namespace + "/" + t.Name // metrics-server's format
	}
	found := s.used(req.Context(), t.Resource, cache.Query{
		Namespace: t.Namespace, Fields: fields.OneTermEqualSelector("metadata.name", t.Name),
	})
	if len(found) == 0 {
		s.fail(w, req, apierrors.NewNotFound(t.Resource.GR(), name))
		return
	}
	s.writeResult(w, req, n, http.StatusOK, t, registry.Result{Entry: found[0]})
}

func (s *Server) listUsage(w http.ResponseWriter, req *http.Request, t registry.Target) {
	n, err := negotiate(req, can(t.Resource))
	if err != nil {
		s.fail(w, req, err)
		return
	}
	q, err := selection(req, t)
	if err != nil {
		s.fail(w, req, err)
		return
	}
	s.writeList(w, req, n, t, &registry.List{Entries: s.used(req.Context(), t.Resource, q)})
}

// used returns the usage of the nodes or pods that a query selects, sorted by namespace and name.
func (s *Server) used(ctx context.Context, r *kind.Resource, q cache.Query) []*cache.Entry {
	what := corev1.SchemeGroupVersion.WithKind("Pod")
	if !r.Namespaced {
		what.Kind = "Node"
	}
	row := s.cfg.Kinds.Table().ByGVK(what)
	if row == nil {
		return nil
	}
	entries, _ := s.cfg.Cache.List(row, q)
	slices.SortFunc(entries, func(a, b *cache.Entry) int { return strings.Compare(a.Key, b.Key) })
	var objects []client.Object
	if r.Namespaced {
		var pods []*corev1.Pod
		for _, e := range entries {
			if p, ok := e.Object.(*corev1.Pod); ok && p.Status.Phase == corev1.PodRunning {
				pods = append(pods, p)
			}
		}
		for _, m := range s.cfg.Usage.Pods(ctx, pods) {
			objects = append(objects, m)
		}
	} else {
		var nodes []*corev1.Node
		for _, e := range entries {
			if n, ok := e.Object.(*corev1.Node); ok {
				nodes = append(nodes, n)
			}
		}
		for _, m := range s.cfg.Usage.Nodes(ctx, nodes) {
			objects = append(objects, m)
		}
	}
	out := make([]*cache.Entry, len(objects))
	for i, o := range objects {
		out[i] = cache.NewEntry(r, r.Key(o.GetNamespace(), o.GetName()), o, 0)
	}
	return out
}

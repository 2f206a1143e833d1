package apiserver

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// Usage provides the objects of metrics.k8s.io. It omits nodes and pods without metrics.
type Usage interface {
	Nodes(ctx context.Context, nodes []*corev1.Node) []*metricsv1beta1.NodeMetrics
	Pods(ctx context.Context, pods []*corev1.Pod) []*metricsv1beta1.PodMetrics
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

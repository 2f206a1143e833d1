package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// objects has the verbs that stored and computed kinds share. Errors are Status errors.
type objects interface {
	Get(ctx context.Context, t registry.Target, o metav1.GetOptions) (registry.Result, error)
	List(ctx context.Context, t registry.Target, o metav1.ListOptions) (*registry.List, error)
	Create(ctx context.Context, t registry.Target, obj runtime.Object, o metav1.CreateOptions) (registry.Result, error)
}

func (s *Server) objects(r *kind.Resource) objects {
	if r.Computed {
		return computed{s}
	}
	return s.cfg.Registry
}

// computed serves the kinds that are not stored: the response to a create has a status, and a read asks the
// components of the control plane or the nodes.
type computed struct{ *Server }

func (c computed) Get(ctx context.Context, t registry.Target, _ metav1.GetOptions) (registry.Result, error) {
	found, err := c.entries(ctx, t.Resource, cache.Query{
		Namespace: t.Namespace,
		Labels:    labels.Everything(),
		Fields:    fields.OneTermEqualSelector("metadata.name", t.Name),
	})
	if err != nil {
		return registry.Result{}, err
	}
	if len(found) > 0 {
		return registry.Result{Entry: found[0]}, nil
	}
	gr, name := t.Resource.GR(), t.Name
	if gr.Group == "" {
		gr.Resource = t.Resource.Singular // as upstream
	} else if t.Resource.Namespaced {
		name = t.Namespace + "/" + name // metrics-server's format
	}
	return registry.Result{}, apierrors.NewNotFound(gr, name)
}

func (c computed) List(ctx context.Context, t registry.Target, o metav1.ListOptions) (*registry.List, error) {
	q := cache.Query{Namespace: t.Namespace}
	var err error
	if q.Labels, err = labels.Parse(o.LabelSelector); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if q.Fields, err = fields.ParseSelector(o.FieldSelector); err == nil {
		q.Fields, err = t.Resource.Selector(q.Fields)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	entries, err := c.entries(ctx, t.Resource, q)
	return &registry.List{Entries: entries}, err
}

// entries returns the objects of a kind that q selects, in the order of lists.
func (c computed) entries(ctx context.Context, r *kind.Resource, q cache.Query) ([]*cache.Entry, error) {
	if r.Group != metricsv1beta1.GroupName {
		return c.components(ctx, r, q), nil
	}
	if c.cfg.Usage == nil {
		return nil, apierrors.NewServiceUnavailable("this server does not read the usage of nodes")
	}
	return c.used(ctx, r, q), nil
}

// Create fills in the status of a review. A Binding binds its pod.
func (c computed) Create(ctx context.Context, t registry.Target, obj runtime.Object,
	o metav1.CreateOptions) (registry.Result, error) {
	m, err := meta.Accessor(obj)
	if err == nil { // as for every create
		err = rest.EnsureObjectNamespaceMatchesRequestNamespace(t.Namespace, m)
	}
	if err != nil {
		return registry.Result{}, err
	}
	b, ok := obj.(*corev1.Binding)
	if !ok {
		return registry.Result{Object: obj}, c.answer(ctx, t.Namespace, obj)
	}
	pods := c.cfg.Kinds.Table().ByGVR(corev1.SchemeGroupVersion.WithResource("pods"))
	if pods == nil {
		return registry.Result{}, apierrors.NewServiceUnavailable("this server has no pods")
	}
	return c.cfg.Registry.Create(ctx,
		registry.Target{Resource: pods, Subresource: "binding", Namespace: t.Namespace, Name: b.Name}, b, o)
}

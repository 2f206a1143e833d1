package apiserver

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authfilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/fairness"
	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// stream serves a byte-stream subresource with the handler that its row provides.
func (s *Server) stream(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, sub *kind.Subresource,
	t registry.Target) {
	if len(sub.Methods) > 0 && !slices.Contains(sub.Methods, req.Method) {
		s.wrongMethod(w, req)
		return
	}
	// End the stream when the server stops.
	ctx, cancel := s.living(req.Context())
	defer cancel()
	req = req.WithContext(ctx)
	h, err := sub.Connect(req, streamParent{s, t, info.Parts[min(3, len(info.Parts)):], &recorded(w).ticket})
	if err != nil {
		s.fail(w, req, err)
		return
	}
	h.ServeHTTP(w, req)
}

type streamParent struct {
	s      *Server
	t      registry.Target
	path   []string
	ticket *fairness.Ticket
}

var _ kind.Connection = streamParent{}

func (c streamParent) Target() (r *kind.Resource, namespace, name string) {
	return c.t.Resource, c.t.Namespace, c.t.Name
}

func (c streamParent) Path() []string { return c.path }

func (c streamParent) Get(ctx context.Context, name string) (runtime.Object, error) {
	res, err := c.s.cfg.Registry.Get(ctx, registry.Target{Resource: c.t.Resource, Namespace: c.t.Namespace, Name: name},
		metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return c.t.Resource.Internal(res.Entry.Object)
}

func (c streamParent) Read(gvk schema.GroupVersionKind, namespace, name string) client.Object {
	if r := c.s.cfg.Kinds.Table().ByGVK(gvk); r != nil {
		if e := c.s.cfg.Cache.Get(r, namespace, name); e != nil {
			return e.Object
		}
	}
	return nil
}

func (c streamParent) List(gvk schema.GroupVersionKind, namespace string) []client.Object {
	return all[client.Object](c.s.cfg.Cache, c.s.cfg.Kinds.Table().ByGVK(gvk), namespace)
}

func (c streamParent) Change(ctx context.Context, gvk schema.GroupVersionKind, namespace, name string,
	change func(client.Object) (client.Object, error)) error {
	r := c.s.cfg.Kinds.Table().ByGVK(gvk)
	if r == nil {
		return apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, name)
	}
	return c.s.cfg.Registry.Change(ctx, registry.Target{Resource: r, Namespace: namespace, Name: name}, change)
}

func (c streamParent) Await(ctx context.Context, gvk schema.GroupVersionKind, namespace string,
	until func() bool) error {
	w, _, _, err := c.s.cfg.Cache.Watch(c.s.cfg.Kinds.Table().ByGVK(gvk), cache.Query{Namespace: namespace}, -1)
	if err != nil {
		return err
	}
	defer w.Close()
	for !until() {
		if _, err := w.Next(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c streamParent) Node(ctx context.Context, name string) (*url.URL, http.RoundTripper, error) {
	if c.s.cfg.Nodes == nil {
		return nil, nil, apierrors.NewServiceUnavailable("this server cannot reach nodes")
	}
	return c.s.cfg.Nodes.Connect(ctx, name)
}

func (c streamParent) Policies() kind.Policies { return c.s.cfg.Policies }

func (c streamParent) Admit(ctx context.Context, options runtime.Object) error {
	return c.s.cfg.Registry.AdmitConnect(ctx, c.t, options)
}

func (c streamParent) Fail(w http.ResponseWriter, req *http.Request, err error) {
	c.s.fail(w, req, err)
}

func (c streamParent) MayCreate(ctx context.Context) error {
	attrs, err := authfilters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if attrs.GetVerb() == "create" {
		return nil
	}
	as := *attrs.(*authorizer.AttributesRecord)
	as.Verb = "create"
	return c.authorize(ctx, as)
}

func (c streamParent) Hold(n int) error {
	if c.ticket.Hold(n) != nil {
		return errTooMany()
	}
	return nil
}

func (c streamParent) Drop(n int) { c.ticket.Drop(n) }

func (c streamParent) Recheck(ctx context.Context) error {
	attrs, err := authfilters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return c.authorize(ctx, attrs)
}

func (c streamParent) authorize(ctx context.Context, as authorizer.Attributes) error {
	decision, reason, err := c.s.auth.Authorize(ctx, as)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		c.s.log.Debug("authorization failed", "error", err)
	}
	return responsewriters.ForbiddenStatusError(as, reason)
}

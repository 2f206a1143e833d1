package apiserver

import (
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/kind"
)

func (s *Server) dispatch(w http.ResponseWriter, req *http.Request, info *request.RequestInfo) {
	if strings.HasPrefix(req.URL.Path, "//") { // RequestInfo parses it as if one slash were missing
		http.NotFound(w, req)
		return
	}
	if r := s.remote(req, info); r != nil {
		s.forward(w, req, r)
		return
	}
	if !info.IsResourceRequest {
		s.nonResource(w, req)
		return
	}
	if info.Verb == "proxy" { // /api/v1/proxy was removed from Kubernetes
		s.notFound(w, req)
		return
	}
	gvr := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	r := s.cfg.Kinds.Table().ByGVR(gvr)
	if r == nil {
		s.notFound(w, req)
		return
	}
	if r.Deprecated != "" {
		warning.AddWarning(req.Context(), "", r.Deprecated)
	}
	t := registry.Target{Resource: r, Subresource: info.Subresource, Namespace: info.Namespace, Name: info.Name}
	if !r.Namespaced {
		if info.Namespace != "" && info.Resource != "namespaces" {
			s.notFound(w, req)
			return
		}
		t.Namespace = ""
	}
	// For lists with a field selector on metadata.name, RequestInfo sets Name, which the authorizer needs.
	whole := len(info.Parts) < 2
	if whole {
		t.Name = ""
	}
	can := func(verb string) bool { return slices.Contains(r.Verbs, verb) }
	everywhere := r.Namespaced && t.Namespace == ""
	switch {
	case t.Subresource == "" && len(info.Parts) > 2, !whole && (everywhere || !can("get")),
		whole && everywhere && !can("list"):
		s.notFound(w, req)
		return
	case everywhere && (info.Verb == "create" || info.Verb == "deletecollection"):
		s.wrongMethod(w, req)
		return
	}
	if t.Subresource != "" {
		s.subresource(w, req, info, t)
		return
	}
	s.object(w, req, info, t, whole)
}

// object serves a request for objects of a kind. whole means that the request names no single object.
func (s *Server) object(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, t registry.Target,
	whole bool) {
	r := t.Resource
	var err error
	switch verb := info.Verb; {
	case !slices.Contains(r.Verbs, verb), isHead(req, r):
		s.unsupported(w, req, info, r)
	case verb == "watch" && req.Method != http.MethodGet: // all paths below /watch have this verb, whatever the method
		s.unsupported(w, req, info, r)
	case verb == "get" && !whole:
		err = s.get(w, req, t)
	case verb == "list" && whole:
		err = s.list(w, req, t)
	case verb == "watch":
		err = s.watch(w, req, watchTarget(req, info, t))
	case verb == "create" && whole:
		err = s.create(w, req, t)
	case verb == "update" && !whole:
		err = s.update(w, req, t)
	case verb == "patch" && !whole:
		err = s.patch(w, req, t)
	case verb == "delete" && !whole:
		err = s.delete(w, req, t)
	case verb == "deletecollection" && whole:
		err = s.deleteCollection(w, req, t)
	default:
		s.unsupported(w, req, info, r)
	}
	if err != nil {
		s.fail(w, req, err)
	}
}

// watchTarget turns /watch/.../name, and a watch on one object's path, into a watch with a field selector.
func watchTarget(req *http.Request, info *request.RequestInfo, t registry.Target) registry.Target {
	if len(info.Parts) > 1 {
		q := req.URL.Query()
		q.Set("fieldSelector", strings.Trim(q.Get("fieldSelector")+",metadata.name="+info.Parts[1], ","))
		u := *req.URL
		u.RawQuery = q.Encode()
		*req = *req.WithContext(req.Context())
		req.URL = &u
	}
	t.Name = ""
	return t
}

func (s *Server) subresource(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, t registry.Target) {
	var verbs []string
	var sub *kind.Subresource
	if t.Subresource == "status" && t.Resource.Status != nil {
		verbs = []string{"get", "update", "patch"}
	} else if sub = t.Resource.Subresource(t.Subresource); sub == nil {
		if t.Resource.Custom && t.Name != "" {
			s.fail(w, req, apierrors.NewNotFound(t.Resource.GR(), t.Name))
		} else {
			s.notFound(w, req)
		}
		return
	} else {
		verbs = sub.Verbs
	}
	if t.Name == "" {
		s.notFound(w, req)
		return
	}
	if sub != nil && sub.Connect != nil {
		s.stream(w, req, info, sub, t)
		return
	}
	var err error
	switch verb := info.Verb; {
	case len(info.Parts) > 3:
		s.notFound(w, req)
	case !slices.Contains(verbs, verb), isHead(req, t.Resource):
		s.unsupported(w, req, info, t.Resource)
	case verb == "get":
		err = s.get(w, req, t)
	case verb == "create":
		err = s.create(w, req, t)
	case verb == "update":
		err = s.update(w, req, t)
	case verb == "patch":
		err = s.patch(w, req, t)
	default:
		s.unsupported(w, req, info, t.Resource)
	}
	if err != nil {
		s.fail(w, req, err)
	}
}

// notFound responds with a Status for paths in the API's own groups, and with plain text for others, as upstream.
func (s *Server) notFound(w http.ResponseWriter, req *http.Request) {
	if !s.inGroup(req.URL.Path) {
		http.NotFound(w, req)
		return
	}
	s.fail(w, req, apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false))
}

// inGroup reports whether a path belongs to the core group or to another group that has no custom resources.
func (s *Server) inGroup(path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] != "apis" || len(parts) < 2 {
		return parts[0] == "api"
	}
	return slices.ContainsFunc(s.disc().groups, func(g metav1.APIGroup) bool { return g.Name == parts[1] }) &&
		!slices.ContainsFunc(s.cfg.Kinds.Table().All(), func(r *kind.Resource) bool {
			return r.Group == parts[1] && r.Custom
		})
}

// isHead reports whether the request is a HEAD for a built-in kind. RequestInfo gives HEAD the verb of a GET; as
// upstream, only custom resources answer it.
func isHead(req *http.Request, r *kind.Resource) bool {
	return req.Method == http.MethodHead && !r.Custom
}

// unsupported responds to a verb that the kind does not support. As upstream, the error names the kind only for
// custom resources.
func (s *Server) unsupported(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, r *kind.Resource) {
	if r.Custom {
		s.fail(w, req, apierrors.NewMethodNotSupported(r.GR(), info.Verb))
		return
	}
	s.wrongMethod(w, req)
}

func (s *Server) wrongMethod(w http.ResponseWriter, req *http.Request) {
	s.fail(w, req,
		apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "", 0, false))
}

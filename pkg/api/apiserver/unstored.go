package apiserver

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// unstored checks the path and verb of a request for a kind that is computed for each read. whole means a list. If
// ok is false, it has already responded.
func (s *Server) unstored(w http.ResponseWriter, req *http.Request, info *request.RequestInfo,
	r *kind.Resource) (whole, ok bool) {
	whole = len(info.Parts) < 2
	switch {
	case info.Namespace != "" && !r.Namespaced, len(info.Parts) > 2, !whole && r.Namespaced && info.Namespace == "":
		s.notFound(w, req)
	case req.Method == http.MethodHead, !slices.Contains(r.Verbs, info.Verb) || (info.Verb == "list") != whole:
		s.wrongMethod(w, req)
	default:
		return whole, true
	}
	return whole, false
}

// selection returns the query of a list of an unstored kind. Errors are Status errors.
func selection(req *http.Request, t registry.Target) (cache.Query, error) {
	q := cache.Query{Namespace: t.Namespace}
	o, err := listOptions(req)
	if err != nil {
		return q, err
	}
	if q.Labels, err = labels.Parse(o.LabelSelector); err != nil {
		return q, apierrors.NewBadRequest(err.Error())
	}
	if q.Fields, err = fields.ParseSelector(o.FieldSelector); err == nil {
		q.Fields, err = t.Resource.Selector(q.Fields)
	}
	if err != nil {
		return q, apierrors.NewBadRequest(err.Error())
	}
	return q, nil
}

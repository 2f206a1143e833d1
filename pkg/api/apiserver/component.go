package apiserver

import (
	"context"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// componentStatuses serves ComponentStatuses, which are not stored: each read checks the components of the control
// plane.
func (s *Server) componentStatuses(w http.ResponseWriter, req *http.Request, info *request.RequestInfo,
	r *kind.Resource) {
	warning.AddWarning(req.Context(), "", r.Deprecated)
	t := registry.Target{Resource: r, Name: info.Name}
	switch whole, ok := s.unstored(w, req, info, r); {
	case !ok:
	case whole:
		s.listComponents(w, req, t)
	default:
		i := slices.IndexFunc(s.cfg.Components, func(c Check) bool { return c.Name == info.Name })
		if i < 0 {
			s.fail(w, req, apierrors.NewNotFound(corev1.Resource("componentstatus"), info.Name))
			return
		}
		n, err := negotiate(req, can(r))
		if err != nil {
			s.fail(w, req, err)
			return
		}
		s.writeResult(w, req, n, http.StatusOK, t, registry.Result{
			Entry: s.component(req.Context(), r, &s.cfg.Components[i]),
		})
	}
}

func (s *Server) listComponents(w http.ResponseWriter, req *http.Request, t registry.Target) {
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
	var list registry.List
	for i := range s.cfg.Components {
		c := &s.cfg.Components[i]
		if q.Labels.Matches(labels.Set{}) && q.Fields.Matches(fields.Set{"metadata.name": c.Name}) {
			list.Entries = append(list.Entries, s.component(req.Context(), t.Resource, c))
		}
	}
	s.writeList(w, req, n, t, &list)
}

func (s *Server) component(ctx context.Context, r *kind.Resource, c *Check) *cache.Entry {
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
	if err := s.health.run(ctx, "componentstatus", c); err != nil {
		condition.Status, condition.Message, condition.Error = corev1.ConditionFalse, "", err.Error()
	}
	status := &corev1.ComponentStatus{
		TypeMeta:   metav1.TypeMeta{Kind: r.Kind, APIVersion: r.GroupVersion().String()},
		ObjectMeta: metav1.ObjectMeta{Name: c.Name},
		Conditions: []corev1.ComponentCondition{condition},
	}
	return cache.NewEntry(r, "/registry/"+r.Keys+"/"+c.Name, status, 0)
}

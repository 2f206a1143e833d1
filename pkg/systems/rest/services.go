package rest

import (
	"cmp"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// services serves services: all in the facade's namespace, and in other namespaces those created here.
type services Server

func (s *services) Routes() []Route {
	return []Route{
		{
			Method: http.MethodPost, Path: "/api/v1/services", Summary: "Create a service", Handle: decoded(s.create),
			Body:   wire.CreateService{},
			Answer: wire.Service{}, Status: http.StatusCreated, Refusals: []int{http.StatusConflict},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/services", Summary: "List services", Handle: s.list,
			Query:  append([]Parameter{{"namespace", "only services of a namespace", ""}}, paging...),
			Answer: []wire.Service{},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/services/{id}", Summary: "Get a service", Handle: s.single().get,
			Answer: wire.Service{},
		},
		{
			Method: http.MethodPut, Path: "/api/v1/services/{id}", Summary: "Change a service", Handle: decoded(s.update),
			Body: wire.UpdateService{}, Answer: wire.Service{},
		},
		{
			Method: http.MethodDelete, Path: "/api/v1/services/{id}", Summary: "Delete a service", Handle: s.single().remove,
			Answer: wire.Message{},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/services/{id}/endpoints", Summary: "List the addresses behind a service",
			Handle: s.endpoints,
			Answer: wire.Endpoints{},
		},
	}
}

func (s *services) create(c *Call, in *wire.CreateService) error {
	service, err := view.NewService(in, cmp.Or(in.Namespace, s.cfg.Namespace))
	if err != nil {
		return Refuse(http.StatusBadRequest, "%v", err)
	}
	if err := s.cluster.CreateIn(c, service); err != nil {
		return err
	}
	return c.Answer(http.StatusCreated, view.Service(service, s.cfg.Namespace))
}

func (s *services) list(c *Call) error {
	var list corev1.ServiceList
	namespace := c.Request.URL.Query().Get("namespace")
	if err := s.cluster.List(c, &corev1.Service{}, &list, ctrl.InNamespace(namespace)); err != nil {
		return err
	}
	shown := slices.DeleteFunc(pointers(list.Items), func(service *corev1.Service) bool { return !s.shows(service) })
	return page(c, shown, func(service *corev1.Service) any { return view.Service(service, s.cfg.Namespace) })
}

func (s *services) shows(service *corev1.Service) bool {
	return service.Namespace == s.cfg.Namespace || service.Labels[view.Managed] == "true"
}

var errNoService = Refuse(http.StatusNotFound, "service not found")

func (s *services) single() single[*corev1.Service] {
	answer := func(c *Call, service *corev1.Service) error {
		return c.Answer(http.StatusOK, view.Service(service, s.cfg.Namespace))
	}
	return single[*corev1.Service]{s.find, answer, errNoService, "service deleted"}
}

func (s *services) find(c *Call) (*corev1.Service, error) {
	namespace, name := view.ParseID(c.Param("id"), s.cfg.Namespace)
	if namespace == "" || name == "" {
		return nil, errNoService
	}
	var service corev1.Service
	err := s.cluster.Get(c, namespace, name, &service)
	if apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) || err == nil && !s.shows(&service) {
		err = errNoService
	}
	return &service, err
}

func (s *services) update(c *Call, in *wire.UpdateService) error {
	return s.single().change(c, func(next *corev1.Service) error {
		if err := view.UpdateService(next, in); err != nil {
			return Refuse(http.StatusBadRequest, "%v", err)
		}
		return s.cluster.Update(c, next)
	})
}

func (s *services) endpoints(c *Call) error {
	service, err := s.find(c)
	if err != nil {
		return err
	}
	var list discoveryv1.EndpointSliceList
	err = s.cluster.List(c, &discoveryv1.EndpointSlice{}, &list, ctrl.InNamespace(service.Namespace),
		ctrl.MatchingLabels{discoveryv1.LabelServiceName: service.Name})
	if err != nil {
		return err
	}
	return c.Answer(http.StatusOK, view.Endpoints(service, list.Items, s.cfg.Namespace))
}

package rest

import (
	"context"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	taskapi "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

type maintenance Server

func (m *maintenance) Routes() []Route {
	return []Route{
		{
			Method: http.MethodGet, Path: "/health", Summary: "Report whether the facade serves requests", Handle: m.health,
			Public: true,
			Answer: wire.Health{},
		},
		{
			Method: http.MethodPost, Path: "/api/v1/prune",
			Summary: "Remove ended tasks, ended pods without a controller, and offline workers", Handle: m.prune,
			Query:  []Parameter{{"all", "also remove unfinished tasks, pods and services that were created over REST", false}},
			Answer: wire.PruneResult{},
		},
	}
}

func (m *maintenance) health(c *Call) error {
	// Podling's clients expect this name.
	return c.Answer(http.StatusOK, wire.Health{
		Status:      "ok",
		Service:     "podling-master",
		AuthEnabled: strconv.FormatBool(!m.cfg.RESTInsecure),
	})
}

// prune removes ended objects in the facade's namespace and, with all, every object that was created here. It never
// removes our own nodes, or objects that others created and still use.
func (m *maintenance) prune(c *Call) error {
	all := c.Request.URL.Query().Get("all") == "true"
	var out wire.PruneResult
	var list taskapi.TaskList
	if err := m.cluster.List(c, &taskapi.Task{}, &list, ctrl.InNamespace(m.cfg.Namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		if t := &list.Items[i]; t.Status.Phase.Ended() || all && t.Labels[view.Managed] == "true" {
			if err := m.remove(c, t, &out.TasksRemoved); err != nil {
				return err
			}
		}
	}
	shown, err := (*pods)(m).listed(c)
	if err != nil {
		return err
	}
	for _, p := range shown {
		ended := (p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed) &&
			metav1.GetControllerOfNoCopy(p) == nil
		if ended || all && p.Labels[view.Managed] == "true" {
			if err := m.remove(c, p, &out.PodsRemoved); err != nil {
				return err
			}
		}
	}
	var workers corev1.NodeList
	if err := m.cluster.List(c, &corev1.Node{}, &workers, ctrl.MatchingLabels{taskapi.External: "true"}); err != nil {
		return err
	}
	for i := range workers.Items {
		if n := &workers.Items[i]; all || !view.Online(n) {
			if err := m.remove(c, n, &out.NodesRemoved); err != nil {
				return err
			}
		}
	}
	if all {
		var list corev1.ServiceList
		if err := m.cluster.List(c, &corev1.Service{}, &list, ctrl.MatchingLabels{view.Managed: "true"}); err != nil {
			return err
		}
		for i := range list.Items {
			if err := m.remove(c, &list.Items[i], &out.ServicesRemoved); err != nil {
				return err
			}
		}
	}
	return c.Answer(http.StatusOK, out)
}

func (m *maintenance) remove(ctx context.Context, o ctrl.Object, count *int) error {
	err := m.cluster.Delete(ctx, o)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // another client was faster
	}
	if err == nil {
		*count++
	}
	return err
}

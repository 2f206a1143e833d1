package rest

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// tables are the routes of Kontrol's other tables: the states of resources, which resources have nested too, and the
// clusters.
type tables Server

// Routes implements Resource.
func (s *tables) Routes() []Route {
	query := append([]Parameter{
		{"resource_id", "only those of a resource", 0}, {"cluster", "only those of a cluster, by its cluster_id", ""},
	}, paging...)
	return []Route{
		{
			Method: http.MethodGet, Path: "/api/v1/resource_current_states", Summary: "List what clusters have",
			Query: query, Handle: s.current,
			Answer: []wire.CurrentState{},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/resource_applied_states", Summary: "List what was applied last",
			Query: query, Handle: s.applied,
			Answer: []wire.AppliedState{},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/clusters", Summary: "List clusters", Query: paging, Handle: s.clusters,
			Answer: []wire.Cluster{},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/clusters/{id}", Summary: "Get a cluster, by its cluster_id",
			Handle: s.getCluster,
			Answer: wire.Cluster{},
		},
	}
}

func (s *tables) current(c *Call) error {
	var list kontrol.CurrentStateList
	if err := s.cluster.List(c, &kontrol.CurrentState{}, &list, ofCluster(c)...); err != nil {
		return err
	}
	return rows(c, pointers(list.Items), func(o *kontrol.CurrentState) *kontrol.Subject { return &o.State.Subject },
		func(o *kontrol.CurrentState) any { return view.Current(o) })
}

func (s *tables) applied(c *Call) error {
	var list kontrol.AppliedStateList
	if err := s.cluster.List(c, &kontrol.AppliedState{}, &list, ofCluster(c)...); err != nil {
		return err
	}
	return rows(c, pointers(list.Items), func(o *kontrol.AppliedState) *kontrol.Subject { return &o.State.Subject },
		func(o *kontrol.AppliedState) any { return view.Applied(o) })
}

// ofCluster selects the states of the cluster that a request names, if any.
func ofCluster(c *Call) []ctrl.ListOption {
	if name := c.Request.URL.Query().Get("cluster"); name != "" {
		return []ctrl.ListOption{ctrl.MatchingFields{kontrol.FieldCluster: name}}
	}
	return nil
}

// rows writes the states of the resource that a request names, or of all.
func rows[T ctrl.Object](c *Call, list []T, subject func(T) *kontrol.Subject, convert func(T) any) error {
	id, err := c.number("resource_id", 0, 1, 1<<53)
	if err != nil {
		return err
	}
	if id > 0 {
		list = slices.DeleteFunc(list, func(o T) bool { return subject(o).ResourceID != int64(id) })
	}
	return page(c, list, convert)
}

func (s *tables) clusters(c *Call) error {
	var list kontrol.ClusterList
	if err := s.cluster.List(c, &kontrol.Cluster{}, &list); err != nil {
		return err
	}
	return page(c, pointers(list.Items), func(o *kontrol.Cluster) any { return view.Cluster(o) })
}

func (s *tables) getCluster(c *Call) error {
	var o kontrol.Cluster
	err := s.cluster.Get(c, "", c.Param("id"), &o)
	if apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) {
		return Refuse(http.StatusNotFound, "cluster not found")
	}
	if err != nil {
		return err
	}
	return c.Answer(http.StatusOK, view.Cluster(&o))
}

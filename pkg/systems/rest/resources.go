package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// resources serves Kontrol's Resources: the desired, the applied and the current objects of clusters.
type resources Server

func (s *resources) Routes() []Route {
	const at = "/api/v1/resources/{id}"
	conflict := []int{http.StatusConflict}
	return []Route{
		{
			Method: http.MethodPost, Path: "/api/v1/resources",
			Summary: "Create a resource: an object that clusters should have", Handle: decoded(s.create),
			Body: wire.CreateResource{}, Answer: wire.Resource{}, Status: http.StatusCreated,
		},
		{
			Method: http.MethodGet, Path: "/api/v1/resources", Summary: "List resources with their states", Handle: s.list,
			Query: append([]Parameter{
				{"cluster", "only resources for a cluster, by its cluster_id", ""},
				{"namespace", "only objects of a namespace", ""},
				{"kind", "only objects of a kind, such as ConfigMap", ""}, {"name", "only objects with a name", ""},
				{"state", "only resources in a state, such as Synced or Drifted", ""},
			}, paging...),
			Answer: []wire.Resource{},
		},
		{
			Method: http.MethodGet, Path: at, Summary: "Get a resource with its states", Handle: s.single().get,
			Answer: wire.Resource{},
		},
		{
			Method: http.MethodPut, Path: at, Summary: "Replace a resource", Handle: decoded(s.replace),
			Body: wire.PutResource{}, Answer: wire.Resource{}, Refusals: conflict,
		},
		{
			Method: http.MethodPatch, Path: at, Summary: "Merge a part into a resource (RFC 7386)", Handle: decoded(s.patch),
			Body: document{}, Answer: wire.Resource{}, Refusals: conflict,
		},
		{
			Method: http.MethodGet, Path: at + "/history", Summary: "List the contents of a resource, newest first",
			Handle: s.history,
			Answer: []wire.Revision{},
		},
		{
			Method: http.MethodPost, Path: at + "/rollback", Summary: "Restore a former content of a resource",
			Handle: decoded(s.rollback), Body: wire.RollbackResource{}, Answer: wire.Resource{}, Refusals: conflict,
		},
		{
			Method: http.MethodPost, Path: at + "/approve", Summary: "Approve the generation of a resource that waits for it",
			Handle: decoded(s.approve), Body: wire.ApproveResource{}, Answer: wire.Resource{}, Refusals: conflict,
		},
		{
			Method: http.MethodDelete, Path: at, Summary: "Delete a resource, and its objects by its deletion policy",
			Handle: s.single().remove,
			Answer: wire.Message{},
		},
	}
}

func (s *resources) create(c *Call, in *wire.CreateResource) error {
	r, err := view.NewResource(in, "")
	if err != nil {
		return Refuse(http.StatusBadRequest, "%v", err)
	}
	target := kontrol.TargetOf(r)
	r.Name = newName(target.Kind + "-" + target.Name)
	if err := s.cluster.Create(c, r); err != nil {
		return err
	}
	return c.Answer(http.StatusCreated, view.Resource(r, nil, nil))
}

var resourceStates = []string{
	string(kontrol.StateSynced), string(kontrol.StateOutOfSync), string(kontrol.StatePendingApplied),
	string(kontrol.StateDrifted),
	string(kontrol.StateConflict), string(kontrol.StateUnreachable), string(kontrol.StateDegraded),
	kontrol.StateTerminating,
}

func (s *resources) list(c *Call) error {
	q := c.Request.URL.Query()
	cluster, namespace, kind, name, state := q.Get("cluster"), q.Get("namespace"), q.Get("kind"), q.Get("name"), q.Get(
		"state")
	if state != "" && !slices.Contains(resourceStates, state) {
		return Refuse(http.StatusBadRequest, "invalid state parameter: it must be one of %q", resourceStates)
	}
	var list kontrol.ResourceList
	if err := s.cluster.List(c, &kontrol.Resource{}, &list); err != nil {
		return err
	}
	states, err := s.states(c)
	if err != nil {
		return err
	}
	shown := slices.DeleteFunc(pointers(list.Items), func(r *kontrol.Resource) bool {
		if state != "" && state != r.State() || cluster != "" && !states.on(r, cluster) {
			return true
		}
		if namespace == "" && kind == "" && name == "" {
			return false
		}
		t := kontrol.TargetOf(r)
		return namespace != "" && namespace != t.Namespace || kind != "" && kind != t.Kind || name != "" && name != t.Name
	})
	return page(c, shown, func(r *kontrol.Resource) any {
		return view.Resource(r, states.applied[r.Name], states.current[r.Name])
	})
}

// states are the states on all clusters, by the name of the Resource.
type states struct {
	applied map[string][]*kontrol.AppliedState
	current map[string][]*kontrol.CurrentState
}

// on reports whether a cluster should have a Resource, or has a state of it.
func (s *states) on(r *kontrol.Resource, cluster string) bool {
	return r.Spec.ClusterName == cluster ||
		slices.ContainsFunc(s.applied[r.Name], func(a *kontrol.AppliedState) bool { return a.State.Cluster == cluster }) ||
		slices.ContainsFunc(s.current[r.Name], func(a *kontrol.CurrentState) bool { return a.State.Cluster == cluster })
}

func (s *resources) states(ctx context.Context, opts ...ctrl.ListOption) (*states, error) {
	var applied kontrol.AppliedStateList
	if err := s.cluster.List(ctx, &kontrol.AppliedState{}, &applied, opts...); err != nil {
		return nil, err
	}
	var current kontrol.CurrentStateList
	if err := s.cluster.List(ctx, &kontrol.CurrentState{}, &current, opts...); err != nil {
		return nil, err
	}
	out := &states{map[string][]*kontrol.AppliedState{}, map[string][]*kontrol.CurrentState{}}
	for i := range applied.Items {
		of := applied.Items[i].State.Resource
		out.applied[of] = append(out.applied[of], &applied.Items[i])
	}
	for i := range current.Items {
		of := current.Items[i].State.Resource
		out.current[of] = append(out.current[of], &current.Items[i])
	}
	return out, nil
}

var errNoResource = Refuse(http.StatusNotFound, "resource not found")

func (s *resources) single() single[*kontrol.Resource] {
	return single[*kontrol.Resource]{s.find, s.answer, errNoResource, "resource deleted"}
}

func (s *resources) find(c *Call) (*kontrol.Resource, error) {
	var list kontrol.ResourceList
	if err := s.cluster.List(c, &kontrol.Resource{}, &list, ctrl.MatchingFields{kontrol.FieldID: c.Param("id")}); err !=
		nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, errNoResource
	}
	return &list.Items[0], nil
}

func (s *resources) answer(c *Call, r *kontrol.Resource) error {
	states, err := s.states(c, ctrl.MatchingFields{kontrol.FieldResource: r.Name})
	if err != nil {
		return err
	}
	return c.Answer(http.StatusOK, view.Resource(r, states.applied[r.Name], states.current[r.Name]))
}

func (s *resources) replace(c *Call, in *wire.PutResource) error {
	return s.write(c, in.Generation, func(r *kontrol.Resource) error { return view.PutResource(r, in) })
}

func (s *resources) patch(c *Call, in *map[string]json.RawMessage) error {
	var generation *int64
	if raw, ok := (*in)["generation"]; ok {
		if err := json.Unmarshal(raw, &generation); err != nil {
			return Refuse(http.StatusBadRequest, "generation must be a number")
		}
	}
	return s.write(c, generation, func(r *kontrol.Resource) error { return view.PatchResource(r, *in) })
}

// write makes a change to a Resource, which must have the generation unless that is nil.
func (s *resources) write(c *Call, generation *int64, edit func(*kontrol.Resource) error) error {
	return s.single().change(c, func(r *kontrol.Resource) error {
		if generation != nil && *generation != r.Generation {
			return generationGone(r, *generation)
		}
		if err := edit(r); err != nil {
			return Refuse(http.StatusBadRequest, "%v", err)
		}
		return s.cluster.Update(c, r)
	})
}

func (s *resources) history(c *Call) error {
	r, err := s.find(c)
	if err != nil {
		return err
	}
	return c.Answer(http.StatusOK, view.Revisions(r))
}

func (s *resources) rollback(c *Call, in *wire.RollbackResource) error {
	return s.single().change(c, func(r *kontrol.Resource) error {
		if (in.Revision > 0) == (in.Generation > 0) {
			return Refuse(http.StatusBadRequest, "give either revision or generation, above 0")
		}
		if !view.Rollback(r, in) {
			return Refuse(http.StatusConflict, "the resource has no such former content: see its history")
		}
		return s.cluster.Update(c, r)
	})
}

func (s *resources) approve(c *Call, in *wire.ApproveResource) error {
	return s.single().change(c, func(r *kontrol.Resource) error {
		switch {
		case r.Spec.Approval != kontrol.ApprovalManual:
			return Refuse(http.StatusConflict, "the resource needs no approval: its approval is not %s", kontrol.ApprovalManual)
		case in.Generation != r.Generation:
			return generationGone(r, in.Generation)
		case r.Status.Approved == in.Generation:
			return nil
		}
		r.Status.Approved = in.Generation
		return s.cluster.UpdateStatus(c, r)
	})
}

// generationGone is the error for a client that has read an older generation.
func generationGone(r *kontrol.Resource, read int64) error {
	return Refuse(http.StatusConflict, "the resource has generation %d by now, not %d: read it again", r.Generation, read)
}

package rest

import (
	"net/http"
	"slices"
	"strconv"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// bundles serves Kontrol's Bundles: sets of objects that are rolled out to clusters in order.
type bundles Server

func (s *bundles) Routes() []Route {
	const at = "/api/v1/bundles/{id}"
	return []Route{
		{
			Method: http.MethodPost, Path: "/api/v1/bundles",
			Summary: "Create a bundle: objects that are rolled out to clusters in order", Handle: decoded(s.create),
			Body:   wire.CreateBundle{},
			Answer: wire.Bundle{}, Status: http.StatusCreated, Refusals: []int{http.StatusConflict},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/bundles", Summary: "List bundles with their progress", Handle: s.list,
			Query: append([]Parameter{
				{"cluster", "only bundles for a cluster, by its cluster_id", ""},
				{"state", "only bundles in a state, such as Synced or Failed", ""},
			}, paging...),
			Answer: []wire.Bundle{},
		},
		{
			Method: http.MethodGet, Path: at, Summary: "Get a bundle with its progress", Handle: s.single().get,
			Answer: wire.Bundle{},
		},
		{
			Method: http.MethodPut, Path: at, Summary: "Change a bundle", Handle: decoded(s.update),
			Body:   wire.UpdateBundle{},
			Answer: wire.Bundle{}, Refusals: []int{http.StatusConflict},
		},
		{
			Method: http.MethodPost, Path: at + "/approve", Summary: "Approve the content of a bundle that waits for it",
			Handle: decoded(s.approve),
			Body:   wire.ApproveBundle{},
			Answer: wire.Bundle{}, Refusals: []int{http.StatusConflict},
		},
		{
			Method: http.MethodDelete, Path: at, Summary: "Delete a bundle, and its objects by its deletion policy",
			Handle: s.single().remove,
			Answer: wire.Message{},
		},
	}
}

var errNoBundle = Refuse(http.StatusNotFound, "bundle not found")

func (s *bundles) single() single[*kontrol.Bundle] {
	answer := func(c *Call, b *kontrol.Bundle) error { return c.Answer(http.StatusOK, view.Bundle(b)) }
	return single[*kontrol.Bundle]{s.find, answer, errNoBundle, "bundle deleted"}
}

func (s *bundles) create(c *Call, in *wire.CreateBundle) error {
	b, err := view.NewBundle(in)
	if err != nil {
		return Refuse(http.StatusBadRequest, "%v", err)
	}
	if err := s.cluster.Create(c, b); err != nil {
		return err
	}
	return c.Answer(http.StatusCreated, view.Bundle(b))
}

var bundleStates = []string{
	string(kontrol.BundleSynced), string(kontrol.BundleProgressing), string(kontrol.BundleWaiting),
	string(kontrol.BundlePaused), string(kontrol.BundleFailed),
	string(kontrol.BundleInvalid), kontrol.StateTerminating,
}

func (s *bundles) list(c *Call) error {
	q := c.Request.URL.Query()
	cluster, state := q.Get("cluster"), q.Get("state")
	if state != "" && !slices.Contains(bundleStates, state) {
		return Refuse(http.StatusBadRequest, "invalid state parameter: it must be one of %q", bundleStates)
	}
	var list kontrol.BundleList
	if err := s.cluster.List(c, &kontrol.Bundle{}, &list); err != nil {
		return err
	}
	shown := slices.DeleteFunc(pointers(list.Items), func(b *kontrol.Bundle) bool {
		on := b.Spec.ClusterName == cluster ||
			slices.ContainsFunc(b.Status.Targets, func(t kontrol.BundleTarget) bool { return t.Name == cluster })
		return state != "" && state != b.Phase() || cluster != "" && !on
	})
	return page(c, shown, func(b *kontrol.Bundle) any { return view.Bundle(b) })
}

// find returns a Bundle by its ID, which derives from its UID.
func (s *bundles) find(c *Call) (*kontrol.Bundle, error) {
	id, err := strconv.ParseInt(c.Param("id"), 10, 64)
	var list kontrol.BundleList
	if err := s.cluster.List(c, &kontrol.Bundle{}, &list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if err == nil && kontrol.IDOf(string(list.Items[i].UID)) == id {
			return &list.Items[i], nil
		}
	}
	return nil, errNoBundle
}

func (s *bundles) update(c *Call, in *wire.UpdateBundle) error {
	return s.single().change(c, func(b *kontrol.Bundle) error {
		if in.Generation != nil && *in.Generation != b.Generation {
			return Refuse(http.StatusConflict, "the bundle has generation %d by now, not %d: read it again", b.Generation,
				*in.Generation)
		}
		if err := view.UpdateBundle(b, in); err != nil {
			return Refuse(http.StatusBadRequest, "%v", err)
		}
		return s.cluster.Update(c, b)
	})
}

func (s *bundles) approve(c *Call, in *wire.ApproveBundle) error {
	return s.single().change(c, func(b *kontrol.Bundle) error {
		switch has := b.Status.Content; {
		case b.Spec.Rollout.Approval != kontrol.ApprovalManual:
			return Refuse(http.StatusConflict, "the bundle needs no approval: its approval is %s", b.Spec.Rollout.Approval)
		case has == "" || b.Status.ObservedGeneration != b.Generation:
			return Refuse(http.StatusConflict, "the content was not read yet: try again")
		case in.Content != has:
			return Refuse(http.StatusConflict, "the content is %s by now, not %q: read it again", has, in.Content)
		case b.Status.Approved == has:
			return nil
		}
		b.Status.Approved = in.Content
		return s.cluster.UpdateStatus(c, b)
	})
}

package rest

import (
	"net/http"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

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
			Summary: "Create a bundle: objects that are rolled out to clusters in order", Handle: s.create,
			Body:    wire.CreateBundle{},
			Answers: map[int]any{http.StatusCreated: wire.Bundle{}, http.StatusConflict: wire.Error{}},
		},
		{
			Method: http.MethodGet, Path: "/api/v1/bundles", Summary: "List bundles with their progress", Handle: s.list,
			Query: append([]Parameter{
				{"cluster", "only bundles for a cluster, by its cluster_id", ""},
				{"state", "only bundles in a state, such as Synced or Failed", ""},
			}, paging...),
			Answers: map[int]any{http.StatusOK: []wire.Bundle{}, http.StatusBadRequest: wire.Error{}},
		},
		{
			Method: http.MethodGet, Path: at, Summary: "Get a bundle with its progress", Handle: s.get,
			Answers: map[int]any{http.StatusOK: wire.Bundle{}, http.StatusNotFound: wire.Error{}},
		},
		{
			Method: http.MethodPut, Path: at, Summary: "Change a bundle", Handle: s.update,
			Body: wire.UpdateBundle{},
			Answers: map[int]any{
				http.StatusOK:       wire.Bundle{},
				http.StatusNotFound: wire.Error{},
				http.StatusConflict: wire.Error{},
			},
		},
		{
			Method: http.MethodPost, Path: at + "/approve", Summary: "Approve the content of a bundle that waits for it",
			Handle: s.approve,
			Body:   wire.ApproveBundle{},
			Answers: map[int]any{
				http.StatusOK:       wire.Bundle{},
				http.StatusNotFound: wire.Error{},
				http.StatusConflict: wire.Error{},
			},
		},
		{
			Method: http.MethodDelete, Path: at, Summary: "Delete a bundle, and its objects by its deletion policy",
			Handle:  s.remove,
			Answers: map[int]any{http.StatusOK: wire.Message{}, http.StatusNotFound: wire.Error{}},
		},
	}
}

var errNoBundle = Refuse(http.StatusNotFound, "bundle not found")

func (s *bundles) create(c *Call) error {
	var in wire.CreateBundle
	if err := c.Decode(&in); err != nil {
		return err
	}
	b, err := view.NewBundle(&in)
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
	string(kontrol.BundleInvalid), view.ResourceTerminating,
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

func (s *bundles) get(c *Call) error {
	b, err := s.find(c)
	if err != nil {
		return err
	}
	return c.Answer(http.StatusOK, view.Bundle(b))
}

func (s *bundles) update(c *Call) error {
	var in wire.UpdateBundle
	if err := c.Decode(&in); err != nil {
		return err
	}
	return s.change(c, func(b *kontrol.Bundle) error {
		if in.Generation != nil && *in.Generation != b.Generation {
			return Refuse(http.StatusConflict, "the bundle has generation %d by now, not %d: read it again", b.Generation,
				*in.Generation)
		}
		if err := view.UpdateBundle(b, &in); err != nil {
			return Refuse(http.StatusBadRequest, "%v", err)
		}
		return s.cluster.Update(c, b)
	})
}

func (s *bundles) approve(c *Call) error {
	var in wire.ApproveBundle
	if err := c.Decode(&in); err != nil {
		return err
	}
	return s.change(c, func(b *kontrol.Bundle) error {
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

// change writes a Bundle, retries on conflict, and answers with it.
func (s *bundles) change(c *Call, write func(*kontrol.Bundle) error) error {
	var b *kontrol.Bundle
	err := again(c, func() (err error) {
		if b, err = s.find(c); err != nil {
			return err
		}
		b = b.DeepCopy()
		return write(b)
	})
	if apierrors.IsNotFound(err) {
		return errNoBundle
	}
	if err != nil {
		return err
	}
	return c.Answer(http.StatusOK, view.Bundle(b))
}

func (s *bundles) remove(c *Call) error {
	b, err := s.find(c)
	if err != nil {
		return err
	}
	if err := s.cluster.Delete(c, b); apierrors.IsNotFound(err) {
		return errNoBundle
	} else if err != nil {
		return err
	}
	return c.Answer(http.StatusOK, wire.Message{Message: "bundle deleted"})
}

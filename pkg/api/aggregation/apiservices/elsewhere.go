package apiservices

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/coracle-dev/coracle/pkg/api/aggregation"

	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

// autoscaler is the user that reads custom and external metrics.
var autoscaler = &user.DefaultInfo{
	Name: "system:serviceaccount:kube-system:horizontal-pod-autoscaler", Groups: accounts,
}

// accounts are the groups of upstream's controllers.
var accounts = []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", user.AllAuthenticated}

// Metrics implements autoscaling.Adapters. It reads custom or external metrics from the server of the path's group
// and version, and returns aggregated.ErrNotServed if there is none.
func (c *Controller) Metrics(ctx context.Context, path string, query url.Values) ([]byte, error) {
	parts := strings.SplitN(strings.TrimPrefix(path, "/apis/"), "/", 3)
	if len(parts) < 3 {
		return nil, aggregated.ErrNotServed
	}
	c.mu.Lock()
	known := c.known[parts[1]+"."+parts[0]]
	if known == nil {
		c.mu.Unlock()
		return nil, aggregated.ErrNotServed
	}
	r := *known
	c.mu.Unlock()
	if !r.available || r.backend == nil {
		return nil, aggregation.ErrUnavailable
	}
	return r.backend.Get(ctx, path, query, autoscaler)
}

// namespaceController is the user that deletes a namespace's objects in other servers. Servers authorize it by the
// name and groups of upstream's controller.
var namespaceController = &user.DefaultInfo{
	Name: "system:serviceaccount:kube-system:namespace-controller", Groups: accounts,
}

// Empty deletes a namespace's objects in other servers and returns the remaining ones. It skips servers that do not
// respond, so that they cannot block the deletion of a namespace. Their objects stay.
func (c *Controller) Empty(ctx context.Context, name string) (left []aggregated.Remaining) {
	c.mu.Lock()
	var list []remote
	for _, r := range c.known {
		if r.available && r.backend != nil {
			list = append(list, *r)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(list, func(a, b remote) int { return strings.Compare(a.service.Name, b.service.Name) })
	for _, r := range list {
		for _, resource := range r.described.Resources {
			if !resource.Namespaced || strings.Contains(resource.Name, "/") {
				continue
			}
			l := aggregated.Remaining{
				Resource:   schema.GroupResource{Group: r.service.Spec.Group, Resource: resource.Name}.String(),
				Finalizers: map[string]int{},
			}
			items, count, err := r.backend.Empty(ctx, resource, name, namespaceController)
			if errors.Is(err, aggregation.ErrUnavailable) {
				c.cfg.Log.Warn("an aggregated API server does not answer: its objects in a deleted namespace stay", "apiservice",
					r.service.Name, "namespace", name, "error", err)
				break
			}
			l.Count, l.Err = count, err
			for i := range items {
				for _, f := range items[i].Finalizers {
					l.Finalizers[f]++
				}
			}
			if l.Count > 0 || l.Err != nil {
				left = append(left, l)
			}
		}
	}
	return left
}

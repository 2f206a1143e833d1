package apiservices

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/pkg/api/aggregation"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

// collector is the user that watches and deletes objects of other servers, with the name and groups of upstream's
// garbage collector.
var collector = &user.DefaultInfo{Name: "system:serviceaccount:kube-system:generic-garbage-collector", Groups: accounts}

var _ aggregated.Remotes = (*Controller)(nil)

// Served implements aggregated.Remotes. It returns the preferred version of each resource.
func (c *Controller) Served() (kinds []aggregated.Remote, all bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all = c.listed
	list := make([]*remote, 0, len(c.known))
	for _, r := range c.known {
		list = append(list, r)
		all = all && r.answered
	}
	slices.SortFunc(list, func(a, b *remote) int {
		x, y := a.service.Spec, b.service.Spec
		return cmp.Or(strings.Compare(x.Group, y.Group), cmp.Compare(y.VersionPriority, x.VersionPriority),
			-apiversion.CompareKubeAwareVersionStrings(x.Version, y.Version))
	})
	seen := map[schema.GroupResource]bool{}
	for _, r := range list {
		for _, resource := range r.described.Resources {
			gr := schema.GroupResource{Group: r.service.Spec.Group, Resource: resource.Name}
			if strings.Contains(resource.Name, "/") || seen[gr] || !collectable(resource) {
				continue
			}
			seen[gr] = true
			kinds = append(kinds, aggregated.Remote{
				Kind: engine.Kind{
					GroupVersionKind: versionOf(r.service).WithKind(resource.Kind), Resource: resource.Name,
					Namespaced: resource.Namespaced,
					Deletable:  true, Storage: r.service.UID,
				},
				Server: r.service.Spec.Service.Namespace + "/" + r.service.Spec.Service.Name,
			})
		}
	}
	return kinds, all, c.changed
}

// collectable reports whether a resource has the verbs that the garbage collector needs, as upstream.
func collectable(r metav1.APIResource) bool {
	for _, verb := range []string{"delete", "list", "watch"} {
		if !slices.Contains(r.Verbs, verb) {
			return false
		}
	}
	return true
}

// Metadata returns a client for the metadata of objects of other servers. It acts as the garbage collector.
func (c *Controller) Metadata() (metadata.Interface, error) {
	return metadata.NewForConfig(&rest.Config{Host: "https://aggregated.invalid", Transport: trip(c.roundTrip), QPS: -1})
}

type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(req *http.Request) (*http.Response, error) { return t(req) }

// roundTrip sends a request to the server of the path's group and version.
func (c *Controller) roundTrip(req *http.Request) (*http.Response, error) {
	parts := strings.SplitN(strings.TrimPrefix(req.URL.Path, "/apis/"), "/", 3)
	if len(parts) < 3 {
		return nil, fmt.Errorf("%s is no path of a group and version", req.URL.Path)
	}
	c.mu.Lock()
	known := c.known[parts[1]+"."+parts[0]]
	var backend *aggregation.Backend
	if known != nil && known.available {
		backend = known.backend
	}
	c.mu.Unlock()
	if backend == nil {
		return nil, aggregation.ErrUnavailable
	}
	return backend.RoundTrip(req, collector)
}

package apiserver

import (
	"cmp"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Remote is a group and version that an APIService delegates to another server.
type Remote struct {
	schema.GroupVersion
	// Priority orders the remote API groups in discovery, highest first.
	Priority int32
	// Handler forwards requests to the server. If it is nil, the server is unavailable, and requests fail with 503.
	Handler http.Handler
	// Resources are the server's resources when it was last available. Discovery lists them.
	Resources []metav1.APIResource
	// OpenAPI is the path and query of the server's OpenAPI 3 document. Empty if it has none.
	OpenAPI string
	// Paths and Definitions are the server's part of the OpenAPI 2 document, and Swagger identifies their content.
	// Empty if it has none.
	Paths, Definitions map[string]json.RawMessage
	Swagger            string
}

// remotes holds the groups and versions of aggregated API servers. It is immutable.
type remotes struct {
	of    map[schema.GroupVersion]*Remote
	order []*Remote
}

// SetRemotes replaces the groups and versions of aggregated API servers. Groups and versions that this server stores
// take precedence.
func (s *Server) SetRemotes(list []Remote) {
	if len(list) == 0 {
		s.remotes.Store(nil)
		return
	}
	r := &remotes{of: map[schema.GroupVersion]*Remote{}}
	for i := range list {
		r.of[list[i].GroupVersion] = &list[i]
		r.order = append(r.order, &list[i])
	}
	slices.SortFunc(r.order, func(a, b *Remote) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), strings.Compare(a.Group, b.Group),
			-apiversion.CompareKubeAwareVersionStrings(a.Version, b.Version))
	})
	s.remotes.Store(r)
}

// remote returns the aggregated API server's group and version that a request addresses, or nil.
func (s *Server) remote(req *http.Request, info *request.RequestInfo) *Remote {
	all := s.remotes.Load()
	if all == nil {
		return nil
	}
	gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	if !info.IsResourceRequest {
		path := strings.Trim(req.URL.Path, "/")
		path = strings.TrimPrefix(path, "openapi/v3/")
		parts := strings.Split(path, "/")
		if len(parts) < 3 || parts[0] != "apis" {
			return nil
		}
		gv = schema.GroupVersion{Group: parts[1], Version: parts[2]}
	}
	r := all.of[gv]
	if r == nil || stores(s.cfg.Kinds.Table(), gv) {
		return nil
	}
	return r
}

func stores(t *kind.Table, gv schema.GroupVersion) bool {
	return slices.ContainsFunc(t.All(), func(r *kind.Resource) bool { return r.GroupVersion() == gv })
}

func (s *Server) forward(w http.ResponseWriter, req *http.Request, r *Remote) {
	if r.Handler == nil {
		s.fail(w, req, apierrors.NewServiceUnavailable("service unavailable"))
		return
	}
	// End the stream when this server stops.
	ctx, cancel := s.living(req.Context())
	defer cancel()
	r.Handler.ServeHTTP(w, req.WithContext(ctx))
}

// FailRemote responds with 503 to a request that could not be forwarded.
func (s *Server) FailRemote(w http.ResponseWriter, req *http.Request, err error) {
	s.log.Debug("could not forward request to an aggregated API server", "path", req.URL.Path, "error", err)
	s.fail(w, req, apierrors.NewServiceUnavailable(err.Error()))
}

// withRemotes returns a function that merges the local discovery documents with the documents of aggregated API
// servers. It caches the result until either changes.
func (s *Server) withRemotes(local func() *discovery) func() *discovery {
	type merged struct {
		base   *discovery
		other  *remotes
		result *discovery
	}
	var last atomic.Pointer[merged]
	return func() *discovery {
		base, other := local(), s.remotes.Load()
		if other == nil {
			return base
		}
		m := last.Load()
		if m == nil || m.base != base || m.other != other {
			m = &merged{
				base, other, base.with(other, func(gv schema.GroupVersion) bool { return stores(s.cfg.Kinds.Table(), gv) }),
			}
			last.Store(m)
		}
		return m.result
	}
}

// with returns the documents merged with the documents of other servers. Groups keep their order; new ones follow,
// before Coracle's own.
func (d *discovery) with(other *remotes, local func(schema.GroupVersion) bool) *discovery {
	out := &discovery{groups: slices.Clone(d.groups), versions: maps.Clone(d.versions), core: d.core}
	named := &apidiscovery.APIGroupDiscoveryList{Items: slices.Clone(d.named.list.Items)}
	for _, r := range other.order {
		if local(r.GroupVersion) {
			continue
		}
		out.versions[r.GroupVersion] = &metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: r.GroupVersion.String(),
			APIResources: r.Resources,
		}
		fresh := apidiscovery.DiscoveryFreshnessCurrent
		if r.Handler == nil {
			fresh = apidiscovery.DiscoveryFreshnessStale
		}
		v := apidiscovery.APIVersionDiscovery{Version: r.Version, Freshness: fresh, Resources: aggregate(r.Resources)}
		ver := metav1.GroupVersionForDiscovery{GroupVersion: r.GroupVersion.String(), Version: r.Version}
		if i := slices.IndexFunc(named.Items, func(g apidiscovery.APIGroupDiscovery) bool { return g.Name == r.Group }); i >=
			0 {
			others := slices.DeleteFunc(slices.Clone(named.Items[i].Versions), func(o apidiscovery.APIVersionDiscovery) bool {
				return o.Version == r.Version
			})
			named.Items[i].Versions = append(others, v)
		} else {
			named.Items = append(named.Items, apidiscovery.APIGroupDiscovery{
				ObjectMeta: metav1.ObjectMeta{Name: r.Group}, Versions: []apidiscovery.APIVersionDiscovery{v},
			})
		}
		if i := slices.IndexFunc(out.groups, func(g metav1.APIGroup) bool { return g.Name == r.Group }); i < 0 {
			out.groups = append(out.groups, metav1.APIGroup{
				Name:             r.Group,
				Versions:         []metav1.GroupVersionForDiscovery{ver},
				PreferredVersion: ver,
			})
		} else if !slices.Contains(out.groups[i].Versions, ver) {
			out.groups[i].Versions = append(slices.Clone(out.groups[i].Versions), ver)
		}
	}
	slices.SortStableFunc(named.Items, func(a, b apidiscovery.APIGroupDiscovery) int { return d.last(a.Name, b.Name) })
	slices.SortStableFunc(out.groups, func(a, b metav1.APIGroup) int { return d.last(a.Name, b.Name) })
	out.named = aggregatedOf(named)
	return out
}

// last orders groups of Coracle's own kinds after all others.
func (d *discovery) last(a, b string) int {
	switch {
	case d.own[a] == d.own[b]:
		return 0
	case d.own[a]:
		return 1
	default:
		return -1
	}
}

// openAPI adds the documents of other servers to the paths of /openapi/v3, and returns a hash of them.
func (r *remotes) openAPI(paths map[string]any, local func(schema.GroupVersion) bool) string {
	if r == nil {
		return ""
	}
	sum := sha512.New()
	for _, o := range r.order {
		if o.OpenAPI != "" && o.Handler != nil && !local(o.GroupVersion) {
			paths[pathOf(o.GroupVersion)] = map[string]string{"serverRelativeURL": o.OpenAPI}
			fmt.Fprintln(sum, o.OpenAPI)
		}
	}
	return fmt.Sprintf("%X", sum.Sum(nil)[:8])
}

// swagger lists the aggregated API servers that have a part of the OpenAPI 2 document, and returns a hash of the
// parts. The hash is empty if there are none.
func (r *remotes) swagger(local func(schema.GroupVersion) bool) (list []*Remote, hash string) {
	if r == nil {
		return nil, ""
	}
	for _, o := range r.order {
		if o.Swagger != "" && o.Handler != nil && !local(o.GroupVersion) {
			list = append(list, o)
			hash += "-" + o.Swagger
		}
	}
	if len(hash) > 64 {
		hash = fmt.Sprintf("-%X", sha512.Sum512([]byte(hash)))
	}
	return list, hash
}

package apiserver

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	upstream "k8s.io/apiserver/pkg/endpoints/discovery"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// groupOrder is the order in which clients search groups for a kind. Other groups follow by name, Coracle's own last:
// `kubectl get clusters` finds the clusters of Cluster API where its definitions are installed.
var groupOrder = []string{ //nolint:gochecknoglobals // a constant
	"", "apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "autoscaling",
	"batch", "certificates.k8s.io",
	"networking.k8s.io", "policy", "rbac.authorization.k8s.io", "storage.k8s.io", "admissionregistration.k8s.io",
	"apiextensions.k8s.io", "scheduling.k8s.io", "coordination.k8s.io", "node.k8s.io", "discovery.k8s.io",
	"resource.k8s.io", "flowcontrol.apiserver.k8s.io",
}

// discovery holds the discovery documents of one kind.Table.
type discovery struct {
	groups   []metav1.APIGroup
	versions map[schema.GroupVersion]*metav1.APIResourceList
	custom   map[schema.GroupVersion]bool // versions that have custom resources
	own      map[string]bool              // groups of Coracle's own kinds
	core     *aggregated                  // /api
	named    *aggregated                  // /apis
}

type aggregated struct {
	list *apidiscovery.APIGroupDiscoveryList
	etag string
}

func newDiscovery(t *kind.Table) *discovery {
	d := &discovery{
		versions: map[schema.GroupVersion]*metav1.APIResourceList{},
		custom:   map[schema.GroupVersion]bool{},
		own:      map[string]bool{},
	}
	for _, r := range t.Served() {
		d.add(r)
	}
	d.aggregate(d.order())
	return d
}

// order sorts the resources of each version and returns the versions in discovery order.
func (d *discovery) order() []schema.GroupVersion {
	var order []schema.GroupVersion
	for gv, list := range d.versions {
		slices.SortFunc(list.APIResources, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
		order = append(order, gv)
	}
	rank := func(g string) int {
		if i := slices.Index(groupOrder, g); i >= 0 {
			return i
		}
		if d.own[g] {
			return len(groupOrder) + 1
		}
		return len(groupOrder)
	}
	slices.SortFunc(order, func(a, b schema.GroupVersion) int {
		if c := rank(a.Group) - rank(b.Group); c != 0 {
			return c
		}
		if c := strings.Compare(a.Group, b.Group); c != 0 {
			return c
		}
		return -apiversion.CompareKubeAwareVersionStrings(a.Version, b.Version)
	})
	return order
}

// aggregate fills in the group lists. order is the result of d.order.
func (d *discovery) aggregate(order []schema.GroupVersion) {
	core, named := &apidiscovery.APIGroupDiscoveryList{}, &apidiscovery.APIGroupDiscoveryList{}
	for _, gv := range order {
		into := named
		if gv.Group == "" {
			into = core
		}
		v := apidiscovery.APIVersionDiscovery{
			Version:   gv.Version,
			Freshness: apidiscovery.DiscoveryFreshnessCurrent,
			Resources: aggregate(d.versions[gv].APIResources),
		}
		if d.custom[gv] {
			inFull(gv, v.Resources)
		}
		ver := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
		if n := len(into.Items); n > 0 && into.Items[n-1].Name == gv.Group {
			into.Items[n-1].Versions = append(into.Items[n-1].Versions, v)
		} else {
			into.Items = append(into.Items, apidiscovery.APIGroupDiscovery{
				ObjectMeta: metav1.ObjectMeta{Name: gv.Group}, Versions: []apidiscovery.APIVersionDiscovery{v},
			})
		}
		if gv.Group == "" {
			continue
		}
		if n := len(d.groups); n > 0 && d.groups[n-1].Name == gv.Group {
			d.groups[n-1].Versions = append(d.groups[n-1].Versions, ver)
		} else {
			d.groups = append(d.groups, metav1.APIGroup{
				Name:             gv.Group,
				Versions:         []metav1.GroupVersionForDiscovery{ver},
				PreferredVersion: ver,
			})
		}
	}
	d.core, d.named = aggregatedOf(core), aggregatedOf(named)
}

func aggregatedOf(l *apidiscovery.APIGroupDiscoveryList) *aggregated {
	l.TypeMeta = metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: apidiscovery.SchemeGroupVersion.String()}
	raw, _ := json.Marshal(l)
	return &aggregated{l, fmt.Sprintf("%X", sha512.Sum512(raw))}
}

func (d *discovery) resource(gv schema.GroupVersion, r metav1.APIResource) {
	l := d.versions[gv]
	if l == nil {
		l = &metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: gv.String(),
			APIResources: []metav1.APIResource{},
		}
		d.versions[gv] = l
	}
	l.APIResources = append(l.APIResources, r)
}

func (d *discovery) add(r *kind.Resource) {
	gv := r.GroupVersion()
	d.custom[gv] = d.custom[gv] || r.Custom
	if r.Source != "" && !strings.HasSuffix(gv.Group, ".k8s.io") { // the kinds of volume snapshots have upstream's group
		d.own[gv.Group] = true
	}
	e := metav1.APIResource{
		Name: r.Plural, SingularName: r.Singular, Namespaced: r.Namespaced, Kind: r.Kind, Verbs: r.Verbs,
		ShortNames: r.ShortNames, Categories: r.Categories,
	}
	if !r.Computed {
		stored := r.Stored()
		e.StorageVersionHash = upstream.StorageVersionHash(stored.Group, stored.Version, stored.Kind)
	}
	d.resource(gv, e)
	if r.Status != nil {
		d.resource(gv, metav1.APIResource{
			Name:       r.Plural + "/status",
			Namespaced: r.Namespaced,
			Kind:       r.Kind,
			Verbs:      metav1.Verbs{"get", "patch", "update"},
		})
	}
	for _, sub := range r.Subresources {
		e := metav1.APIResource{Name: r.Plural + "/" + sub.Name, Namespaced: r.Namespaced, Kind: sub.Kind, Verbs: sub.Verbs}
		if sub.GroupVersion() != gv {
			e.Group, e.Version = sub.Group, sub.Version
		}
		d.resource(gv, e)
	}
}

// aggregate converts a version's sorted resources to aggregated discovery, with subresources nested in their resource.
func aggregate(in []metav1.APIResource) []apidiscovery.APIResourceDiscovery {
	var out []apidiscovery.APIResourceDiscovery
	scope := func(namespaced bool) apidiscovery.ResourceScope {
		if namespaced {
			return apidiscovery.ScopeNamespace
		}
		return apidiscovery.ScopeCluster
	}
	for _, r := range in {
		// In an APIResource, an empty group or version means the list's.
		k := &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
		if parent, name, ok := strings.Cut(r.Name, "/"); ok {
			for i := range out {
				if out[i].Resource == parent {
					out[i].Subresources = append(out[i].Subresources, apidiscovery.APISubresourceDiscovery{
						Subresource: name, ResponseKind: k, Verbs: r.Verbs,
					})
				}
			}
			continue
		}
		out = append(out, apidiscovery.APIResourceDiscovery{
			Resource: r.Name, ResponseKind: k, Scope: scope(r.Namespaced), SingularResource: r.SingularName,
			Verbs: r.Verbs, ShortNames: r.ShortNames, Categories: r.Categories,
		})
	}
	return out
}

// inFull fills in the empty groups and versions of response kinds. Upstream does so only for custom resources.
func inFull(gv schema.GroupVersion, all []apidiscovery.APIResourceDiscovery) {
	fill := func(k *metav1.GroupVersionKind) {
		if k.Group == "" && k.Version == "" {
			k.Group, k.Version = gv.Group, gv.Version
		}
	}
	for i := range all {
		fill(all[i].ResponseKind)
		for j := range all[i].Subresources {
			fill(all[i].Subresources[j].ResponseKind)
		}
	}
}

// discover serves /api, /apis and the paths of groups and versions. It returns false, without responding, for other
// paths.
func (s *Server) discover(w http.ResponseWriter, req *http.Request) bool {
	path := strings.Trim(req.URL.Path, "/")
	parts := strings.Split(path, "/")
	var obj runtime.Object
	can := mayProto
	switch {
	case path == "api" || path == "apis":
		w.Header().Add("Vary", "Accept")
		can |= mayAggregate
		if n, err := negotiate(req, can); err == nil && n.as.Kind != "" && req.Method == http.MethodGet {
			a := s.disc().core
			if path == "apis" {
				a = s.disc().named
			}
			s.writeAggregated(w, req, n, a)
			return true
		}
		if path == "api" {
			obj = &metav1.APIVersions{
				TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
				ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: req.Host}},
			}
		} else {
			obj = &metav1.APIGroupList{
				TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: s.disc().groups,
			}
		}
	case len(parts) == 2 && parts[0] == "api":
		l := s.disc().versions[schema.GroupVersion{Version: parts[1]}]
		if l == nil {
			return false
		}
		obj = l.DeepCopy()
	case len(parts) == 2 && parts[0] == "apis":
		for i := range s.disc().groups {
			if s.disc().groups[i].Name == parts[1] {
				g := s.disc().groups[i].DeepCopy()
				g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
				obj = g
			}
		}
		if obj == nil {
			return false
		}
	case len(parts) == 3 && parts[0] == "apis":
		l := s.disc().versions[schema.GroupVersion{Group: parts[1], Version: parts[2]}]
		if l == nil {
			return false
		}
		obj = l.DeepCopy()
	default:
		return false
	}
	// As upstream, discovery answers HEAD at /apis, for groups and for custom resources.
	head := req.Method == http.MethodHead && parts[0] == "apis" && (len(parts) < 3 || !s.inGroup(req.URL.Path))
	if req.Method != http.MethodGet && !head {
		s.wrongMethod(w, req)
		return true
	}
	n, err := negotiate(req, can)
	if err != nil {
		s.fail(w, req, err)
		return true
	}
	s.writeObject(w, req, n, http.StatusOK, obj)
	return true
}

func (s *Server) writeAggregated(w http.ResponseWriter, req *http.Request, n answer, a *aggregated) {
	etag := `"` + a.etag + `"`
	w.Header().Set("ETag", etag)
	w.Header().Set("Cache-Control", "public")
	if strings.Contains(req.Header.Get("If-None-Match"), a.etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	s.writeObject(w, req, n, http.StatusOK, a.list)
}

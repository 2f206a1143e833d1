// Package kind holds the table of resource kinds: one row per kind, built-in
// or ours. Discovery, routes, storage keys, cache tables, OpenAPI, printing
// and authorization all derive from the row.
//
// It may import apis and the Kubernetes libraries, nothing else of Coracle. It
// holds types and pure functions only. Its invariant: a Table never changes
// after it was made, so its rows may be shared by pointer and compared by it.
package kind

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Resource is one row: everything the server knows of one kind.
type Resource struct {
	// GroupVersionKind is the version served and stored: {"apps", "v1", "Deployment"}.
	schema.GroupVersionKind
	// Plural is the name in paths, Singular the one for people: "deployments", "deployment".
	Plural, Singular string
	ShortNames       []string
	Categories       []string
	Namespaced       bool
	// Keys is the part of the storage key after /registry/, as upstream keeps
	// it: "pods", "minions" for nodes, "services/specs", "leases".
	Keys string
	// Proto is true where objects are stored as upstream's protobuf envelope;
	// otherwise they are stored as JSON, as custom resources are.
	Proto bool

	// New and NewList make empty objects of the served version.
	New     func() client.Object
	NewList func() client.ObjectList

	// Strategy says how writes to the main resource are prepared and validated.
	Strategy Strategy
	// Status is the strategy of the status subresource; nil where there is none.
	Status rest.RESTUpdateStrategy
	// Subresources other than status, by name: scale, binding, eviction, log ...
	Subresources []Subresource

	// Fields gives the values that field selectors can ask for, at the least
	// metadata.name and metadata.namespace. It sets no field it cannot select on.
	Fields func(client.Object) fields.Set
	// FieldNames lists the field names valid in a field selector (the keys of Fields).
	FieldNames []string
	// Table prints objects of the served version as rows for kubectl get.
	Table rest.TableConvertor
	// TTL, if not nil, is how long an object lives after its last write (events: one hour).
	TTL func(client.Object) time.Duration
	// Default fills in the defaults of the served version. Nil if there are none.
	Default func(runtime.Object)
	// Internal converts to the version that Strategy and Table work on, External back to the
	// served one. The results may share memory with their argument. Identity for our own kinds.
	Internal func(client.Object) (runtime.Object, error)
	External func(runtime.Object) (client.Object, error)
	// StoredAs, if not nil, makes this row a second face of another one: objects are converted
	// (Internal, External) and stored as that row's, and the cache keeps no table of its own
	// (events.k8s.io/v1 Event is stored as v1 Event).
	StoredAs *Resource
	// Source is the Go source of the types of our own kinds, whose comments describe the fields; empty for built-in ones.
	Source string
	// ReturnsDeleted is true where a deletion is answered with the object, as upstream's registry of the kind has it, and
	// false where it is answered with a Status.
	ReturnsDeleted bool
	// Verbs served, in upstream's order: create delete deletecollection get list patch update watch.
	Verbs []string
}

// Strategy joins what rest.BeforeCreate, BeforeUpdate and BeforeDelete want.
// Objects given to it are the internal version (Resource.ToInternal).
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
}

// Subresource is one further path under an object.
type Subresource struct {
	Name string
	// GroupVersionKind of what is read and written there: autoscaling/v1 Scale, policy/v1 Eviction.
	schema.GroupVersionKind
	Verbs []string
	// New makes an empty object of that kind; nil for streams (log, exec, attach, portforward, proxy).
	New func() runtime.Object
	// Update is the strategy for subresources that write a part of the parent
	// (ephemeralcontainers, resize); nil for others.
	Update rest.RESTUpdateStrategy
}

// GVR is the resource's group, version and plural name.
func (r *Resource) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Plural}
}

// GR is the resource's group and plural name, as errors name it.
func (r *Resource) GR() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Plural}
}

// Prefix is the storage prefix of all objects of the kind, or of one
// namespace of it, with a trailing slash: "/registry/pods/default/".
func (r *Resource) Prefix(namespace string) string {
	if namespace == "" {
		return "/registry/" + r.Keys + "/"
	}
	return "/registry/" + r.Keys + "/" + namespace + "/"
}

// Key is the storage key of one object; namespace is empty for cluster-scoped kinds.
func (r *Resource) Key(namespace, name string) string {
	return r.Prefix(namespace) + name
}

// Subresource returns the subresource of that name, or nil.
func (r *Resource) Subresource(name string) *Subresource {
	for i := range r.Subresources {
		if r.Subresources[i].Name == name {
			return &r.Subresources[i]
		}
	}
	return nil
}

// Table is the set of kinds that a server serves.
type Table struct {
	rows  []*Resource
	byGVR map[schema.GroupVersionResource]*Resource
	byGVK map[schema.GroupVersionKind]*Resource
}

// NewTable makes a table of rows. Two rows with one name or one storage prefix are a
// programming error, and panic.
func NewTable(rows ...*Resource) *Table {
	t := &Table{rows: rows, byGVR: map[schema.GroupVersionResource]*Resource{}, byGVK: map[schema.GroupVersionKind]*Resource{}}
	keys := map[string]bool{}
	for _, r := range rows {
		if t.byGVR[r.GVR()] != nil || t.byGVK[r.GroupVersionKind] != nil || (keys[r.Keys] && r.StoredAs == nil) {
			panic("kind: two rows for " + r.GVR().String())
		}
		keys[r.Keys] = true
		t.byGVR[r.GVR()], t.byGVK[r.GroupVersionKind] = r, r
	}
	return t
}

// All lists the rows in the order of the table. The slice must not be changed.
func (t *Table) All() []*Resource { return t.rows }

// ByGVR returns the row of a path's group, version and resource, or nil.
func (t *Table) ByGVR(gvr schema.GroupVersionResource) *Resource { return t.byGVR[gvr] }

// ByGVK returns the row of an object's kind, or nil.
func (t *Table) ByGVK(gvk schema.GroupVersionKind) *Resource { return t.byGVK[gvk] }

// ByKey finds the row, namespace and name of a storage key; nil if no row has it.
// "/registry/services/specs/default/web" is Service default/web.
func (t *Table) ByKey(key string) (r *Resource, namespace, name string) {
	rest, ok := strings.CutPrefix(key, "/registry/")
	if !ok {
		return nil, "", ""
	}
	for _, row := range t.rows {
		if row.StoredAs != nil {
			continue
		}
		tail, ok := strings.CutPrefix(rest, row.Keys)
		if !ok || !strings.HasPrefix(tail, "/") {
			continue
		}
		tail = tail[1:]
		if !row.Namespaced {
			return row, "", tail
		}
		if ns, n, ok := strings.Cut(tail, "/"); ok {
			return row, ns, n
		}
	}
	return nil, "", ""
}

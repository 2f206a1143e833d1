// Package kind describes resource kinds: one row per served version of a kind, built-in, ours or custom. Discovery, routes,
// storage keys, cache tables, OpenAPI, printing and authorization all derive from the row.
//
// A Table is an immutable set of rows. A Catalog holds the Table that is served at present and replaces it as a whole when kinds are
// added or removed while the server runs.
//
// It may import apis and the Kubernetes libraries, nothing else of Coracle. Its invariant: rows and Tables never change once a Table
// was made of them, so they are shared by pointer; what a kind keeps across changes of its rows is its Storage.
package kind

import (
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Resource is one row: the complete description of one served version of a kind.
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
	// Storage is the identity of what is stored, shared by all versions of a resource and by the rows that replace them later.
	// NewTable sets it where it is nil.
	Storage *Storage
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
	// StoredAs, if not nil, is the row of the version in which objects are stored; they are converted (Internal, External)
	// on the way in and out. events.k8s.io/v1 Event is stored as v1 Event. Nil: this row's version is the stored one.
	StoredAs *Resource
	// Also lists the rows of other versions that may be found in the store, written when those were the stored ones.
	// They need not be served.
	Also []*Resource
	// Deprecated, if not empty, is the warning that each request for this version is answered with.
	Deprecated string
	// Indexes are the fields, of FieldNames, by which the cache finds objects without going through all.
	Indexes []Index
	// Schema describes the objects of kinds without a Go type (unstructured ones); nil if nothing is known of them.
	Schema *spec.Schema
	// Hash is different for rows that differ in what OpenAPI says of them, for kinds that are defined at run time.
	Hash string
	// Source is the Go source of the types of our own kinds, whose comments describe the fields; empty for built-in ones.
	Source string
	// ReturnsDeleted is true where a deletion is answered with the object, as upstream's registry of the kind has it, and
	// false where it is answered with a Status.
	ReturnsDeleted bool
	// Permanent says why an object of that name may not be deleted; nil where all may.
	Permanent func(name string) error
	// Verbs served, in upstream's order: create delete deletecollection get list patch update watch.
	Verbs []string
}

// Index returns the value of one field of an object of the stored version. It is pure.
type Index struct {
	Field string
	Value func(client.Object) string
}

// Storage is the identity of a stored resource. Its pointer is what is compared: a resource that was removed and then added anew has
// another one, and no reader of the old one sees the objects of the new. Rows with one Storage are stored in the same version and
// decode alike; where a change of a kind changes that, it needs a new Storage, with which the objects are read anew.
type Storage struct {
	schema.GroupResource
	Keys string
}

// Prefix is the storage prefix of all objects, with a trailing slash.
func (s *Storage) Prefix() string { return Root + s.Keys + "/" }

// Root is the prefix of all storage keys.
const Root = "/registry/"

// Strategy joins what rest.BeforeCreate, BeforeUpdate and BeforeDelete want.
// Objects given to it are the internal version (Resource.ToInternal).
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
}

// GVR is the resource's group, version and plural name.
func (r *Resource) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Plural}
}

// GR is the resource's group and plural name, as errors name it.
func (r *Resource) GR() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Plural}
}

// Stored is the row of the version in which objects are stored: r itself, unless StoredAs says otherwise.
func (r *Resource) Stored() *Resource {
	if r.StoredAs != nil {
		return r.StoredAs
	}
	return r
}

// Index returns the index of a field, or nil.
func (r *Resource) Index(field string) *Index {
	for i := range r.Indexes {
		if r.Indexes[i].Field == field {
			return &r.Indexes[i]
		}
	}
	return nil
}

// Prefix is the storage prefix of all objects of the kind, or of one
// namespace of it, with a trailing slash: "/registry/pods/default/".
func (r *Resource) Prefix(namespace string) string {
	if namespace == "" {
		return Root + r.Keys + "/"
	}
	return Root + r.Keys + "/" + namespace + "/"
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

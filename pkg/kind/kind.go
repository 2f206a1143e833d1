// Package kind describes resource kinds: one row per served version of a kind, built-in, Coracle's own or custom.
// Discovery, routes, storage keys, cache tables, OpenAPI, printing and authorization derive from the row.
//
// A Table is an immutable set of rows. A Catalog holds the Table that is served now, and replaces it as a whole when
// kinds are added or removed at run time.
//
// Invariant: rows and Tables never change once the Table is made, so they are shared by pointer. The identity of a
// kind across changes of its rows is its Storage.
package kind

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Resource is a row: the complete description of one served version of a kind.
type Resource struct {
	// GroupVersionKind is the served version: {"apps", "v1", "Deployment"}.
	schema.GroupVersionKind
	// ListKind is the kind of lists; empty for Kind + "List".
	ListKind string
	// Plural is the name in paths, Singular the one in messages: "deployments", "deployment".
	Plural, Singular string
	ShortNames       []string
	Categories       []string
	Namespaced       bool
	// Keys is the part of the storage key after /registry/, as upstream: "pods", "minions" for nodes,
	// "services/specs".
	Keys string
	// Storage is the identity of the stored resource, shared by its versions and by rows that replace them later.
	// NewTable sets it if it is nil.
	Storage *Storage
	// Proto is true if objects have upstream's protobuf form, in which they are stored unless StoredJSON is set. Other
	// objects, such as custom resources, are stored as JSON.
	Proto bool
	// StoredJSON is true if objects are stored as JSON although they have a protobuf form.
	StoredJSON bool

	// New and NewList return empty objects of the served version.
	New     func() client.Object
	NewList func() client.ObjectList

	// Strategy prepares and validates writes to the main resource.
	Strategy Strategy
	// Status is the strategy of the status subresource, or nil if there is none.
	Status rest.RESTUpdateStrategy
	// Subresources other than status, by name: scale, binding, eviction, log ...
	Subresources []Subresource

	// Fields returns the values for field selectors, at least metadata.name and metadata.namespace. Its keys are
	// FieldNames.
	Fields     func(client.Object) fields.Set
	FieldNames []string
	// Label, if not nil, checks a field of a field selector instead of FieldNames, and translates field and value to
	// the stored row's. A field that Fields lacks is empty in every object.
	Label func(field, value string) (string, string, error)
	// Table prints objects of the served version as rows for kubectl get.
	Table rest.TableConvertor
	// Expires is true for events: objects are removed some time after their last write.
	Expires bool
	// Default sets the defaults of the served version. Nil if there are none.
	Default func(runtime.Object)
	// Internal converts to the version that Strategy and Table use, External back to the served version. The results
	// may share memory with the argument. For Coracle's own kinds they are the identity.
	Internal func(client.Object) (runtime.Object, error)
	External func(runtime.Object) (client.Object, error)
	// StoredAs is the row of the version in which objects are stored; nil for this row. Objects are converted
	// (Internal, External) when they are read and written. For example, events.k8s.io/v1 Event is stored as v1 Event.
	StoredAs *Resource
	// Also lists the rows of other versions that may be in the store, because they were the stored version earlier.
	// They need not be served.
	Also []*Resource
	// PerVersion is true for kinds whose versions have no common internal version: the strategy, defaults and columns
	// of each version work on objects of that version. Objects are cached in the version in which they were stored.
	// External converts from any other version of the resource to this one, without changing its argument.
	PerVersion bool
	// ExternalAll is External for many objects at once, for kinds whose conversion calls a webhook. If nil, External
	// is called for each object.
	ExternalAll func([]client.Object) ([]client.Object, error)
	// Coerce brings a decoded object of a kind without a Go type into the form that decoding into a Go type would
	// give: it drops fields that are not in the schema, and decodes the metadata. It returns the paths of unknown
	// fields on request.
	Coerce func(o client.Object, how Coercion) (unknown []string, err error)
	// Managers, if not nil, makes the field manager of the resource, or of its status. The field manager does not own
	// the fields in reset.
	Managers func(subresource string, reset map[fieldpath.APIVersion]fieldpath.Filter) (*managedfields.FieldManager, error)
	// Types are the types for field management (server-side apply). If nil, they are deduced from the objects.
	Types managedfields.TypeConverter
	// Record, if not empty, names the only field that writes manage, apart from the metadata. It is managed as a
	// whole, as in Types.
	Record string
	// NoCreate, if not empty, is the reason why no object can be created at present. Creates are refused with 403.
	NoCreate string
	// Most, if positive, is the maximum number of objects, for kinds whose objects cost the server more than their
	// bytes. Further creates are refused with 403. Concurrent creates are not counted, so a few more are possible.
	Most int
	// Pack, if not nil, returns the form in which the cache holds an object, for kinds whose objects are large and
	// rarely read; Unpack is its inverse. The packed form has the object's metadata and JSON encoding, and Internal
	// accepts it. Both functions return objects that are not theirs unchanged. The cache keeps no encodings of packed
	// objects.
	Pack, Unpack func(client.Object) client.Object
	// BeginDelete, if not nil, changes an object on its first deletion request: it adds finalizers or a condition.
	BeginDelete func(runtime.Object)
	// Describe, if not nil, replaces Schema: it makes the complete schemas of an object and of a list for OpenAPI 2 or
	// 3, with references to "#/definitions/" and "#/components/schemas/".
	Describe func(form int) (object, list *spec.Schema, err error)
	// Deprecated, if not empty, is the warning sent with each response for this version.
	Deprecated string
	// Indexes are the fields in FieldNames that the cache indexes.
	Indexes []Index
	// Schema describes the objects of kinds without a Go type; nil if it is unknown.
	Schema *spec.Schema
	// Hash identifies the OpenAPI content of kinds defined at run time. Different content has a different hash.
	Hash string
	// Computed is true for kinds whose objects are not stored: the server computes the response to a create or a read.
	// Table.All omits their rows.
	Computed bool
	// Custom is true for kinds of CustomResourceDefinitions, for which upstream's server has other responses.
	Custom bool
	// Source is the Go source of the types of Coracle's own kinds, whose comments describe the fields; empty for other
	// kinds.
	Source string
	// ReturnsDeleted is true if a deletion returns the object, as for some kinds upstream. Otherwise it returns a
	// Status.
	ReturnsDeleted bool
	// DeleteWarning, if not empty, is the warning sent with the response to a deletion without a propagation policy.
	DeleteWarning string
	// Requires, if not nil, returns the permissions in the object's namespace that the author of a write needs besides
	// the write's own. old is nil for a create.
	Requires func(obj, old client.Object) []Permission
	// Permanent returns an error if the object with that name must not be deleted. Nil means that all may be deleted.
	Permanent func(name string) error
	// Verbs served, in upstream's order: create delete deletecollection get list patch update watch.
	Verbs []string
}

// Permission is a permission in a namespace. Why says which part of the object needs it.
type Permission struct{ Verb, Group, Resource, Why string }

// Coercion has the options of Resource.Coerce.
type Coercion struct {
	// Stored is set for stored objects. Metadata that cannot be decoded is dropped instead of refused, because the
	// object may have been written before validation existed.
	Stored bool
	// Unknown requests the paths of unknown fields.
	Unknown bool
}

// Index is an index of the cache. Value returns the field's value for an object of the stored version; it must be
// pure.
type Index struct {
	Field string
	Value func(client.Object) string
}

// Storage is the identity of a stored resource, compared by pointer. A resource that was removed and added again has a
// new Storage, so readers with the old one see no objects of the new resource. Rows with the same Storage have the
// same stored version and decoder. Changing these needs a new Storage, for which the objects are loaded again.
type Storage struct {
	schema.GroupResource
	Keys string
}

// Prefix returns the storage prefix of all objects, with a trailing slash.
func (s *Storage) Prefix() string { return Root + s.Keys + "/" }

// Root is the prefix of all storage keys.
const Root = "/registry/"

// Strategy has the methods that rest.BeforeCreate, BeforeUpdate and BeforeDelete need. It gets objects of the internal
// version (Resource.Internal).
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
}

// GVR returns the resource's group, version and plural name.
func (r *Resource) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Plural}
}

// ListGVK is the kind of lists of the resource.
func (r *Resource) ListGVK() schema.GroupVersionKind {
	if r.ListKind != "" {
		return r.GroupVersion().WithKind(r.ListKind)
	}
	return r.GroupVersion().WithKind(r.Kind + "List")
}

// GR returns the resource's group and plural name, as in errors.
func (r *Resource) GR() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Plural}
}

// Stored returns the row of the stored version: StoredAs, or r itself.
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

// Prefix returns the storage prefix of all objects of the kind, or of one namespace, with a trailing slash:
// "/registry/pods/default/".
func (r *Resource) Prefix(namespace string) string {
	if namespace == "" {
		return Root + r.Keys + "/"
	}
	return Root + r.Keys + "/" + namespace + "/"
}

// Key returns the storage key of an object; namespace is empty for cluster-scoped kinds.
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

package custom

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// Maker creates the rows of definitions and holds their shared state. It is safe for concurrent use.
type Maker struct {
	converters func() (*converters, error)
	programs   programs
}

// NewMaker creates a Maker. webhooks connects to conversion webhooks.
func NewMaker(webhooks Webhooks) *Maker {
	return &Maker{converters: sync.OnceValues(func() (*converters, error) { return newConverters(webhooks) })}
}

// definition is one CustomResourceDefinition. Its versions share the conversion and the field managers' type
// converter.
type definition struct {
	// crd has no schemas; packed has them. It shares memory with the cache, so it must not be modified.
	crd      *apiextensionsv1.CustomResourceDefinition
	packed   *packed
	names    apiextensionsv1.CustomResourceDefinitionNames
	shared   *Maker
	versions []*version
	stored   *version

	convertor func() (runtime.ObjectConvertor, error)
	types     lazily[managedfields.TypeConverter]
	typesMu   sync.Mutex
}

func (d *definition) namespaced() bool {
	return d.crd.Spec.Scope == apiextensionsv1.NamespaceScoped
}

// Rows creates the rows of a definition's served versions under its accepted names. The caller must not modify crd
// afterwards. was, which may be nil, is the Set for an earlier state of the same definition. The new rows keep its
// Storage unless stored objects would now be decoded differently.
//
// Rows does not check the schemas. Their errors are reported when the rows are used.
func (m *Maker) Rows(crd *apiextensionsv1.CustomResourceDefinition, was *Set) (*Set, error) {
	held, err := packDefinition(crd)
	if err != nil {
		return nil, err
	}
	crd = &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   held.TypeMeta,
		ObjectMeta: held.ObjectMeta,
		Spec:       held.spec,
		Status:     held.status,
	}
	d := &definition{crd: crd, packed: held, names: crd.Status.AcceptedNames, shared: m}
	for what, name := range map[string]string{
		"plural":   d.names.Plural,
		"singular": d.names.Singular,
		"kind":     d.names.Kind,
		"listKind": d.names.ListKind,
	} {
		if name == "" {
			return nil, fmt.Errorf("status.acceptedNames.%s is empty", what)
		}
	}
	for i := range crd.Spec.Versions {
		v := newVersion(d, i)
		d.versions = append(d.versions, v)
		if v.spec.Storage {
			d.stored = v
		}
	}
	if d.stored == nil {
		return nil, fmt.Errorf("invalid apiextensionsv1.CustomResourceDefinition, no storage version")
	}
	d.convertor = sync.OnceValues(func() (runtime.ObjectConvertor, error) { return guarded(d.newConvertor) })

	set := &Set{definition: d, storage: &kind.Storage{}}
	rows := map[*version]*kind.Resource{}
	for _, v := range d.versions {
		rows[v] = v.row()
	}
	stored := rows[d.stored]
	set.storage.GroupResource, set.storage.Keys = stored.GR(), stored.Keys
	if was != nil && was.decodesAs(d) {
		set.storage = was.storage
	}
	for _, v := range d.versions {
		r := rows[v]
		r.Storage = set.storage
		if v == d.stored {
			for _, o := range d.versions {
				if o != v {
					r.Also = append(r.Also, rows[o])
				}
			}
		} else {
			r.StoredAs = stored
		}
		if v.spec.Served {
			set.Rows = append(set.Rows, r)
		}
	}
	set.Stored = stored
	if len(set.Rows) == 0 && crd.DeletionTimestamp != nil {
		set.Rows = append(set.Rows, stored) // needed to find and delete objects
	}
	return set, nil
}

// Set contains the rows of one definition.
type Set struct {
	// Rows are the rows of the served versions. Stored is the storage version's row; it may not be served.
	Rows       []*kind.Resource
	Stored     *kind.Resource
	definition *definition
	storage    *kind.Storage
}

// Close releases the compiled strategies of the rows.
func (s *Set) Close() {
	for _, v := range s.definition.versions {
		s.definition.shared.programs.forget(v)
	}
}

// Same reports whether Rows would return the same rows for crd.
func (s *Set) Same(crd *apiextensionsv1.CustomResourceDefinition) bool {
	is := s.definition.crd
	return is.UID == crd.UID && is.Generation == crd.Generation &&
		SameNames(is.Status.AcceptedNames, crd.Status.AcceptedNames) &&
		(is.DeletionTimestamp == nil) == (crd.DeletionTimestamp == nil)
}

// Of reports whether the rows belong to the definition with this UID, not to an earlier one of the same name.
func (s *Set) Of(uid types.UID) bool { return s.definition.crd.UID == uid }

// SameNames reports whether a and b serve the same names.
func SameNames(a, b apiextensionsv1.CustomResourceDefinitionNames) bool {
	return a.Plural == b.Plural && a.Singular == b.Singular && a.Kind == b.Kind && a.ListKind == b.ListKind &&
		slices.Equal(a.ShortNames, b.ShortNames) && slices.Equal(a.Categories, b.Categories)
}

// row creates the row of a version, without the parts that the versions share.
func (v *version) row() *kind.Resource {
	crd := v.of.crd
	r := own.Untyped{
		Kind: v.gvk, Plural: v.of.names.Plural, Singular: v.of.names.Singular, ShortNames: v.of.names.ShortNames,
		Categories: v.of.names.Categories,
		Cluster:    !v.of.namespaced(), Hash: fmt.Sprintf("%s/%d/%v", crd.UID, crd.Generation, crd.Status.AcceptedNames),
	}.Row()
	r.ListKind = v.of.names.ListKind
	r.Custom, r.PerVersion = true, true
	// Upstream's order.
	r.Verbs = []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	s := newStrategy(v)
	r.Strategy = s
	if v.hasStatus() {
		r.Status = &statusStrategy{s}
	}
	if sub := v.spec.Subresources; sub != nil && sub.Scale != nil {
		r.Subresources = []kind.Subresource{{
			Name: "scale", GroupVersionKind: autoscalingv1.SchemeGroupVersion.WithKind("Scale"),
			Verbs: []string{"get", "patch", "update"},
			New:   func() runtime.Object { return &autoscalingv1.Scale{} }, Scale: v.scale(),
			Table: &columns{list: scaleColumns(sub.Scale)},
		}}
	}
	r.Default, r.Coerce = v.fill, v.coerce
	r.External, r.ExternalAll = v.external, v.externalAll
	r.Managers, r.Types = v.managers, typesOf{v.of}
	r.Describe = v.describe
	r.Table = &columns{list: v.spec.AdditionalPrinterColumns}
	selectable := v.selectable()
	r.Fields, r.FieldNames = selectable.Set, selectable.Names
	if v.spec.Deprecated {
		r.Deprecated = v.deprecation()
	}
	if crd.DeletionTimestamp != nil {
		r.NoCreate = "create not allowed while custom resource definition is terminating"
	}
	return r
}

// deprecation returns the warning for requests to a deprecated version: the author's, or upstream's default.
func (v *version) deprecation() string {
	if v.spec.DeprecationWarning != nil {
		return *v.spec.DeprecationWarning
	}
	spec := &v.of.crd.Spec
	text := fmt.Sprintf("%s/%s %s is deprecated", spec.Group, v.spec.Name, spec.Names.Kind)
	best := ""
	for i := range spec.Versions {
		o := &spec.Versions[i]
		if o.Served && !o.Deprecated && apiversion.CompareKubeAwareVersionStrings(v.spec.Name, o.Name) < 0 &&
			(best == "" || apiversion.CompareKubeAwareVersionStrings(best, o.Name) < 0) {
			best = o.Name
		}
	}
	if best != "" {
		text += fmt.Sprintf("; use %s/%s %s", spec.Group, best, spec.Names.Kind)
	}
	return text
}

// age returns the column of kinds that declare no columns.
func age() apiextensionsv1.CustomResourceColumnDefinition {
	return apiextensionsv1.CustomResourceColumnDefinition{
		Name: "Age", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
		JSONPath: ".metadata.creationTimestamp",
	}
}

func scaleColumns(
	scale *apiextensionsv1.CustomResourceSubresourceScale,
) []apiextensionsv1.CustomResourceColumnDefinition {
	list := []apiextensionsv1.CustomResourceColumnDefinition{}
	if scale.SpecReplicasPath != "" {
		list = append(list, apiextensionsv1.CustomResourceColumnDefinition{
			Name:        "Desired",
			Type:        "integer",
			Description: "Number of desired replicas",
			JSONPath:    ".spec.replicas",
		})
	}
	if scale.StatusReplicasPath != "" {
		list = append(list, apiextensionsv1.CustomResourceColumnDefinition{
			Name:        "Available",
			Type:        "integer",
			Description: "Number of actual replicas",
			JSONPath:    ".status.replicas",
		})
	}
	return append(list, age())
}

// columns prints objects. It parses the columns on first use.
type columns struct {
	list []apiextensionsv1.CustomResourceColumnDefinition
	once sync.Once
	made rest.TableConvertor
}

func (c *columns) ConvertToTable(ctx context.Context, obj runtime.Object,
	options runtime.Object) (*metav1.Table, error) {
	c.once.Do(func() {
		if len(c.list) == 0 {
			c.list = []apiextensionsv1.CustomResourceColumnDefinition{age()}
		}
		c.made, _ = tableconvertor.New(c.list) // despite an error it prints the valid columns, as upstream
	})
	return c.made.ConvertToTable(ctx, obj, options)
}

var _ rest.TableConvertor = (*columns)(nil)

// path splits a path such as .spec.replicas.
func path(p string) []string { return strings.Split(strings.TrimPrefix(p, "."), ".") }

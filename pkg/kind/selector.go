package kind

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	nameField      = "metadata.name"
	namespaceField = "metadata.namespace"
)

// Selectable is the set of fields that field selectors may use: Set for Resource.Fields, Names for
// Resource.FieldNames.
type Selectable struct {
	Set   func(client.Object) fields.Set
	Names []string
}

// MetaFields returns the selectable fields of a kind that has only name and namespace.
func MetaFields() Selectable {
	return SelectFields(nil, func(client.Object, []string) []string { return nil })
}

// SelectFields adds a kind's fields to the metadata's. values appends one value for each name, in order.
func SelectFields[P client.Object](names []string, values func(P, []string) []string) Selectable {
	all := append([]string{nameField, namespaceField}, names...)
	return Selectable{Names: all, Set: func(o client.Object) fields.Set {
		set := make(fields.Set, len(all))
		set[nameField], set[namespaceField] = o.GetName(), o.GetNamespace()
		var room [12]string
		for i, v := range values(o.(P), room[:0]) {
			set[names[i]] = v
		}
		return set
	}}
}

// ClusterScoped removes the namespace, which objects of cluster-scoped kinds do not have.
func (s Selectable) ClusterScoped() Selectable {
	var names []string
	for _, n := range s.Names {
		if n != namespaceField {
			names = append(names, n)
		}
	}
	return Selectable{Names: names, Set: func(o client.Object) fields.Set {
		set := s.Set(o)
		delete(set, namespaceField)
		return set
	}}
}

// Selector checks a field selector for this row's kind, and translates it to the field names of the stored row. The
// error names an unsupported field.
func (r *Resource) Selector(s fields.Selector) (fields.Selector, error) {
	if s == nil || s.Empty() {
		return s, nil
	}
	if r.Label != nil {
		return s.Transform(r.Label)
	}
	known := sets.New(r.FieldNames...)
	return s.Transform(func(name, value string) (string, string, error) {
		if !known.Has(name) {
			return "", "", fmt.Errorf("field label not supported: %s", name)
		}
		return name, value, nil
	})
}

package kind

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	nameField      = "metadata.name"
	namespaceField = "metadata.namespace"
)

// Selectable is what field selectors can ask of a kind: the values of Resource.Fields and the names of Resource.FieldNames.
type Selectable struct {
	Set   func(client.Object) fields.Set
	Names []string
}

// MetaFields is the selectable fields of a kind that has none but its name and namespace.
func MetaFields() Selectable {
	return SelectFields(nil, func(client.Object, []string) []string { return nil })
}

// SelectFields joins the metadata with a kind's own fields. Values appends one value for each of names, in their order.
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

// ClusterScoped drops the namespace, which upstream refuses in a selector of such kinds.
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

// eventFieldNames are the fields of events.k8s.io that core events name differently.
var eventFieldNames = map[string]string{
	"regarding.kind": "involvedObject.kind", "regarding.namespace": "involvedObject.namespace", "regarding.name": "involvedObject.name",
	"regarding.uid": "involvedObject.uid", "regarding.apiVersion": "involvedObject.apiVersion",
	"regarding.resourceVersion": "involvedObject.resourceVersion", "regarding.fieldPath": "involvedObject.fieldPath",
	"reportingController": "reportingComponent",
}

// Selector checks a field selector of this row's kind, and gives it in the field names of the row
// that the objects are stored as. The error names the field that cannot be selected on.
func (r *Resource) Selector(s fields.Selector) (fields.Selector, error) {
	if s == nil || s.Empty() {
		return s, nil
	}
	known := make(map[string]bool, len(r.FieldNames))
	for _, n := range r.FieldNames {
		known[n] = true
	}
	return s.Transform(func(name, value string) (string, string, error) {
		if r.Kind == "Pod" && name == "spec.host" { // what clients before v1 sent
			name = "spec.nodeName"
		}
		if !known[name] {
			return "", "", fmt.Errorf("field label not supported: %s", name)
		}
		if stored, ok := eventFieldNames[name]; ok && r.StoredAs != nil {
			name = stored
		}
		return name, value, nil
	})
}

package object

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// Ignored holds the fields and field managers that a Resource ignores.
type Ignored struct {
	fields   [][]kontrol.PathStep
	managers []string
}

// NewIgnored parses a validated spec.ignore.
func NewIgnored(i *kontrol.Ignore) Ignored {
	if i == nil {
		return Ignored{}
	}
	out := Ignored{managers: i.Managers}
	for _, f := range i.Fields {
		if steps, err := kontrol.ParsePath(f); err == nil {
			out.fields = append(out.fields, steps)
		}
	}
	return out
}

// None reports whether i is empty.
func (i Ignored) None() bool { return len(i.fields) == 0 && len(i.managers) == 0 }

// Field reports whether a field is ignored for every manager.
func (i Ignored) Field(p fieldpath.Path) bool {
	return slices.ContainsFunc(i.fields, func(s []kontrol.PathStep) bool { return Matches(s, p) })
}

// Manager reports whether the fields of a manager are ignored.
func (i Ignored) Manager(name string) bool { return slices.Contains(i.managers, name) }

// Cut returns a template without the ignored fields and the fields of ignored managers. managed are the managed fields
// of the object on the cluster.
func (i Ignored) Cut(template map[string]any, managed []metav1.ManagedFieldsEntry) map[string]any {
	out := template
	for _, steps := range i.fields {
		out = Strip(out, steps)
	}
	for _, m := range managed {
		if !i.Manager(m.Manager) || m.FieldsV1 == nil {
			continue
		}
		Fields(m.FieldsV1.GetRawBytes()).Leaves().Iterate(func(p fieldpath.Path) {
			if !identifies(p) {
				out = Remove(out, p)
			}
		})
	}
	return out
}

// Parts returns, for each ignored field that a template has, an object that contains only this field and can be
// applied.
func (i Ignored) Parts(template map[string]any) (list []map[string]any) {
	meta, _ := template["metadata"].(map[string]any)
	for _, steps := range i.fields {
		part, ok := Only(template, steps).(map[string]any)
		if !ok {
			continue
		}
		names, _ := part["metadata"].(map[string]any)
		if names == nil {
			names = map[string]any{}
		}
		for _, k := range []string{"name", "namespace"} {
			if v, ok := meta[k]; ok {
				names[k] = v
			}
		}
		part["apiVersion"], part["kind"], part["metadata"] = template["apiVersion"], template["kind"], names
		list = append(list, part)
	}
	return list
}

// identifies reports whether a field identifies an object or a list element. Without it nothing else can be applied.
func identifies(p fieldpath.Path) bool {
	if len(p) == 0 {
		return true
	}
	first := p[0].FieldName
	if first != nil && (*first == "apiVersion" || *first == "kind") {
		return true
	}
	if first != nil && *first == "metadata" && len(p) == 2 {
		return true
	}
	if len(p) < 2 || p[len(p)-1].FieldName == nil || p[len(p)-2].Key == nil {
		return false
	}
	for _, f := range *p[len(p)-2].Key {
		if f.Name == *p[len(p)-1].FieldName {
			return true
		}
	}
	return false
}

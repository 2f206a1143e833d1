package fieldset

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// TestTopologyIsUpstreams derives topology.txt from the schema of upstream's field manager. UPDATE=1 writes it.
func TestTopologyIsUpstreams(t *testing.T) {
	convert := applyconfigurations.NewTypeConverter(scheme.Scheme)
	all := map[string]bool{}
	var kinds []string
	for gvk, goType := range scheme.Scheme.AllKnownTypes() {
		obj, err := scheme.Scheme.New(gvk)
		require.NoError(t, err)
		if _, err := meta.Accessor(obj); err != nil || strings.Contains(gvk.Version, "alpha") ||
			strings.Contains(gvk.Version, "beta") {
			continue
		}
		obj.GetObjectKind().SetGroupVersionKind(gvk)
		typed, err := convert.ObjectToTyped(obj)
		if err != nil {
			continue // not in the schema
		}
		d := deriver{schema: typed.Schema(), rules: map[string]bool{}, seen: map[reflect.Type]bool{}}
		d.derive(goType, typed.TypeRef(), typeName(goType))
		if d.odd != "" {
			t.Logf("%s has no plan: %s", gvk, d.odd)
			continue
		}
		kinds = append(kinds, "kind "+typeName(goType))
		maps.Copy(all, d.rules)
	}
	slices.Sort(kinds)
	want := strings.Join(append(slices.Compact(kinds), slices.Sorted(maps.Keys(all))...), "\n") + "\n"
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile("topology.txt", []byte(want), 0o644))
		return
	}
	require.Equal(t, want, topologyText, "run UPDATE=1 go test -run Topology ./pkg/api/registry/fieldset to update it")
}

// deriver walks the Go type and the schema of a kind in parallel.
type deriver struct {
	schema *schema.Schema
	rules  map[string]bool
	seen   map[reflect.Type]bool
	odd    string // where they disagree
}

func (d *deriver) fail(where, why string) {
	if d.odd == "" {
		d.odd = where + ": " + why
	}
}

func (d *deriver) rule(where, what string) { d.rules[where+" "+what] = true }

// derive examines the values of one type in one place: a field or, for items of maps and lists, a type.
func (d *deriver) derive(t reflect.Type, ref schema.TypeRef, where string) {
	atom, ok := d.schema.Resolve(ref)
	if !ok {
		d.fail(where, "is not in the schema")
		return
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	atomicMap := atom.Map != nil && atom.Map.ElementRelationship == schema.Atomic
	atomicList := atom.List != nil && atom.List.ElementRelationship == schema.Atomic
	if value.TypeReflectEntryOf(t).CanConvertToUnstructured() {
		if atom.Map != nil && !atomicMap || atom.List != nil && !atomicList {
			d.fail(where, "is converted, and granular")
		}
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		d.structure(t, ref, atom, where)
	case reflect.Map:
		switch {
		case atom.Map == nil || t.Key().Kind() != reflect.String:
			d.fail(where, "is not a map in the schema")
		case atomicMap:
			d.rule(where, "atomic")
		default:
			d.item(t.Elem(), atom.Map.ElementType, where)
		}
	case reflect.Slice:
		switch {
		case t.Elem().Kind() == reflect.Uint8 && atom.Scalar != nil && atom.List == nil && atom.Map == nil,
			atomicList && atom.Map == nil:
		case atom.List == nil || atom.List.ElementRelationship != schema.Associative || atom.Map != nil:
			d.fail(where, "is not a list in the schema")
		default:
			d.list(t, atom.List, where)
		}
	case reflect.Interface:
		d.fail(where, "is an interface")
	default:
		if atom.Scalar == nil || atom.Map != nil || atom.List != nil {
			d.fail(where, "is not a scalar in the schema")
		}
	}
}

func (d *deriver) structure(t reflect.Type, ref schema.TypeRef, atom schema.Atom, where string) {
	if atom.Map == nil || atom.Scalar != nil || atom.List != nil {
		d.fail(where, "is not a struct in the schema")
		return
	}
	own, _ := d.schema.Resolve(schema.TypeRef{NamedType: ref.NamedType, Inlined: ref.Inlined})
	ownAtomic := own.Map != nil && own.Map.ElementRelationship == schema.Atomic
	if atom.Map.ElementRelationship == schema.Atomic {
		if ownAtomic {
			where = typeName(t)
		}
		d.rule(where, "atomic")
		return
	}
	if ownAtomic {
		d.rule(where, "granular")
	}
	if d.seen[t] {
		return
	}
	d.seen[t] = true
	for _, f := range value.TypeReflectEntryOf(t).OrderedFields() {
		in, ok := atom.Map.FindField(f.JsonName)
		if !ok {
			d.fail(typeName(t)+"."+f.JsonName, "is not in the schema")
			return
		}
		d.derive(fieldType(t, f), in.Type, typeName(t)+"."+f.JsonName)
	}
}

func (d *deriver) item(t reflect.Type, ref schema.TypeRef, where string) {
	in := deriver{schema: d.schema, rules: map[string]bool{}, seen: d.seen}
	in.derive(t, ref, where)
	if in.odd != "" {
		d.fail(where, in.odd)
	}
	for r := range in.rules {
		if strings.HasPrefix(r, where+" ") {
			d.fail(where, "its items have a rule of their own")
		}
		d.rules[r] = true
	}
}

func (d *deriver) list(t reflect.Type, l *schema.List, where string) {
	d.item(t.Elem(), l.ElementType, where)
	if len(l.Keys) == 0 {
		d.rule(where, "set")
		return
	}
	atom, _ := d.schema.Resolve(l.ElementType)
	if atom.Map == nil {
		d.fail(where, "its items have no fields")
		return
	}
	words := "keys"
	for _, key := range l.Keys {
		words += " " + key
		e := value.TypeReflectEntryOf(t.Elem()).Fields()[key]
		if e == nil {
			d.fail(where, "its items have no "+key)
			return
		}
		if !e.CanOmit(e.GetFrom(reflect.New(t.Elem()).Elem())) {
			continue // a required field
		}
		field, _ := atom.Map.FindField(key)
		switch fallback := field.Default.(type) {
		case nil:
		case string:
			words += "=" + fallback
		default:
			d.fail(where, fmt.Sprintf("the default of %s is %v", key, fallback))
		}
	}
	d.rule(where, words)
}

package fieldset

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"pgregory.net/rapid"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"
)

var gizmo = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gizmo"}

// gizmoModels has lists and maps of each topology, nested in each other.
const gizmoModels = `
gizmo:
  type: object
  x-kubernetes-group-version-kind: [{group: example.com, version: v1, kind: Gizmo}]
  properties:
    apiVersion: {type: string}
    kind: {type: string}
    metadata: {$ref: "#/components/schemas/meta"}
    spec:
      type: object
      properties:
        text: {type: string}
        number: {type: integer}
        fraction: {type: number}
        flag: {type: boolean}
        either: {x-kubernetes-int-or-string: true}
        plain: {type: array, items: {type: string}}
        tags: {type: array, x-kubernetes-list-type: set, items: {type: string}}
        numbers: {type: array, x-kubernetes-list-type: set, items: {type: integer}}
        ports:
          type: array
          x-kubernetes-list-type: map
          x-kubernetes-list-map-keys: [protocol, number]
          items:
            type: object
            properties: {number: {type: integer}, protocol: {type: string, default: TCP}, names: {type: array, x-kubernetes-list-type: set, items: {type: string}}}
        whole: {type: object, x-kubernetes-map-type: atomic, additionalProperties: {type: string}}
        options: {type: object, additionalProperties: {type: object, properties: {a: {type: string}, b: {type: array, items: {type: object, properties: {c: {type: integer}}}}}}}
        free: {type: object, x-kubernetes-preserve-unknown-fields: true}
    status: {type: object, properties: {phase: {type: string}, ports: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, properties: {name: {type: string}}}}}}
meta:
  type: object
  properties:
    name: {type: string}
    namespace: {type: string}
    uid: {type: string}
    creationTimestamp: {type: string}
    generateName: {type: string}
    labels: {type: object, additionalProperties: {type: string}}
    annotations: {type: object, additionalProperties: {type: string}}
    finalizers: {type: array, x-kubernetes-list-type: set, items: {type: string}}
    ownerReferences: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [uid], items: {type: object, x-kubernetes-map-type: atomic, properties: {uid: {type: string}, name: {type: string}}}}
`

func gizmoTypes(t testing.TB, preserve bool) (managedfields.TypeConverter, *spec.Schema) {
	var models map[string]*spec.Schema
	require.NoError(t, yaml.Unmarshal([]byte(gizmoModels), &models))
	whole := *models["gizmo"]
	whole.Properties = map[string]spec.Schema{}
	for name, s := range models["gizmo"].Properties {
		whole.Properties[name] = s
	}
	whole.Properties["metadata"] = *models["meta"]
	types, err := managedfields.NewTypeConverter(models, preserve)
	require.NoError(t, err)
	return types, &whole
}

type untypedVersion struct{}

func (untypedVersion) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(gvk)
	return u, nil
}
func (untypedVersion) Default(runtime.Object)    {}
func (untypedVersion) Convert(_, _, _ any) error { return errors.New("there is one version") }
func (untypedVersion) ConvertFieldLabel(_ schema.GroupVersionKind, l, x string) (string, string, error) {
	return l, x, nil
}
func (untypedVersion) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

// gizmoMaker makes values that fit a schema or, if odd, sometimes do not.
type gizmoMaker struct {
	*rand.Rand
	odd bool
}

func (g gizmoMaker) value(s *spec.Schema, depth int) any {
	switch n := g.IntN(40); {
	case n == 0 && (depth == 2 || g.odd):
		return nil
	case n == 1 && g.odd:
		return g.any(2)
	}
	if unknown, _ := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); unknown {
		return g.any(0)
	}
	if len(s.Type) == 0 {
		return g.any(3)
	}
	switch s.Type[0] {
	case "string":
		if g.odd && g.IntN(20) == 0 {
			return "\x80"
		}
		return []string{"", "a", "b", "c", `odd "text" <&>`, "é"}[g.IntN(6)]
	case "integer":
		return int64(g.IntN(4))
	case "number":
		return []any{float64(1.5), int64(2)}[g.IntN(2)]
	case "boolean":
		return g.IntN(2) == 0
	case "array":
		out := []any{}
		for range g.IntN(4) {
			out = append(out, g.value(s.Items.Schema, depth+1))
		}
		return out
	}
	out := map[string]any{}
	for name, p := range s.Properties {
		if key := name == "uid" || name == "name"; depth == 0 || key && !g.odd || g.IntN(3) > 0 {
			out[name] = g.value(&p, depth+1)
		}
	}
	if more := s.AdditionalProperties; more != nil && more.Schema != nil {
		for range g.IntN(3) {
			out[[]string{"x", "y", "example.com/z", `"q"`}[g.IntN(4)]] = g.value(more.Schema, depth+1)
		}
	}
	if g.odd && g.IntN(30) == 0 {
		out["unknown"] = g.any(2)
	}
	return out
}

func (g gizmoMaker) any(depth int) any {
	switch n := g.IntN(7); {
	case n == 0 && depth < 3:
		return map[string]any{"k" + strconv.Itoa(g.IntN(3)): g.any(depth + 1), "l": g.any(depth + 1)}
	case n == 1 && depth < 3:
		return []any{g.any(depth + 1), g.any(depth + 1)}
	case n == 2:
		return g.IntN(2) == 0
	case n == 3:
		return int64(g.IntN(3))
	case n == 4:
		return 0.5
	case n == 5:
		return nil
	}
	return "text"
}

func TestCreatedUntypedAgreesWithUpstream(t *testing.T) {
	reset := fieldpath.NewSet(fieldpath.MakePathOrDie("status"))
	compared, refused := 0, 0
	strict, schema := gizmoTypes(t, false)
	preserving, _ := gizmoTypes(t, true)
	rapid.Check(t, func(rt *rapid.T) {
		types := rapid.SampledFrom([]managedfields.TypeConverter{strict, preserving}).Draw(rt, "types")
		without := reset
		if rapid.Bool().Draw(rt, "without status") {
			without = nil
		}
		v := untypedVersion{}
		sets := map[fieldpath.APIVersion]*fieldpath.Set{}
		if without != nil {
			sets["example.com/v1"] = without
		}
		f, err := managedfields.NewDefaultCRDFieldManager(types, v, v, v, gizmo, gizmo.GroupVersion(), "",
			fieldpath.NewExcludeFilterSetMap(sets))
		require.NoError(rt, err)
		g := gizmoMaker{rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0)), rapid.IntRange(0, 2).Draw(rt, "odd") == 0}
		for range 5 {
			content, _ := g.value(schema, 0).(map[string]any)
			if content == nil {
				continue
			}
			obj := &unstructured.Unstructured{Object: content}
			obj.SetGroupVersionKind(gizmo)
			before := obj.DeepCopy()
			got, ok := CreatedUntyped(types, obj, without, Writer{
				Manager:    "m",
				APIVersion: "example.com/v1",
				Time:       time.Now().UTC(),
			})
			require.Equal(rt, before, obj)
			live, _ := v.New(gizmo)
			out, err := f.Update(live, obj, "m")
			if !ok {
				refused++
				continue
			}
			require.NoError(rt, err, "%v", before.Object)
			compared++
			before.SetManagedFields(got)
			require.Equal(rt, shown(out.(*unstructured.Unstructured).GetManagedFields()), shown(before.GetManagedFields()), "%v",
				before.Object)
		}
	})
	require.Greater(t, 4*compared, refused, "many objects fit")
}

func TestCreatedUntypedIsBounded(t *testing.T) {
	types, _ := gizmoTypes(t, false)
	labels := map[string]any{}
	for i := range maxUntyped {
		labels[strconv.Itoa(i)] = "x"
	}
	obj := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"labels": labels}}}
	obj.SetGroupVersionKind(gizmo)
	_, ok := CreatedUntyped(types, obj, nil, Writer{})
	require.False(t, ok)
	for i := range 10 {
		delete(labels, strconv.Itoa(i))
	}
	got, ok := CreatedUntyped(types, obj, nil, Writer{})
	require.True(t, ok)
	require.Contains(t, shown(got)[0], `"f:9999"`)
}

func BenchmarkCreatedUntyped(b *testing.B) {
	types, s := gizmoTypes(b, false)
	g := gizmoMaker{Rand: rand.New(rand.NewPCG(1, 2))}
	var obj *unstructured.Unstructured
	for ok := false; !ok; {
		content, _ := g.value(s, 0).(map[string]any)
		if obj = (&unstructured.Unstructured{Object: content}); len(content) < 3 {
			continue
		}
		obj.SetGroupVersionKind(gizmo)
		_, ok = CreatedUntyped(types, obj, nil, Writer{})
	}
	v := untypedVersion{}
	f, err := managedfields.NewDefaultCRDFieldManager(types, v, v, v, gizmo, gizmo.GroupVersion(), "", nil)
	require.NoError(b, err)
	b.Run("here", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			CreatedUntyped(types, obj, nil, Writer{Manager: "m", APIVersion: "example.com/v1", Time: time.Now()})
		}
	})
	b.Run("upstream", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			live, _ := v.New(gizmo)
			f.UpdateNoErrors(live, obj, "m")
		}
	})
}

package fieldset

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"pgregory.net/rapid"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

var typeConverter = applyconfigurations.NewTypeConverter(scheme.Scheme)

type sameVersion struct{ gvk schema.GroupVersionKind }

func (v sameVersion) New(schema.GroupVersionKind) (runtime.Object, error) {
	return scheme.Scheme.New(v.gvk)
}
func (v sameVersion) Default(runtime.Object)    {}
func (v sameVersion) Convert(_, _, _ any) error { return fmt.Errorf("there is one version") }
func (v sameVersion) ConvertFieldLabel(_ schema.GroupVersionKind, l, x string) (string, string, error) {
	return l, x, nil
}

func (v sameVersion) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	if _, ok := gv.KindForGroupVersionKinds([]schema.GroupVersionKind{v.gvk}); !ok {
		return nil, runtime.NewNotRegisteredGVKErrForTarget("test", v.gvk, gv)
	}
	u, ok := in.(*unstructured.Unstructured)
	if !ok {
		in.GetObjectKind().SetGroupVersionKind(v.gvk)
		return in, nil
	}
	out, err := scheme.Scheme.New(v.gvk)
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out)
	}
	return out, err
}

func upstream(t require.TestingT, gvk schema.GroupVersionKind, subresource string,
	reset *fieldpath.Set) *managedfields.FieldManager {
	v := sameVersion{gvk}
	f, err := managedfields.NewDefaultFieldManager(typeConverter, v, v, v, gvk, gvk.GroupVersion(), subresource,
		fieldpath.NewExcludeFilterSetMap(map[fieldpath.APIVersion]*fieldpath.Set{
			fieldpath.APIVersion(gvk.GroupVersion().String()): reset,
		}))
	require.NoError(t, err)
	return f
}

// part is an object or one of its subresources, with the fields that writes to it do not change.
type part struct {
	name    string
	reset   *fieldpath.Set
	plan    *Plan
	manager *managedfields.FieldManager
}

var longAgo = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// TestPlansAgreeWithUpstream compares plans with upstream's field manager on random objects of all kinds.
func TestPlansAgreeWithUpstream(t *testing.T) {
	var kinds []schema.GroupVersionKind
	for gvk, goType := range scheme.Scheme.AllKnownTypes() {
		if _, ok := topology()["kind "+typeName(goType)]; ok {
			kinds = append(kinds, gvk)
		}
	}
	slices.SortFunc(kinds, func(a, b schema.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) })
	parts := map[schema.GroupVersionKind][]part{}
	for _, gvk := range kinds {
		empty, err := scheme.Scheme.New(gvk)
		require.NoError(t, err)
		all := []part{
			{name: "", reset: fieldpath.NewSet(fieldpath.MakePathOrDie("status"))},
			{
				name:  "status",
				reset: fieldpath.NewSet(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata", "ownerReferences")),
			},
		}
		for i := range all {
			all[i].plan, all[i].manager = NewPlan(empty, all[i].reset), upstream(t, gvk, all[i].name, all[i].reset)
			require.NotNil(t, all[i].plan, gvk)
		}
		parts[gvk] = all
	}
	steps, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		gvk := rapid.SampledFrom(kinds).Draw(t, "kind")
		if rapid.Bool().Draw(t, "often") {
			gvk = corev1.SchemeGroupVersion.WithKind(rapid.SampledFrom([]string{
				"Pod", "Node", "Service", "Endpoints", "Event", "ConfigMap",
			}).Draw(t, "kind"))
		}
		g := generator{Rand: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))}
		make := func() runtime.Object {
			obj, err := scheme.Scheme.New(gvk)
			require.NoError(t, err)
			g.fill(reflect.ValueOf(obj).Elem(), 0)
			obj.GetObjectKind().SetGroupVersionKind(gvk)
			m, _ := meta.Accessor(obj)
			m.SetName("name")
			m.SetManagedFields(nil)
			return obj
		}
		live, _ := scheme.Scheme.New(gvk)
		for step := range rapid.IntRange(1, 14).Draw(t, "steps") {
			p := parts[gvk][g.IntN(len(parts[gvk]))]
			manager := fmt.Sprint("m", g.IntN(12))
			if step > 0 && g.IntN(6) == 0 {
				live = applied(t, p, live, make(), manager)
				continue
			}
			obj := make()
			if step > 0 && g.IntN(3) > 0 {
				obj = live.DeepCopyObject()
				g.change(reflect.ValueOf(obj).Elem())
			}
			m, _ := meta.Accessor(obj)
			was, _ := meta.Accessor(live)
			m.SetManagedFields(was.GetManagedFields())
			m.SetUID("")
			w := Writer{Manager: manager, APIVersion: gvk.GroupVersion().String(), Subresource: p.name, Time: time.Now().UTC()}
			before := obj.DeepCopyObject()
			var got []metav1.ManagedFieldsEntry
			var ok bool
			if step == 0 {
				got, ok = p.plan.Created(obj, w)
			} else {
				got, ok = p.plan.Updated(live, obj, was.GetManagedFields(), w)
			}
			require.Equal(t, before, obj)
			out := p.manager.UpdateNoErrors(live.DeepCopyObject(), obj, manager)
			now, _ := meta.Accessor(out)
			steps++
			if ok {
				require.Equal(t, shown(now.GetManagedFields()), shown(got), "from %s\nto %s", text(live), text(before))
			} else {
				refused++
			}
			aged(now)
			now.SetUID("uid")
			if live = out; len(now.GetManagedFields()) == 0 {
				return
			}
		}
	})
	t.Logf("%d writes, %d left to upstream", steps, refused)
	require.Less(t, refused, steps/8, "plans must handle most writes")
}

// applied returns live after a server-side apply, or live itself if the apply is rejected.
func applied(t *rapid.T, p part, live, config runtime.Object, manager string) runtime.Object {
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(config)
	require.NoError(t, err)
	out, err := p.manager.Apply(live.DeepCopyObject(), &unstructured.Unstructured{Object: u}, manager, true)
	if err != nil {
		return live
	}
	m, _ := meta.Accessor(out)
	aged(m)
	m.SetUID("uid")
	return out
}

// aged makes the entries old, so that changed entries are visible.
func aged(m metav1.Object) {
	all := m.GetManagedFields()
	for i := range all {
		all[i].Time = &metav1.Time{Time: longAgo}
	}
}

func shown(entries []metav1.ManagedFieldsEntry) (lines []string) {
	for _, e := range entries {
		lines = append(lines,
			fmt.Sprintln(e.Manager, e.Operation, e.APIVersion, e.Subresource, e.FieldsType, e.Time.Time.Equal(longAgo),
				string(e.FieldsV1.Raw)))
	}
	return lines
}

func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// generator creates random objects from few values, so that equal values are common.
type generator struct{ *rand.Rand }

func (g generator) pick(all ...string) string { return all[g.IntN(len(all))] }

func (g generator) word() string {
	return g.pick("", "a", "a", "b", "c", "TCP", "UDP", "a b", `q"<&>\`, "ü\u2028", "a.b/c", "a{}", "\x01\u007f")
}

func (g generator) change(v reflect.Value) {
	for range 1 + g.IntN(3) {
		in := v
		for depth := 0; depth < 5; depth++ {
			for in.Kind() == reflect.Pointer && !in.IsNil() {
				in = in.Elem()
			}
			if in.Kind() == reflect.Struct && in.NumField() > 0 &&
				!value.TypeReflectEntryOf(in.Type()).CanConvertToUnstructured() {
				if f := in.Field(g.IntN(in.NumField())); f.CanSet() {
					in = f
					continue
				}
			}
			if in.Kind() == reflect.Slice && in.Len() > 0 && g.IntN(2) == 0 {
				in = in.Index(g.IntN(in.Len()))
				continue
			}
			break
		}
		if in != v && in.CanSet() {
			in.SetZero()
			g.fill(in, 1)
		}
	}
}

func (g generator) fill(v reflect.Value, depth int) {
	switch v.Interface().(type) {
	case metav1.Time:
		v.Set(reflect.ValueOf([]metav1.Time{{}, {Time: longAgo}, {Time: longAgo.Add(time.Hour)}}[g.IntN(3)]))
		return
	case metav1.MicroTime:
		v.Set(reflect.ValueOf([]metav1.MicroTime{{}, {Time: longAgo}, {Time: longAgo.Add(time.Microsecond)}}[g.IntN(3)]))
		return
	case resource.Quantity:
		v.Set(reflect.ValueOf(resource.MustParse(g.pick("1", "1Gi", "0", "1500m"))))
		return
	case intstr.IntOrString:
		v.Set(reflect.ValueOf([]intstr.IntOrString{{}, intstr.FromString("a"), intstr.FromInt32(1)}[g.IntN(3)]))
		return
	case runtime.RawExtension:
		v.Set(reflect.ValueOf(runtime.RawExtension{
			Raw: [][]byte{nil, []byte(`{"a":1}`), []byte(`{"a":{"b":[1]}}`)}[g.IntN(3)],
		}))
		return
	case metav1.FieldsV1:
		v.Set(reflect.ValueOf(metav1.FieldsV1{Raw: []byte("{}")}))
		return
	}
	some := func() bool { return g.IntN(3+depth) == 0 }
	switch v.Kind() {
	case reflect.String:
		v.SetString(g.word())
	case reflect.Bool:
		v.SetBool(g.IntN(2) == 0)
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Int8:
		v.SetInt(int64(g.IntN(4) - 1))
	case reflect.Uint8, reflect.Uint32:
		v.SetUint(uint64(g.IntN(3)))
	case reflect.Float64:
		v.SetFloat(float64(g.IntN(3)) / 2)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() && (f.Kind() == reflect.Struct || some()) {
				g.fill(f, depth+1)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		if depth < 9 {
			g.fill(v.Elem(), depth+1)
		}
	case reflect.Slice:
		if depth > 8 {
			return
		}
		n := g.IntN(4)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			g.fill(v.Index(i), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range g.IntN(3) {
			key, in := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			g.fill(key, depth+1)
			if some() || in.Kind() != reflect.Slice {
				g.fill(in, depth+1)
			}
			v.SetMapIndex(key, in)
		}
	}
}

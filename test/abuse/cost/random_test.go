package cost

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// hole stands in a body for the field that grows.
const hole = `"@@"`

// grower makes bodies in which one field grows.
type grower struct{ *rand.Rand }

// templates are bodies of kinds that little is validated of unless they have more than a name.
var templates = map[string]string{
	"Pod": pod + `}}`, "PodTemplate": `{"metadata":{"name":"new"},"template":` + pod + `}}}`,
	"Service":                  `{"metadata":{"name":"new"},"spec":{"ports":[{"port":1}]}}`,
	"Task":                     `{"metadata":{"name":"new"},"spec":{"image":"i"}}`,
	"CustomResourceDefinition": crd(`"properties":{"a":{"type":"string"}}`) + `}}]}}`,
}

// grow picks a list, map or string of a kind at random. It returns the path of the field, and head, part and tail of
// bodies.
func (g grower) grow(r *kind.Resource) (field string, a grown) {
	o := map[string]any{"metadata": map[string]any{"name": "new"}}
	if text := templates[r.Kind]; text != "" {
		_ = json.Unmarshal([]byte(text), &o)
	}
	at := o
	t := reflect.TypeOf(r.New()).Elem()
	for {
		names, types := jsonFields(t)
		i := g.IntN(len(names))
		name, ft := names[i], types[i]
		field += "." + name
		if ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		switch {
		case ft.Kind() == reflect.Struct && g.descends(ft):
			next, ok := at[name].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[name] = next
			}
			at, t = next, ft
			continue
		case ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct && g.IntN(3) > 0:
			list, _ := at[name].([]any)
			next := map[string]any{}
			if len(list) > 0 {
				next, _ = list[0].(map[string]any)
			}
			at[name] = []any{next}
			at, t = next, ft.Elem()
			continue
		}
		open, part, end := g.part(ft)
		if part == "" {
			return "", a
		}
		at[name] = "@@"
		raw, _ := json.Marshal(o)
		head, tail, _ := strings.Cut(string(raw), hole)
		return field, grown{head: head + open, part: part, tail: end + tail}
	}
}

func (g grower) descends(t reflect.Type) bool {
	_, known := leaf(t)
	return !known && t.NumField() > 0 && t.NumField() < 100
}

func leaf(t reflect.Type) (string, bool) {
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		return `"1"`, true
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return `"2026-01-02T03:04:05Z"`, true
	case reflect.TypeFor[metav1.Duration]():
		return `"1s"`, true
	case reflect.TypeFor[intstr.IntOrString]():
		return `"a%[1]d"`, true
	}
	if raw, ok := t.FieldByName("Raw"); ok && raw.Type.Kind() == reflect.Slice {
		return `{"a%[1]d":1}`, true
	}
	return "", false
}

var names = []string{"a%[1]d", "10.0.0.1", "/a/%[1]d", "%[1]d", "a.b/c%[1]d", "a%[1]d.b.c", "A%[1]d", "*", "",
	"a%[1]d=b"}

func (g grower) name() string { return names[g.IntN(len(names))] }

// part returns how a list, map or string begins, repeats and ends; nothing for other types.
func (g grower) part(t reflect.Type) (open, part, end string) {
	switch {
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return "", "", ""
	case t.Kind() == reflect.Slice:
		return "[", g.value(t.Elem(), 0), "]"
	case t.Kind() == reflect.Map:
		return "{", `"` + g.name() + `":` + g.value(t.Elem(), 0), "}"
	case t.Kind() == reflect.String:
		units := []string{"a%[1]d", "/", "a.", "(%[1]d)", "[a]", "$(A)", "%[1]d", "a==b||", "a in (b)", "{", "a-"}
		return `"a`, strings.Repeat(units[g.IntN(len(units))], 1+g.IntN(4)), `"`
	}
	return "", "", ""
}

// value returns a value of a type as JSON, in which %[1]d is the number of the item.
func (g grower) value(t reflect.Type, depth int) string {
	switch t.Kind() {
	case reflect.Pointer:
		return g.value(t.Elem(), depth)
	case reflect.String:
		return `"` + g.name() + `"`
	case reflect.Bool:
		return "true"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint16, reflect.Uint8, reflect.Float64:
		return []string{"1", "%[1]d", "80"}[g.IntN(3)]
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return `"YQ=="`
		}
		return "[" + g.value(t.Elem(), depth+1) + "]"
	case reflect.Map:
		return `{"` + g.name() + `":` + g.value(t.Elem(), depth+1) + "}"
	case reflect.Struct:
		if text, ok := leaf(t); ok {
			return text
		}
		var parts []string
		names, types := jsonFields(t)
		for i, name := range names {
			k := types[i].Kind()
			plain := k == reflect.String || k == reflect.Int32 || k == reflect.Int64
			if depth < 4 && (plain && g.IntN(4) > 0 || !plain && g.IntN(len(names)) < 1) {
				parts = append(parts, `"`+name+`":`+g.value(types[i], depth+1))
			}
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	return "null"
}

func jsonFields(t reflect.Type) (names []string, types []reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && f.Type.Kind() == reflect.Struct:
			n, ts := jsonFields(f.Type)
			names, types = append(names, n...), append(types, ts...)
		case f.IsExported() && name != "" && name != "-" && name != "managedFields":
			names, types = append(names, name), append(types, f.Type)
		}
	}
	return names, types
}

// pathOf returns the path at which objects of a kind are created.
func pathOf(r *kind.Resource) string {
	path := "/apis/" + r.Group + "/" + r.Version
	if r.Group == "" {
		path = "/api/" + r.Version
	}
	if r.Namespaced {
		path += "/namespaces/work"
	}
	return path + "/" + r.Plural
}

// TestRandom grows random fields of random kinds for as long as CORACLE_TEST_COST says.
func TestRandom(t *testing.T) {
	duration, ok := long()
	if !ok {
		t.Skip("CORACLE_TEST_COST is not set")
	}
	w := newWorld(t, true)
	seed := uint64(time.Now().UnixNano())
	g := grower{rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // a test
	t.Logf("seed %d", seed)
	rows := slices.DeleteFunc(slices.Clone(w.Engine.Kinds.Table().All()), func(r *kind.Resource) bool {
		return r.Unstructured() || !slices.Contains(r.Verbs, "create")
	})
	for until := time.Now().Add(duration); time.Now().Before(until); {
		r := rows[g.IntN(len(rows))]
		field, a := g.grow(r)
		if field == "" {
			continue
		}
		o, form, path := order(g.IntN(3)), g.IntN(4), pathOf(r)
		t.Run(fmt.Sprintf("%s%s/%d/%d", r.Kind, field, o, form), func(t *testing.T) {
			w.judge(t, 48<<10, func(n int) call {
				body := many(n, a.head, a.part, a.tail, o)
				raw := ""
				if form == 2 {
					raw = w.proto(r, body)
				}
				switch {
				case form == 1 && slices.Contains(r.Verbs, "patch"):
					return asApply(r, path, body)
				case raw != "":
					return call{"POST", path + dryRun, protos, raw}
				case form == 3:
					return call{"POST", path + dryRun, yamls, body}
				}
				return call{"POST", path + dryRun, jsons, body}
			})
			if t.Failed() {
				t.Logf("body: %.500s | %.500s | %.500s", a.head, a.part, a.tail)
			}
		})
	}
}

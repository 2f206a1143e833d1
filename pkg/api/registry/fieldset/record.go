package fieldset

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// record compares objects that have, besides their metadata, one field, which writes manage as a whole. It leaves
// writes that change managed metadata to upstream's field manager.
type record struct {
	field   int    // index in the struct
	changed []byte // the set with that field alone
	nested  []byte // occurs in a set with parts of the field, recorded before it was managed as a whole
}

// NewRecordPlan creates the plan for objects like empty, of a Coracle kind, whose field name is managed as a whole.
// Writes do not manage the fields in reset. It returns nil if the kind has other fields: then upstream's field
// manager must be used.
func NewRecordPlan(empty runtime.Object, name string, reset *fieldpath.Set) *Plan {
	t := reflect.TypeOf(empty)
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil
	}
	t = t.Elem()
	r := &record{field: -1, changed: []byte(`{"f:` + name + `":{}}`), nested: []byte(`"f:` + name + `":{"`)}
	for i := range t.NumField() {
		f := t.Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Type == reflect.TypeFor[metav1.TypeMeta]() || f.Type == reflect.TypeFor[metav1.ObjectMeta]():
		case reset != nil && reset.Has(fieldpath.MakePathOrDie(key)):
		case key == name:
			r.field = i
		default:
			return nil
		}
	}
	if r.field < 0 {
		return nil
	}
	return &Plan{record: r, kind: t, empty: empty.DeepCopyObject()}
}

func (r *record) compare(old, obj reflect.Value) (changed, removed []byte, ok bool) {
	was, ok1 := old.Interface().(metav1.ObjectMetaAccessor)
	is, ok2 := obj.Interface().(metav1.ObjectMetaAccessor)
	if !ok1 || !ok2 || !sameMeta(was.GetObjectMeta(), is.GetObjectMeta()) {
		return nil, nil, false
	}
	switch changed, ok := differ(old.Elem().Field(r.field), obj.Elem().Field(r.field)); {
	case !ok:
		return nil, nil, false
	case changed:
		return bytes.Clone(r.changed), nil, true
	}
	return nil, nil, true
}

// differ reports whether two values of one type differ in JSON. Most changes are in a number or text, so it encodes
// only fields that are not deeply equal, until one differs.
func differ(a, b reflect.Value) (changed, ok bool) {
	t := a.Type()
	if t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(marshaler) {
		for i := range t.NumField() {
			if f := t.Field(i); !f.IsExported() ||
				strings.Contains(f.Tag.Get("json"), ",omit") && empty(a.Field(i)) && empty(b.Field(i)) {
				continue
			}
			if changed, ok = differ(a.Field(i), b.Field(i)); changed || !ok {
				return changed, ok
			}
		}
		return false, true
	}
	x, y := a.Interface(), b.Interface()
	if reflect.DeepEqual(x, y) {
		return false, true
	}
	before, err1 := json.Marshal(x)
	after, err2 := json.Marshal(y)
	return !bytes.Equal(before, after), err1 == nil && err2 == nil
}

var marshaler = reflect.TypeFor[json.Marshaler]()

func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String:
		return v.Len() == 0
	}
	return false
}

func (r *record) plain(list []metav1.ManagedFieldsEntry) bool {
	for i := range list {
		if bytes.Contains(list[i].FieldsV1.GetRawBytes(), r.nested) {
			return false
		}
	}
	return true
}

func sameMeta(a, b metav1.Object) bool {
	return a.GetGenerateName() == b.GetGenerateName() && apiequality.Semantic.DeepEqual(a.GetLabels(), b.GetLabels()) &&
		apiequality.Semantic.DeepEqual(a.GetAnnotations(), b.GetAnnotations()) && apiequality.Semantic.DeepEqual(
		a.GetFinalizers(), b.GetFinalizers()) &&
		apiequality.Semantic.DeepEqual(a.GetOwnerReferences(), b.GetOwnerReferences()) &&
		apiequality.Semantic.DeepEqual(a.GetDeletionTimestamp(), b.GetDeletionTimestamp()) &&
		apiequality.Semantic.DeepEqual(a.GetDeletionGracePeriodSeconds(), b.GetDeletionGracePeriodSeconds())
}

package registry

import (
	"fmt"
	"reflect"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxItems is the maximum length of a list or map in the specification of a pod or service. Upstream has no limit,
	// and compares items of lists with each other: 11,000 claims of a container take 1.3 s, 11,000 IP families 4 s,
	// 8,000 topologies of a storage class 8 s. 49,000 resources of a container take 0.9 s.
	maxItems = 2000
	// maxTopologies is the maximum number of allowed topologies of a storage class: 2,000 equal ones take 1.6 s.
	maxTopologies = 500
	// maxWarned is the number of items in a pod's lists, all together, above which the client gets no warnings. To find
	// overlapping paths, upstream compares all items of a volume, and warns of each pair: 10,000 items take 5 s, 1,300
	// with the same path 2.3 s.
	maxWarned = 500
)

// lists counts items in the specifications of pods and services, wherever these are in an object.
type lists struct {
	items   int    // of lists
	longest int    // of lists and maps
	named   bool   // keep the path of the longest list
	path    string // with a dot before it
}

// checkCost refuses an object that is too expensive to validate. An update is allowed if old is as expensive; old is
// nil on create.
func (c *call) checkCost(obj, old client.Object) error {
	if err := c.checkExpressions(obj, old); err != nil {
		return err
	}
	if q, ok := obj.(*corev1.ResourceQuota); ok && len(q.Spec.Hard) > maxItems {
		if was, ok := old.(*corev1.ResourceQuota); !ok || len(was.Spec.Hard) < len(q.Spec.Hard) {
			return apierrors.NewInvalid(c.Resource.GroupKind(), q.Name,
				field.ErrorList{field.TooMany(field.NewPath("spec", "hard"), len(q.Spec.Hard), maxItems)})
		}
	}
	if l, ok := obj.(*corev1.LimitRange); ok && limits(l) > maxItems {
		if was, ok := old.(*corev1.LimitRange); !ok || limits(was) < limits(l) {
			return apierrors.NewInvalid(c.Resource.GroupKind(), l.Name,
				field.ErrorList{field.TooMany(field.NewPath("spec", "limits"), limits(l), maxItems)})
		}
	}
	if s, ok := obj.(*storagev1.StorageClass); ok && len(s.AllowedTopologies) > maxTopologies {
		if was, ok := old.(*storagev1.StorageClass); !ok || len(was.AllowedTopologies) < len(s.AllowedTopologies) {
			return apierrors.NewInvalid(c.Resource.GroupKind(), s.Name,
				field.ErrorList{field.TooMany(field.NewPath("allowedTopologies"), len(s.AllowedTopologies), maxTopologies)})
		}
	}
	return c.checkLists(obj, old)
}

// limits counts the limits of a LimitRange for each resource: 48,000 take 1.2 s to validate.
func limits(l *corev1.LimitRange) (n int) {
	for _, i := range l.Spec.Limits {
		n += len(i.Max) + len(i.Min) + len(i.Default) + len(i.DefaultRequest) + len(i.MaxLimitRequestRatio)
	}
	return n
}

// checkLists refuses an object with a list or map of more than maxItems items in a specification, unless old, which may
// be nil, has one of that length. It counts the items.
func (c *call) checkLists(obj, old client.Object) error {
	var now, was lists
	now.add(reflect.ValueOf(obj), false, "")
	if c.items = now.items; now.longest <= maxItems {
		return nil
	}
	if old != nil {
		was.add(reflect.ValueOf(old), false, "")
	}
	if now.longest <= was.longest {
		return nil
	}
	now = lists{named: true}
	now.add(reflect.ValueOf(obj), false, "")
	return apierrors.NewInvalid(c.Resource.GroupKind(), obj.GetName(),
		field.ErrorList{field.TooMany(field.NewPath(now.path[1:]), now.longest, maxItems)})
}

func (l *lists) add(v reflect.Value, inside bool, path string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			l.add(v.Elem(), inside, path)
		}
	case reflect.Struct:
		inside = inside || isSpecification(v.Type())
		for _, f := range listFields(v.Type(), inside) {
			if in := v.Field(f.index); !in.IsZero() {
				l.add(in, inside, path+f.name)
			}
		}
	case reflect.Map:
		if v.Len() > l.longest {
			l.longest, l.path = v.Len(), path
		}
	case reflect.Slice:
		l.items += v.Len()
		if v.Len() > l.longest {
			l.longest, l.path = v.Len(), path
		}
		if !holdsLists(v.Type().Elem(), true, nil) {
			return
		}
		for i := range v.Len() {
			in := ""
			if l.named {
				in = fmt.Sprintf("%s[%d]", path, i)
			}
			l.add(v.Index(i), true, in)
		}
	}
}

// isSpecification reports whether lists and maps in a type count. A storage class has no specification. The labels of a
// template count because controllers write them again with each pod.
func isSpecification(t reflect.Type) bool {
	return t == reflect.TypeFor[corev1.PodSpec]() || t == reflect.TypeFor[corev1.PodTemplateSpec]() ||
		t == reflect.TypeFor[corev1.ServiceSpec]() ||
		t == reflect.TypeFor[storagev1.StorageClass]()
}

// listField is a field that may hold a list or map that counts.
type listField struct {
	index int
	name  string // in JSON, with a dot before it; empty if inline
}

type listsIn struct {
	reflect.Type
	inside bool // a specification
}

var listFieldsOf sync.Map // listsIn to []listField

func listFields(t reflect.Type, inside bool) []listField {
	if known, ok := listFieldsOf.Load(listsIn{t, inside}); ok {
		return known.([]listField)
	}
	var found []listField
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" {
			name = "." + name
		}
		if f.IsExported() && holdsLists(f.Type, inside, map[reflect.Type]bool{t: true}) {
			found = append(found, listField{i, name})
		}
	}
	listFieldsOf.Store(listsIn{t, inside}, found)
	return found
}

// holdsLists reports whether values of a type may hold lists or maps that count. within are the structs around it.
func holdsLists(t reflect.Type, inside bool, within map[reflect.Type]bool) bool {
	switch t.Kind() {
	case reflect.Pointer:
		return holdsLists(t.Elem(), inside, within)
	case reflect.Slice:
		return inside && t.Elem().Kind() != reflect.Uint8
	case reflect.Map:
		return inside
	case reflect.Struct:
	default:
		return false
	}
	inside = inside || isSpecification(t)
	if known, ok := listFieldsOf.Load(listsIn{t, inside}); ok {
		return len(known.([]listField)) > 0
	}
	if within[t] {
		return false
	}
	if within == nil {
		return len(listFields(t, inside)) > 0
	}
	within[t] = true
	defer delete(within, t)
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && holdsLists(f.Type, inside, within) {
			return true
		}
	}
	return false
}

package payload

import (
	"reflect"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// class says how values of a type are built from encoded ones.
type class int

const (
	scalar class = iota // fixed size, counted in its parent
	text                // a string or bytes
	number              // a resource quantity
	message
	list
	mapping // a map
	anything
	opaque // managed fields, which pkg/api/registry bounds
)

// plan describes how a Go type is built from its encoded form.
type plan struct {
	class class
	size  int64        // size of a value in its parent
	extra int64        // size of a pointer's target
	raw   bool         // kept as JSON in a field of bytes
	elem  reflect.Type // element of a list or map
	key   int64        // size of a map's keys
	typ   reflect.Type // the struct
	named reflect.Type // the struct with the JSON names: typ, except for unions

	json  map[string]reflect.Type // json and proto are made on first use
	proto map[int]reflect.Type
}

// plans caches the plans of one measurement. Each is made on first use, because types may be recursive.
type plans map[reflect.Type]*plan

var (
	quantity = reflect.TypeFor[resource.Quantity]()
	managed  = reflect.TypeFor[metav1.FieldsV1]()
	anyPlan  = &plan{class: anything, size: 16}
	ignored  = &plan{class: scalar}
)

func (ps plans) of(t reflect.Type) *plan {
	if t == nil {
		return anyPlan
	}
	p := ps[t]
	if p == nil {
		p = ps.build(t)
		ps[t] = p
	}
	return p
}

func (ps plans) build(t reflect.Type) *plan {
	p := &plan{size: int64(t.Size())}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
		p.extra = int64(t.Size())
	}
	switch t.Kind() {
	case reflect.Struct:
		p.class, p.typ, p.named = message, t, t
		if t == quantity {
			p.class = number
		} else if raw, ok := t.FieldByName("Raw"); ok && raw.Type.Kind() == reflect.Slice &&
			raw.Type.Elem().Kind() == reflect.Uint8 {
			p.class, p.raw = anything, true // RawExtension, JSON
			if t == managed {
				p.class = opaque
			}
		} else if one, ok := t.FieldByName("Schema"); ok && one.Tag.Get("json") == "" && one.Type.Kind() == reflect.Pointer {
			p.named = one.Type.Elem() // JSONSchemaPropsOrBool and JSONSchemaPropsOrArray: a schema without a field name
			p.extra += int64(p.named.Size())
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			p.class = text
		} else {
			p.class, p.elem = list, t.Elem()
		}
	case reflect.Map:
		p.class, p.elem, p.key = mapping, t.Elem(), int64(t.Key().Size())
	case reflect.String:
		p.class = text
	case reflect.Interface:
		p.class = anything
	default:
		p.class = scalar
	}
	return p
}

// field returns the plan of a struct's field by JSON name, or nil.
func (ps plans) field(p *plan, name []byte) *plan {
	if p.json == nil {
		p.json = map[string]reflect.Type{}
		jsonFields(p.named, p.json)
	}
	t, ok := p.json[string(name)]
	if !ok {
		// Types with custom decoders use encoding/json, which ignores case.
		for have, ht := range p.json {
			if len(have) == len(name) && strings.EqualFold(have, string(name)) {
				return ps.of(ht)
			}
		}
		return nil
	}
	return ps.of(t)
}

// jsonFields collects fields as encoding/json does.
func jsonFields(t reflect.Type, into map[string]reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		ft := f.Type
		if ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case name != "":
			into[name] = f.Type
		case f.Anonymous && ft.Kind() == reflect.Struct:
			jsonFields(ft, into)
		default:
			into[f.Name] = f.Type
		}
	}
}

// number returns the plan of a struct's field by protobuf number, or ignored.
func (ps plans) number(p *plan, n int) *plan {
	if p.proto == nil {
		p.proto = map[int]reflect.Type{}
		for i := range p.typ.NumField() {
			f := p.typ.Field(i)
			if parts := strings.SplitN(f.Tag.Get("protobuf"), ",", 3); len(parts) > 1 {
				if n, err := strconv.Atoi(parts[1]); err == nil {
					p.proto[n] = f.Type
				}
			}
		}
	}
	if t, ok := p.proto[n]; ok {
		return ps.of(t)
	}
	return ignored
}

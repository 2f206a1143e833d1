package schema

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

const prefix = "buildbarn.configuration."

type message struct {
	protoreflect.Message
	path string
	// within are the names of the fields that enclose the message, the outermost first.
	within []protoreflect.Name
}

// name returns the message's name without the common package prefix.
func (m message) name() string {
	return strings.TrimPrefix(string(m.Descriptor().FullName()), prefix)
}

// of returns a field by its name. The field must exist; the tests check each name.
func (m message) of(field protoreflect.Name) protoreflect.Value {
	return m.Get(m.Descriptor().Fields().ByName(field))
}

func (m message) fail(field, format string, args ...any) *Error {
	return &Error{Path: join(m.path, field), Field: field, Problem: fmt.Sprintf(format, args...)}
}

// walk visits a message and those inside it, in the order of their fields, until visit returns an error.
func walk(m message, visit func(message) *Error) *Error {
	if e := visit(m); e != nil {
		return e
	}
	d := m.Descriptor()
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if !m.Has(f) {
			continue
		}
		within := append(slices.Clip(m.within), f.Name())
		for _, next := range inside(f, m.Get(f)) {
			e := walk(message{next.Message, join(m.path, f.JSONName()) + next.path, within}, visit)
			if e != nil && e.Field == "" {
				e.Field = f.JSONName()
			}
			if e != nil {
				return e
			}
		}
	}
	return nil
}

// inside returns the messages in a field, with their index or key as path.
func inside(f protoreflect.FieldDescriptor, v protoreflect.Value) (list []message) {
	switch {
	case f.IsMap() && f.MapValue().Message() != nil:
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			list = append(list, message{Message: v.Message(), path: fmt.Sprintf("[%q]", k.String())})
			return true
		})
		slices.SortFunc(list, func(a, b message) int { return strings.Compare(a.path, b.path) })
	case f.IsList() && f.Message() != nil:
		for i := range v.List().Len() {
			list = append(list, message{Message: v.List().Get(i).Message(), path: "[" + strconv.Itoa(i) + "]"})
		}
	case !f.IsMap() && !f.IsList() && f.Message() != nil:
		list = []message{{Message: v.Message()}}
	}
	return list
}

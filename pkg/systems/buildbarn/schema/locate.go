package schema

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// locate finds the innermost value that the parser refuses. The parser's own positions are in the evaluated JSON, which
// users do not see.
func (s *Schema) locate(path string, d protoreflect.MessageDescriptor, text []byte, depth int) *Error {
	if s.json.Unmarshal(text, dynamicpb.NewMessage(d)) == nil {
		return nil
	}
	if special(d) || depth > maxDepth {
		return &Error{Path: path, Problem: "is not a valid " + string(d.Name()) + ", but " + shown(text)}
	}
	fields, err := object(text)
	if err != nil {
		return &Error{Path: path, Problem: fmt.Sprintf("must be an object, not %s", shown(text))}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		f := d.Fields().ByJSONName(name)
		if f == nil {
			f = d.Fields().ByTextName(name)
		}
		if f == nil {
			return &Error{
				Path:    join(path, name),
				Field:   name,
				Problem: "there is no such field" + others(d, name),
				Unknown: true,
			}
		}
		if e := s.field(join(path, name), f, fields[name], depth); e != nil {
			e.Field = cmp.Or(e.Field, name)
			return e
		}
	}
	// Each field is valid by itself, so the fault is in their combination.
	return &Error{Path: path, Problem: reason(s.json.Unmarshal(text, dynamicpb.NewMessage(d)))}
}

func (s *Schema) field(path string, f protoreflect.FieldDescriptor, text json.RawMessage, depth int) *Error {
	one := []byte(fmt.Sprintf("{%q:%s}", f.JSONName(), text))
	if s.json.Unmarshal(one, dynamicpb.NewMessage(f.ContainingMessage())) == nil {
		return nil
	}
	switch {
	case f.IsList():
		var list []json.RawMessage
		if json.Unmarshal(text, &list) != nil {
			return &Error{Path: path, Problem: fmt.Sprintf("must be a list, not %s", shown(text))}
		}
		for i, v := range list {
			if e := s.value(path+"["+strconv.Itoa(i)+"]", f, v, []byte(fmt.Sprintf("{%q:[%s]}", f.JSONName(), v)), depth); e !=
				nil {
				return e
			}
		}
	case f.IsMap():
		entries, err := object(text)
		if err != nil {
			return &Error{Path: path, Problem: fmt.Sprintf("must be an object, not %s", shown(text))}
		}
		for _, k := range slices.Sorted(maps.Keys(entries)) {
			key, _ := json.Marshal(k)
			if e := s.value(fmt.Sprintf("%s[%q]", path, k), f.MapValue(), entries[k],
				[]byte(fmt.Sprintf("{%q:{%s:%s}}", f.JSONName(), key, entries[k])), depth); e != nil {
				return e
			}
		}
	default:
		if e := s.value(path, f, text, one, depth); e != nil {
			return e
		}
	}
	return &Error{Path: path, Problem: reason(s.json.Unmarshal(one, dynamicpb.NewMessage(f.ContainingMessage())))}
}

// value checks one value of a field. alone is the message with only this value.
func (s *Schema) value(path string, f protoreflect.FieldDescriptor, text, alone []byte, depth int) *Error {
	if f.Message() != nil {
		return s.locate(path, f.Message(), text, depth+1)
	}
	of := f.ContainingMessage()
	if of.IsMapEntry() {
		of = of.Parent().(protoreflect.MessageDescriptor)
	}
	if s.json.Unmarshal(alone, dynamicpb.NewMessage(of)) == nil {
		return nil
	}
	want := map[protoreflect.Kind]string{
		protoreflect.StringKind: "a string", protoreflect.BoolKind: "true or false",
		protoreflect.BytesKind:  "bytes in base64",
		protoreflect.DoubleKind: "a number", protoreflect.FloatKind: "a number",
	}[f.Kind()]
	switch {
	case f.Kind() == protoreflect.EnumKind:
		var names []string
		for i := range f.Enum().Values().Len() {
			names = append(names, string(f.Enum().Values().Get(i).Name()))
		}
		want = "one of " + strings.Join(names, ", ")
	case want == "":
		want = "an integer (" + f.Kind().String() + ")"
	}
	return &Error{Path: path, Problem: fmt.Sprintf("must be %s, not %s", want, shown(text))}
}

// special reports whether a message has its own JSON encoding, as well-known types do.
func special(d protoreflect.MessageDescriptor) bool {
	return d.ParentFile().Package() == "google.protobuf" && d.Name() != "Empty"
}

func object(text []byte) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	if fields == nil {
		return nil, errNotObject
	}
	return fields, nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// others suggests the known field with the most similar name. If no name is similar, it lists up to 30 fields.
func others(d protoreflect.MessageDescriptor, name string) string {
	var all []string
	best, least := "", len(name)/3+1
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i).JSONName()
		all = append(all, f)
		if n := distance(strings.ToLower(name), strings.ToLower(f)); n < least {
			best, least = f, n
		}
	}
	slices.Sort(all)
	switch {
	case best != "":
		return "; is " + best + " meant?"
	case len(all) == 0:
		return "; this message has no fields"
	case len(all) > 30:
		all = append(all[:30], "...")
	}
	return "; there are: " + strings.Join(all, ", ")
}

// distance returns the Levenshtein distance; for a longer than 100 bytes, its length.
func distance(a, b string) int {
	if len(a) > 100 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost = 1 + min(before, row[j], row[j+1])
			}
			before, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

func shown(text []byte) string {
	var out bytes.Buffer
	if json.Compact(&out, text) != nil {
		return "this"
	}
	return bounded.Text(out.String(), 40)
}

// position matches the parser's positions in the evaluated JSON.
var position = regexp.MustCompile(`\(line \d+:\d+\):? `)

// reason returns the parser's error without its prefixes and positions.
func reason(err error) string {
	if err == nil {
		return "is invalid"
	}
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
	return position.ReplaceAllString(strings.TrimPrefix(text, "syntax error "), "")
}

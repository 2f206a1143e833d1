package apiserver

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// parameter is a parameter of a path or operation.
type parameter struct {
	name, in, typ, description string
	required                   bool
}

var pretty = parameter{
	name: "pretty", in: "query", typ: "string", description: "If 'true', then the output is pretty printed. " +
		"Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget).",
}

// pathParams returns the path's parameters. of describes {name}; it is empty for a collection.
func pathParams(namespaced bool, of string) (out []parameter) {
	if of != "" {
		out = append(out, parameter{
			name:        "name",
			in:          "path",
			typ:         "string",
			required:    true,
			description: "name of the " + of,
		})
	}
	if namespaced {
		out = append(out, parameter{
			name:        "namespace",
			in:          "path",
			typ:         "string",
			required:    true,
			description: "object name and auth scope, such as for teams and projects",
		})
	}
	return out
}

// described is a type with descriptions of its fields by JSON name.
type described interface{ SwaggerDoc() map[string]string }

// queryOf returns the query parameters for the fields of an options type, sorted by name.
func queryOf(options described) (out []parameter) {
	docs := options.SwaggerDoc()
	t := reflect.TypeOf(options)
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		// Sharded lists are an alpha feature of upstream, which this server does not have.
		if f.Anonymous || name == "" || name == "-" || name == "shardSelector" {
			continue
		}
		ft := f.Type
		for ft.Kind() == reflect.Pointer || ft.Kind() == reflect.Slice {
			ft = ft.Elem()
		}
		p := parameter{name: name, in: "query", description: docs[name]}
		switch ft.Kind() {
		case reflect.String:
			p.typ = "string"
		case reflect.Bool:
			p.typ = "boolean"
		case reflect.Int32, reflect.Int64:
			p.typ = "integer"
		default:
			continue // preconditions are sent in the body; upstream documents no time parameters
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b parameter) int { return strings.Compare(a.name, b.name) })
	return out
}

// deleteQuery returns the delete options that may also be sent in the query.
func deleteQuery() []parameter { return queryOf(metav1.DeleteOptions{}) }

func without(params []parameter, names ...string) []parameter {
	return slices.DeleteFunc(params, func(p parameter) bool { return slices.Contains(names, p.name) })
}

// merge merges two sorted lists and drops duplicate names.
func merge(a, b []parameter) []parameter {
	out := slices.Concat(a, b)
	slices.SortStableFunc(out, func(a, b parameter) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(out, func(a, b parameter) bool { return a.name == b.name })
}

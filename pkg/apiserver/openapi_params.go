package apiserver

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// parameter is one parameter of a path or operation.
type parameter struct {
	name, in, typ, description string
	required                   bool
}

var pretty = parameter{name: "pretty", in: "query", typ: "string", description: "If 'true', then the output is pretty printed. " +
	"Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget)."}

// pathParams are those in the path itself. of is the kind that {name} names; empty for a collection.
func pathParams(namespaced bool, of string) (out []parameter) {
	if of != "" {
		out = append(out, parameter{name: "name", in: "path", typ: "string", required: true, description: "name of the " + of})
	}
	if namespaced {
		out = append(out, parameter{name: "namespace", in: "path", typ: "string", required: true, description: "object name and auth scope, such as for teams and projects"})
	}
	return out
}

// described is a type with the descriptions of its fields, by their JSON names.
type described interface{ SwaggerDoc() map[string]string }

// queryOf is the fields of an options type that a query can carry, in the order of their names.
func queryOf(options described) (out []parameter) {
	docs := options.SwaggerDoc()
	t := reflect.TypeOf(options)
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		// The shards of a list are an alpha feature of upstream's, and not served.
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
			continue // preconditions go into the body; upstream documents no times in queries
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b parameter) int { return strings.Compare(a.name, b.name) })
	return out
}

// deleteQuery is those of a deletion's options that may also stand in the query.
func deleteQuery() []parameter { return queryOf(metav1.DeleteOptions{}) }

func without(params []parameter, names ...string) []parameter {
	return slices.DeleteFunc(params, func(p parameter) bool { return slices.Contains(names, p.name) })
}

// merge joins two lists in the order of their names; a name that is in both is taken once.
func merge(a, b []parameter) []parameter {
	out := slices.Concat(a, b)
	slices.SortStableFunc(out, func(a, b parameter) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(out, func(a, b parameter) bool { return a.name == b.name })
}

package rest

import (
	"cmp"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

const descriptionPath = "/api/v1/openapi.json"

type description Server

func (d *description) Routes() []Route {
	made := sync.OnceValues(func() ([]byte, error) { return json.Marshal(describe(d.router.routes)) })
	return []Route{{
		Method: http.MethodGet, Path: descriptionPath, Summary: "This description", Public: true,
		Answer: document{},
		Handle: func(c *Call) error {
			data, err := made()
			if err != nil {
				return err
			}
			write(c.w, http.StatusOK, data)
			return nil
		},
	}}
}

type document map[string]any

func describe(routes []*Route) document {
	schemas := schemas{}
	paths := document{}
	for _, r := range routes {
		item, _ := paths[r.Path].(document)
		if item == nil {
			item = document{}
			paths[r.Path] = item
		}
		item[strings.ToLower(r.Method)] = operation(r, schemas)
	}
	return document{
		"openapi": "3.0.3",
		"info": document{
			"title":   "Coracle's REST facade",
			"version": "v1",
			"description": "Tasks, pods, services and nodes, in the form of Podling's API, and the resources and bundles of " +
				"Kontrol.",
		},
		"paths": paths,
		"components": document{
			"schemas": schemas,
			"securitySchemes": document{
				"bearer": document{"type": "http", "scheme": "bearer"},
				"basic":  document{"type": "http", "scheme": "basic", "description": "The token is the password; any user name."},
			},
		},
		"security": []document{{"bearer": []string{}}, {"basic": []string{}}},
	}
}

func operation(r *Route, s schemas) document {
	op := document{"summary": r.Summary}
	if r.Public {
		op["security"] = []document{}
	}
	var parameters []document
	for _, part := range strings.Split(r.Path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			parameters = append(parameters, document{
				"name":     strings.TrimSuffix(name, "}"),
				"in":       "path",
				"required": true,
				"schema":   document{"type": "string"},
			})
		}
	}
	for in, list := range map[string][]Parameter{"query": r.Query, "header": r.Headers} {
		for _, p := range list {
			parameters = append(parameters, document{
				"name":        p.Name,
				"in":          in,
				"description": p.Description,
				"schema":      s.of(reflect.TypeOf(p.Value)),
			})
		}
	}
	if len(parameters) > 0 {
		op["parameters"] = parameters
	}
	content := func(v any) document {
		if v == nil {
			return document{"text/event-stream": document{"schema": document{"type": "string"}}}
		}
		return document{"application/json": document{"schema": s.of(reflect.TypeOf(v))}}
	}
	if r.Body != nil {
		op["requestBody"] = document{"required": true, "content": content(r.Body)}
	}
	answers := document{}
	answer := func(status int, v any) {
		answers[strconv.Itoa(status)] = document{"description": http.StatusText(status), "content": content(v)}
	}
	answer(cmp.Or(r.Status, http.StatusOK), r.Answer)
	for _, status := range append(common(r), r.Refusals...) {
		answer(status, wire.Error{})
	}
	op["responses"] = answers
	return op
}

type schemas map[string]any

func (s schemas) of(t reflect.Type) document {
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.String:
		return document{"type": "string"}
	case reflect.Bool:
		return document{"type": "boolean"}
	case reflect.Int, reflect.Int32, reflect.Int64:
		return document{"type": "integer"}
	case reflect.Slice:
		if t == reflect.TypeFor[json.RawMessage]() {
			return document{"type": "object", "nullable": true}
		}
		return document{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		if t.Elem().Kind() == reflect.Interface {
			return document{"type": "object"}
		}
		return document{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return document{"type": "string", "format": "date-time"}
		}
		s.add(t)
		return document{"$ref": "#/components/schemas/" + t.Name()}
	}
	return document{}
}

func (s schemas) add(t reflect.Type) {
	if s[t.Name()] != nil {
		return
	}
	properties := document{}
	schema := document{"type": "object", "properties": properties}
	s[t.Name()] = schema // set before its fields, for recursive types
	var required []string
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || f.Anonymous {
			continue
		}
		properties[name] = s.of(f.Type)
		if options == "" {
			required = append(required, name)
		}
	}
	if slices.Sort(required); len(required) > 0 {
		schema["required"] = required
	}
}

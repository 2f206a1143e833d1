package apiserver

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/util"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// methods is what each verb is on the wire.
var methods = map[string]struct { //nolint:gochecknoglobals // a constant
	method, action string
	item, writes   bool
}{
	"get": {"get", "get", true, false}, "list": {"get", "list", false, false}, "create": {"post", "post", false, true},
	"update": {"put", "put", true, true}, "patch": {"patch", "patch", true, true}, "delete": {"delete", "delete", true, true},
	"deletecollection": {"delete", "deletecollection", false, true},
}

// paths adds the paths of a group and version, in the form of OpenAPI 2 or 3. They carry what clients look for: the
// kind, the action, and which parameters a write takes.
func (o *openapi) paths(out map[string]any, gv schema.GroupVersion, form int) {
	base := "/" + pathOf(gv) + "/"
	for _, r := range o.table.All() {
		if r.GroupVersion() != gv {
			continue
		}
		collection := base + r.Plural
		if r.Namespaced {
			out[collection] = operations(r, r.GroupVersionKind, r.New(), []string{"list"}, false, form, "ForAllNamespaces", "")
			collection = base + "namespaces/{namespace}/" + r.Plural
		}
		out[collection] = operations(r, r.GroupVersionKind, r.New(), r.Verbs, false, form, "", "")
		item := collection + "/{name}"
		out[item] = operations(r, r.GroupVersionKind, r.New(), r.Verbs, true, form, "", "")
		if r.Status != nil {
			out[item+"/status"] = operations(r, r.GroupVersionKind, r.New(), []string{"get", "update", "patch"}, true, form, "", "Status")
		}
		for i := range r.Subresources {
			sub := &r.Subresources[i]
			var model any = ""
			if sub.New != nil {
				model = sub.New()
			}
			out[item+"/"+sub.Name] = operations(r, sub.GroupVersionKind, model, sub.Verbs, true, form, "", strings.ToUpper(sub.Name[:1])+sub.Name[1:])
		}
	}
	for i := range o.reviews {
		r := &o.reviews[i]
		if r.GroupVersion() != gv {
			continue
		}
		p := base + r.Plural
		if r.Namespaced {
			p = base + "namespaces/{namespace}/" + r.Plural
		}
		out[p] = operations(&kind.Resource{GroupVersionKind: r.GroupVersionKind, Namespaced: r.Namespaced}, r.GroupVersionKind, r.New(), []string{"create"}, false, form, "", "")
	}
}

func operations(r *kind.Resource, gvk schema.GroupVersionKind, model any, verbs []string, item bool, form int, suffix, sub string) map[string]any {
	out := map[string]any{}
	for _, verb := range verbs {
		m, ok := methods[verb]
		if !ok || (m.item != item && !(item && verb == "create" && sub != "")) {
			continue
		}
		scope := ""
		if r.Namespaced && suffix == "" {
			scope = "Namespaced"
		}
		group := strings.ToUpper(gvk.Version[:1]) + gvk.Version[1:]
		if r.Group == "" {
			group = "Core" + group
		} else {
			first, _, _ := strings.Cut(r.Group, ".")
			group = strings.ToUpper(first[:1]) + first[1:] + group
		}
		op := map[string]any{
			"operationId":         verb + group + scope + r.Kind + sub + suffix,
			"x-kubernetes-action": m.action,
			"x-kubernetes-group-version-kind": map[string]string{
				"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind,
			},
		}
		ref := map[string]any{"type": "string"}
		if model != "" {
			name := friendly(util.GetCanonicalTypeName(model))
			ref = map[string]any{"$ref": "#/definitions/" + name}
			if form == 3 {
				ref = map[string]any{"$ref": "#/components/schemas/" + name}
			}
		}
		op["parameters"] = params(verb, m.writes, form, ref)
		op["responses"] = responses(form, ref)
		if form == 2 {
			op["consumes"], op["produces"] = []string{"*/*"}, []string{typeJSON, typeYAML, typeProto}
		} else if m.writes && verb != "deletecollection" && verb != "delete" {
			op["requestBody"] = map[string]any{"required": true, "content": map[string]any{"*/*": map[string]any{"schema": ref}}}
		}
		out[m.method] = op
	}
	return out
}

func responses(form int, ref map[string]any) map[string]any {
	ok := map[string]any{"description": "OK"}
	if form == 3 {
		ok["content"] = map[string]any{typeJSON: map[string]any{"schema": ref}}
	} else {
		ok["schema"] = ref
	}
	return map[string]any{"200": ok}
}

func params(verb string, writes bool, form int, ref map[string]any) []any {
	var names []string
	switch {
	case verb == "patch":
		names = []string{"dryRun", "fieldManager", "fieldValidation", "force"}
	case verb == "create" || verb == "update":
		names = []string{"dryRun", "fieldManager", "fieldValidation"}
	case writes:
		names = []string{"dryRun", "gracePeriodSeconds", "propagationPolicy"}
	case verb == "list":
		names = []string{"continue", "fieldSelector", "labelSelector", "limit", "resourceVersion", "resourceVersionMatch", "timeoutSeconds", "watch"}
	}
	out := []any{}
	if form == 2 && (verb == "create" || verb == "update" || verb == "patch") {
		out = append(out, map[string]any{"name": "body", "in": "body", "required": true, "schema": ref})
	}
	for _, n := range names {
		typ := "string"
		switch n {
		case "force", "watch":
			typ = "boolean"
		case "limit", "timeoutSeconds", "gracePeriodSeconds":
			typ = "integer"
		}
		p := map[string]any{"name": n, "in": "query", "uniqueItems": true, "type": typ}
		if form == 3 {
			p = map[string]any{"name": n, "in": "query", "schema": map[string]any{"type": typ, "uniqueItems": true}}
		}
		out = append(out, p)
	}
	return out
}

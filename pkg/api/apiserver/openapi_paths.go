package apiserver

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-openapi/pkg/util"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Paths have the same names as upstream's installer gives them, so that clients generated for either server work
// with the other. openapi_paths_test.go compares them with upstream's published documents.

// pathItem is a path with its operations by HTTP method and their common parameters.
type pathItem struct {
	params     []parameter
	operations map[string]*operation
}

// operation is one HTTP method of a path, independent of the OpenAPI version.
type operation struct {
	id, action, description, tag string
	kind                         schema.GroupVersionKind // x-kubernetes-group-version-kind
	params                       []parameter
	consumes                     []string // media types of the body
	body                         string   // schema name of the body
	optional                     bool     // whether the body is optional
	produces                     []string
	answers                      map[string]string // schema by status code; "" is plain text
}

// declared builds the paths of one group and version.
type declared struct {
	schema.GroupVersion
	base  string // "/apis/apps/v1/"
	group string // "AppsV1", for operation IDs
	tag   string // "apps_v1"
	out   map[string]*pathItem
}

func (o *openapi) paths(gv schema.GroupVersion) map[string]*pathItem {
	d := &declared{GroupVersion: gv, base: "/" + pathOf(gv) + "/", out: map[string]*pathItem{}}
	d.group, d.tag = groupNames(gv)
	d.out[d.base] = &pathItem{operations: map[string]*operation{"get": {
		id: "get" + d.group + "APIResources", description: "get available resources", tag: d.tag, consumes: answerTypes,
		produces: answerTypes, answers: map[string]string{"200": modelName(&metav1.APIResourceList{})},
	}}}
	for _, r := range o.rows[gv] {
		d.resource(r)
	}
	return d.out
}

// groupNames formats a group and version for operation IDs ("RbacAuthorizationV1") and tags
// ("rbacAuthorization_v1").
func groupNames(gv schema.GroupVersion) (id, tag string) {
	group := "core"
	if gv.Group != "" {
		parts := strings.Split(strings.TrimSuffix(gv.Group, ".k8s.io"), ".")
		for i := 1; i < len(parts); i++ {
			parts[i] = upper(parts[i])
		}
		group = strings.Join(parts, "")
	}
	return upper(group) + upper(gv.Version), group + "_" + gv.Version
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// article prefixes a noun with "a" or "an", as upstream. Plurals get no article.
func article(noun string) string {
	switch {
	case strings.HasSuffix(noun, "s") && !strings.HasSuffix(noun, "ss"):
		return noun
	case strings.ContainsRune("AEIOU", rune(noun[0])):
		return "an " + noun
	default:
		return "a " + noun
	}
}

func modelName(o any) string { return friendly(util.GetCanonicalTypeName(o)) }

// scoped returns a collection's path and its scope in operation IDs.
func (d *declared) scoped(plural string, namespaced bool) (path, scope string) {
	if namespaced {
		return d.base + "namespaces/{namespace}/" + plural, "Namespaced"
	}
	return d.base + plural, ""
}

// add adds a path with the operations of a kind, if it has any. As upstream, the parameters of a path's only operation
// are the path's.
func (d *declared) add(path string, item *pathItem) {
	for _, only := range item.operations {
		if len(item.operations) == 1 {
			item.params, only.params = slices.Concat(only.params, item.params), nil
		}
		d.out[path] = item
	}
}

func (d *declared) resource(r *kind.Resource) {
	collection, scope := d.scoped(r.Plural, r.Namespaced)
	model := modelOf(r)
	var list string
	if r.NewList != nil {
		list = listOf(r)
	}
	name := scope + r.Kind
	has := func(verb string) bool { return slices.Contains(r.Verbs, verb) }

	all := &pathItem{params: append(pathParams(r.Namespaced, ""), pretty), operations: map[string]*operation{}}
	if has("list") {
		all.operations["get"] = d.list("list"+d.group+name, r, list, true)
	}
	if has("create") {
		all.operations["post"] = d.create("create"+d.group+name, "create "+article(r.Kind), model, r.GroupVersionKind)
		all.operations["post"].params = queryOf(metav1.CreateOptions{})
	}
	if has("deletecollection") {
		all.operations["delete"] = &operation{
			id: "delete" + d.group + "Collection" + name, action: "deletecollection",
			description: "delete collection of " + r.Kind, kind: r.GroupVersionKind, tag: d.tag,
			params:   merge(without(queryOf(metav1.ListOptions{}), "watch", "allowWatchBookmarks"), deleteQuery()),
			consumes: anyType, body: modelName(&metav1.DeleteOptions{}), optional: true,
			produces: answerTypes, answers: map[string]string{"200": modelName(&metav1.Status{})},
		}
	}
	d.add(collection, all)

	item := &pathItem{params: append(pathParams(r.Namespaced, r.Kind), pretty), operations: map[string]*operation{}}
	d.part(r, item, r.Verbs, name, "", model, r.GroupVersionKind)
	if has("delete") {
		answer := modelName(&metav1.Status{})
		if r.ReturnsDeleted {
			answer = model
		}
		item.operations["delete"] = &operation{
			id: "delete" + d.group + name, action: "delete", description: "delete " + article(r.Kind), kind: r.GroupVersionKind,
			tag:    d.tag,
			params: deleteQuery(), consumes: anyType, body: modelName(&metav1.DeleteOptions{}), optional: true,
			produces: answerTypes, answers: map[string]string{"200": answer, "202": answer},
		}
	}
	d.add(collection+"/{name}", item)

	if r.Namespaced && has("list") {
		d.out[d.base+r.Plural] = &pathItem{
			params:     append(queryOf(metav1.ListOptions{}), pretty),
			operations: map[string]*operation{"get": d.list("list"+d.group+r.Kind+"ForAllNamespaces", r, list, false)},
		}
	}
	if has("watch") {
		d.watches(r, name)
	}
	if r.Status != nil {
		d.subresource(r,
			&kind.Subresource{Name: "status", GroupVersionKind: r.GroupVersionKind, Verbs: []string{"get", "patch", "update"}},
			model)
	}
	for i := range r.Subresources {
		s := &r.Subresources[i]
		if s.Undocumented {
			continue
		}
		switch {
		case s.New != nil:
			d.subresource(r, s, modelName(s.New()))
		case s.Name == "log":
			d.log(r, s)
		default:
			d.connect(r, s)
		}
	}
}

// list returns a collection's list operation. query adds the list's query parameters, which belong to the path
// instead if it has no other operation.
func (d *declared) list(id string, r *kind.Resource, model string, query bool) *operation {
	verbs := "list"
	if slices.Contains(r.Verbs, "watch") {
		verbs = "list or watch"
	}
	op := &operation{
		id: id, action: "list", description: verbs + " objects of kind " + r.Kind, kind: r.GroupVersionKind, tag: d.tag,
		consumes: anyType, produces: listTypes, answers: map[string]string{"200": model},
	}
	if query {
		op.params = queryOf(metav1.ListOptions{})
	}
	return op
}

func (d *declared) create(id, description, model string, gvk schema.GroupVersionKind) *operation {
	return &operation{
		id: id, action: "post", description: description, kind: gvk, tag: d.tag, consumes: anyType, body: model,
		produces: answerTypes, answers: map[string]string{"200": model, "201": model, "202": model},
	}
}

// part adds the operations on one object, or on its subresource sub.
func (d *declared) part(r *kind.Resource, item *pathItem, verbs []string, name, sub, model string,
	gvk schema.GroupVersionKind) {
	of := "the specified " + r.Kind
	if sub != "" {
		of = sub + " of the specified " + r.Kind
		name += upper(sub)
	}
	for _, verb := range verbs {
		op := &operation{
			kind:     gvk,
			tag:      d.tag,
			consumes: anyType,
			produces: answerTypes,
			answers:  map[string]string{"200": model},
		}
		switch verb {
		case "get":
			op.id, op.action, op.description = "read"+d.group+name, "get", "read "+of
			item.operations["get"] = op
		case "update":
			op.id, op.action, op.description = "replace"+d.group+name, "put", "replace "+of
			op.params, op.body = queryOf(metav1.UpdateOptions{}), model
			op.answers["201"] = model
			item.operations["put"] = op
		case "patch":
			op.id, op.action, op.description = "patch"+d.group+name, "patch", "partially update "+of
			op.params, op.body, op.consumes = queryOf(metav1.PatchOptions{}), modelName(&metav1.Patch{}), patchTypes
			if !r.Proto { // custom resources and Coracle's own kinds: kubectl sends the types that are declared here
				op.consumes = untypedPatchTypes
			}
			op.answers["201"] = model
			item.operations["patch"] = op
		}
	}
}

// subresource adds a subresource with the verbs of an object.
func (d *declared) subresource(r *kind.Resource, s *kind.Subresource, model string) {
	collection, scope := d.scoped(r.Plural, r.Namespaced)
	what := r.Kind
	if s.GroupVersionKind != r.GroupVersionKind {
		what = s.Kind
	}
	item := &pathItem{params: append(pathParams(r.Namespaced, what), pretty), operations: map[string]*operation{}}
	d.part(r, item, s.Verbs, scope+r.Kind, s.Name, model, s.GroupVersionKind)
	if slices.Contains(s.Verbs, "create") {
		item.params = append(queryOf(metav1.CreateOptions{}), item.params...)
		item.operations["post"] = d.create("create"+d.group+scope+r.Kind+upper(s.Name),
			"create "+s.Name+" of "+article(r.Kind), model, s.GroupVersionKind)
	}
	d.out[collection+"/{name}/"+s.Name] = item
}

func (d *declared) log(r *kind.Resource, s *kind.Subresource) {
	collection, scope := d.scoped(r.Plural, r.Namespaced)
	d.out[collection+"/{name}/log"] = &pathItem{
		params: slices.Concat(queryOf(corev1.PodLogOptions{}), pathParams(r.Namespaced, r.Kind), []parameter{pretty}),
		operations: map[string]*operation{"get": {
			id: "read" + d.group + scope + r.Kind + "Log", action: "get", description: "read log of the specified " + r.Kind,
			kind: s.GroupVersionKind, tag: d.tag,
			consumes: anyType, produces: append([]string{"text/plain"}, answerTypes...), answers: map[string]string{"200": ""},
		}},
	}
}

// connects returns the query parameters of a stream for upstream's options kind.
func connects(options string) []parameter {
	switch options {
	case "PodAttachOptions":
		return queryOf(corev1.PodAttachOptions{})
	case "PodExecOptions":
		return queryOf(corev1.PodExecOptions{})
	case "PodPortForwardOptions":
		return queryOf(corev1.PodPortForwardOptions{})
	case "PodProxyOptions":
		return queryOf(corev1.PodProxyOptions{})
	case "ServiceProxyOptions":
		return queryOf(corev1.ServiceProxyOptions{})
	default:
		return queryOf(corev1.NodeProxyOptions{})
	}
}

// connect adds a stream: exec, attach, portforward or a proxy.
func (d *declared) connect(r *kind.Resource, s *kind.Subresource) {
	collection, scope := d.scoped(r.Plural, r.Namespaced)
	path := collection + "/{name}/" + s.Name
	methods := []string{"get", "post"}
	if s.Name == "proxy" {
		methods = []string{"delete", "get", "head", "options", "patch", "post", "put"}
	}
	add := func(path, suffix string, params []parameter) {
		item := &pathItem{params: params, operations: map[string]*operation{}}
		for _, m := range methods {
			item.operations[m] = &operation{
				id:     "connect" + d.group + upper(m) + scope + r.Kind + upper(s.Name) + suffix,
				action: "connect", description: "connect " + strings.ToUpper(m) + " requests to " + s.Name + " of " + r.Kind,
				kind: s.GroupVersionKind, tag: d.tag,
				consumes: anyType, produces: anyType, answers: map[string]string{"200": ""},
			}
		}
		d.out[path] = item
	}
	params := append(connects(s.Kind), pathParams(r.Namespaced, s.Kind)...)
	add(path, "", params)
	if s.Name == "proxy" {
		add(path+"/{path}", "WithPath",
			append(slices.Clone(params), parameter{
				name:        "path",
				in:          "path",
				typ:         "string",
				required:    true,
				description: "path to the resource",
			}))
	}
}

// watches adds the deprecated paths below /watch/.
func (d *declared) watches(r *kind.Resource, name string) {
	watch := func(path, id, action, description string, params ...parameter) {
		d.out[path] = &pathItem{
			params: slices.Concat(queryOf(metav1.ListOptions{}), params, []parameter{pretty}),
			operations: map[string]*operation{"get": {
				id: "watch" + d.group + id, action: action, description: description, kind: r.GroupVersionKind, tag: d.tag,
				consumes: anyType, produces: listTypes, answers: map[string]string{"200": modelName(&metav1.WatchEvent{})},
			}},
		}
	}
	const instead = " deprecated: use the 'watch' parameter with a list operation instead"
	changes := "watch individual changes to a list of " + r.Kind + "." + instead + "."
	base, _ := strings.CutSuffix(d.base, "/")
	collection, _ := d.scoped(r.Plural, r.Namespaced)
	below := base + "/watch" + strings.TrimPrefix(collection, base)
	watch(below, name+"List", "watchlist", changes, pathParams(r.Namespaced, "")...)
	watch(below+"/{name}", name, "watch", "watch changes to an object of kind "+r.Kind+"."+instead+
		", filtered to a single item with the 'fieldSelector' parameter.", pathParams(r.Namespaced, r.Kind)...)
	if r.Namespaced {
		watch(base+"/watch/"+r.Plural, r.Kind+"ListForAllNamespaces", "watchlist", changes)
	}
}

var (
	anyType     = []string{"*/*"}
	answerTypes = []string{typeJSON, typeProto, typeYAML}
	listTypes   = []string{typeJSON, typeJSON + ";stream=watch", typeProto, typeProto + ";stream=watch", typeYAML}
	patchTypes  = []string{
		string(types.ApplyPatchType), string(types.JSONPatchType), string(types.MergePatchType),
		string(types.StrategicMergePatchType),
	}
	// untypedPatchTypes are the patch types of kinds that have no Go type in kubectl: their models declare no merge
	// keys.
	untypedPatchTypes = patchTypes[:3:3]
)

package customresources

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/api/kinds/custom"
)

const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
    additionalPrinterColumns:
    - {name: Colour, type: string, jsonPath: .spec.colour}
    selectableFields:
    - {jsonPath: .spec.colour}
    schema:
      openAPIV3Schema:
        type: object
        x-kubernetes-validations:
        - {rule: "self.spec.replicas <= self.spec.limit", message: "too many replicas"}
        required: [spec]
        properties:
          spec:
            type: object
            description: Spec says what the widget is.
            properties:
              colour: {type: string, enum: [red, green], default: green}
              replicas: {type: integer, minimum: 0, default: 1}
              limit: {type: integer, default: 9}
              port: {x-kubernetes-int-or-string: true}
              free: {type: object, x-kubernetes-preserve-unknown-fields: true}
              template: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
              ports:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, port: {type: integer}}}
          status:
            type: object
            properties:
              replicas: {type: integer}
              selector: {type: string}
              phase: {type: string, maxLength: 5}
`

const widgetsPath = "/apis/example.org/v1/namespaces/default/widgets"

func widget(name, spec string) string {
	return "{apiVersion: example.org/v1, kind: Widget, metadata: {name: " + name + "}, spec: " + spec + "}"
}

func (w *world) namespace(name string) {
	w.t.Helper()
	require.Equal(w.t, http.StatusCreated,
		w.do("POST", "/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}").code)
}

func TestCustomResources(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir)
	w.namespace("default")
	applied := w.do("PATCH", definitionsPath+"/widgets.example.org?fieldManager=author", widgets, "Content-Type",
		string(types.ApplyPatchType))
	require.Equal(t, http.StatusCreated, applied.code, applied.body)
	crd := w.until("widgets.example.org", apiextensionsv1.Established, apiextensionsv1.ConditionTrue)
	require.Equal(t, "author", crd.ManagedFields[0].Manager)
	applied = w.do("PATCH", definitionsPath+"/widgets.example.org?fieldManager=author", widgets, "Content-Type",
		string(types.ApplyPatchType))
	require.Equal(t, http.StatusOK, applied.code, applied.body)
	require.Equal(t, []string{"v1"}, crd.Status.StoredVersions)
	require.Equal(t, "WidgetList", crd.Status.AcceptedNames.ListKind)

	created := w.do("POST", widgetsPath,
		widget("a",
			`{replicas: 2, unknown: 1, port: http, free: {x: 1}, ports: [{name: a, port: 1}], template: {apiVersion: v1, kind: Pod, metadata: {name: p, wrong: 1}, spec: {x: 1}}}`))
	require.Equal(t, http.StatusCreated, created.code, created.body)
	require.Contains(t, created.body, `"colour":"green"`, "defaults")
	require.NotContains(t, created.body, "unknown", "pruning")
	require.NotContains(t, created.body, "wrong")
	require.Contains(t, created.body, `"free":{"x":1}`)
	require.Contains(t, created.header.Values("Warning")[0], `unknown field \"spec.`)
	require.Contains(t, created.body, `"generation":1`)
	require.Contains(t, created.body, `"managedFields"`)

	for name, c := range map[string]struct{ body, query, message string }{
		"enum": {
			widget("b", `{colour: blue}`), "",
			`Widget.example.org "b" is invalid: [spec.colour: Unsupported value: "blue": supported values: "red", "green", <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]`,
		},
		"required": {`{apiVersion: example.org/v1, kind: Widget, metadata: {name: b}}`, "", `spec: Required value`},
		"rule": {
			widget("b", `{replicas: 10}`), "", `Widget.example.org "b" is invalid: <nil>: Invalid value: too many replicas`,
		},
		"strict": {widget("b", `{unknown: 1}`), "?fieldValidation=Strict",
			`Widget in version "v1" cannot be handled as a Widget: strict decoding error: unknown field "spec.unknown"`},
		"listmap": {widget("b", `{ports: [{name: a}, {name: a}]}`), "", `spec.ports[1]: Duplicate value: {"name":"a"}`},
		"kind": {
			`{apiVersion: example.org/v1, kind: Other, metadata: {name: b}, spec: {}}`, "",
			`kind: Invalid value: "Other": must be Widget`,
		},
		"version": {
			`{apiVersion: example.org/v2, kind: Widget, metadata: {name: b}, spec: {}}`, "",
			`the API version in the data (example.org/v2) does not match the expected API version (example.org/v1)`,
		},
		"nokind": {`{apiVersion: example.org/v1, metadata: {name: b}, spec: {}}`, "", `Object 'Kind' is missing`},
		"meta": {
			`{apiVersion: example.org/v1, kind: Widget, metadata: {name: b, labels: {a: 1}}, spec: {}}`, "",
			`cannot be handled as a Widget: json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string`,
		},
	} {
		got := w.do("POST", widgetsPath+c.query, c.body)
		if !strings.Contains(got.message(t), c.message) {
			t.Errorf("%s: %s", name, got.message(t))
		}
	}

	broken := w.do("POST", widgetsPath, "{", "Content-Type", "application/json")
	require.Contains(t, broken.message(t),
		`the object provided is unrecognized (must be of type Widget): couldn't get version/kind; json parse error: unexpected end of JSON input ({)`)

	// The status is written separately, and does not change the generation.
	patch := func(path, body string, kind types.PatchType, query string) reply {
		return w.do("PATCH", path+query, body, "Content-Type", string(kind))
	}
	got := patch(widgetsPath+"/a", `{"spec":{"colour":"red","more":1},"status":{"phase":"x"}}`, types.MergePatchType, "")
	require.Equal(t, http.StatusOK, got.code, got.body)
	require.Contains(t, got.body, `"generation":2`)
	require.NotContains(t, got.body, `"phase"`)
	require.Contains(t, got.header.Get("Warning"), `unknown field \"spec.more\"`)
	got = patch(widgetsPath+"/a/status",
		`{"spec":{"colour":"green"},"status":{"phase":"Ready","replicas":2,"selector":"app=a"}}`, types.MergePatchType, "")
	require.Equal(t, http.StatusOK, got.code, got.body)
	require.Contains(t, got.body, `"phase":"Ready"`)
	require.Contains(t, got.body, `"colour":"red"`)
	require.Contains(t,
		patch(widgetsPath+"/a/status", `{"status":{"phase":"TooLong"}}`, types.MergePatchType, "").message(t),
		"status.phase: Too long: may not be more than 5 bytes")

	scale := w.do("GET", widgetsPath+"/a/scale", "")
	require.Contains(t, scale.body, `"spec":{"replicas":2},"status":{"replicas":2,"selector":"app=a"}`)
	table := w.do("GET", widgetsPath+"/a/scale", "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").body
	require.Contains(t, table, `"name":"Desired"`)
	require.Contains(t, table, `"name":"Available"`)
	require.Contains(t, table, `"cells":["a",2,2,`)
	scale = patch(widgetsPath+"/a/scale", `{"spec":{"replicas":5}}`, types.MergePatchType, "")
	require.Contains(t, scale.body, `"replicas":5`)
	require.Contains(t, patch(widgetsPath+"/a/scale", `{"spec":{"replicas":50}}`, types.MergePatchType, "").message(t),
		"too many replicas")
	nameless := patch(widgetsPath+"/new", `{"apiVersion":"example.org/v1","kind":"Widget","metadata":{},"spec":{}}`,
		types.ApplyYAMLPatchType, "?fieldManager=me")
	require.Equal(t, http.StatusBadRequest, nameless.code, "%s", nameless.body)
	require.Contains(t, nameless.message(t), "the name of the object (new based on URL) was undeterminable")
	scale = w.do("PUT", widgetsPath+"/a/scale",
		`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"a","namespace":"default"},"spec":{"replicas":5}}`)
	require.Equal(t, http.StatusOK, scale.code, "without a resourceVersion: %s", scale.body)
	desired := `{apiVersion: autoscaling/v1, kind: Scale, metadata: {name: a, namespace: default}, spec: {replicas: 6}}`
	scale = patch(widgetsPath+"/a/scale", desired, types.ApplyPatchType, "?fieldManager=scaler")
	require.Equal(t, http.StatusConflict, scale.code, scale.body)
	require.Contains(t, scale.message(t), ".spec.replicas")
	scale = patch(widgetsPath+"/a/scale", desired, types.ApplyPatchType, "?fieldManager=scaler&force=true")
	require.Equal(t, http.StatusOK, scale.code, scale.body)
	require.Contains(t, scale.body, `"replicas":6`)
	require.Contains(t, w.do("GET", widgetsPath+"/a", "").body,
		`"f:spec":{"f:replicas":{}}},"manager":"scaler","operation":"Apply","subresource":"scale"`)
	scale = patch(widgetsPath+"/a/scale", strings.Replace(desired, "6", "5", 1), types.ApplyPatchType,
		"?fieldManager=scaler")
	require.Equal(t, http.StatusOK, scale.code, scale.body)

	// Server-side apply merges by the schema.
	apply := func(spec, manager string) reply {
		return patch(widgetsPath+"/b", widget("b", spec), types.ApplyPatchType, "?fieldManager="+manager)
	}
	require.Equal(t, http.StatusCreated, apply(`{ports: [{name: a, port: 1}]}`, "one").code)
	both := apply(`{ports: [{name: b, port: 2}]}`, "two")
	require.Contains(t, both.body, `"ports":[{"name":"a","port":1},{"name":"b","port":2}]`)
	require.Contains(t, apply(`{ports: [{name: a, port: 7}]}`, "two").message(t), `conflict with "one"`)
	require.Contains(t, apply(`{unknown: 7}`, "two").message(t), `.spec.unknown: field not declared in schema`)
	require.Equal(t, http.StatusUnsupportedMediaType,
		patch(widgetsPath+"/a", `{}`, types.StrategicMergePatchType, "").code)

	list := w.do("GET", widgetsPath+"?fieldSelector=spec.colour%3Dred", "")
	require.Contains(t, list.body, `"kind":"WidgetList"`)
	require.Equal(t, 1, strings.Count(list.body, `"uid"`))
	require.Contains(t, w.do("GET", widgetsPath+"?fieldSelector=spec.port%3Dred", "").message(t),
		"field label not supported: spec.port")
	table = w.do("GET", widgetsPath, "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").body
	require.Contains(t, table, `"cells":["a","red"]`)
	require.Contains(t, w.do("GET", "/apis/example.org/v1", "").body, `"shortNames":["wd"],"categories":["all"]`)
	v3 := w.do("GET", "/openapi/v3/apis/example.org/v1", "").body
	require.Contains(t, v3, `"allOf":[{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]`)
	require.Contains(t, v3, "Spec says what the widget is.")
	require.Contains(t, v3, `"org.example.v1.WidgetList"`)
	require.Contains(t, w.do("GET", "/openapi/v2", "").body, "Spec says what the widget is.")

	// After a restart, all kinds are served before the server is ready.
	w.end()
	w = newWorld(t, dir)
	require.Contains(t, w.do("GET", widgetsPath+"/a", "").body, `"phase":"Ready"`)
	require.Equal(t, http.StatusOK,
		patchIn(w, widgetsPath+"/a", `{"metadata":{"finalizers":["example.org/hold"]}}`, types.MergePatchType).code)

	// Deleting the definition deletes its objects first.
	gone := w.do("DELETE", definitionsPath+"/widgets.example.org", "")
	require.Equal(t, http.StatusOK, gone.code, gone.body)
	require.Contains(t, gone.body, `"customresourcecleanup.apiextensions.k8s.io"`)
	w.wait("widgets.example.org", func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		for _, c := range crd.Status.Conditions {
			if c.Type == apiextensionsv1.Terminating && c.Reason == "InstanceDeletionInProgress" {
				return true
			}
		}
		return false
	})
	require.Equal(t,
		"widgets.example.org \"c\" is forbidden: create not allowed while custom resource definition is terminating",
		w.do("POST", widgetsPath, widget("c", `{}`)).message(t))
	require.Equal(t, http.StatusOK,
		patchIn(w, widgetsPath+"/a", `{"metadata":{"finalizers":null}}`, types.MergePatchType).code)
	w.wait("widgets.example.org", func(crd *apiextensionsv1.CustomResourceDefinition) bool { return crd == nil })
	w.define(widgets)
	require.Contains(t, w.do("GET", widgetsPath, "").body, `"items":[]`)
}

func patchIn(w *world, path, body string, kind types.PatchType) reply {
	w.t.Helper()
	return w.do("PATCH", path, body, "Content-Type", string(kind))
}

// A name that another definition of the group holds is not accepted until that definition releases it.
func TestNamesConflict(t *testing.T) {
	w := newWorld(t, t.TempDir())
	w.namespace("default")
	w.define(widgets)
	other := strings.NewReplacer("plural: widgets", "plural: gadgets", "name: widgets.", "name: gadgets.",
		"singular: widget", "singular: gadget", "shortNames: [wd]", "shortNames: [gd]").Replace(widgets)
	require.Equal(t, http.StatusCreated, w.do("POST", definitionsPath, other).code)
	crd := w.until("gadgets.example.org", apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionFalse)
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.NamesAccepted {
			require.Equal(t, "ListKindConflict", c.Reason)
			require.Equal(t, `"WidgetList" is already in use`, c.Message)
		} else {
			require.Equal(t, "NotAccepted", c.Reason)
		}
	}
	require.Equal(t, http.StatusNotFound, w.do("GET", "/apis/example.org/v1/gadgets", "").code)
	require.Equal(t, http.StatusOK, w.do("DELETE", definitionsPath+"/widgets.example.org", "").code)
	w.until("gadgets.example.org", apiextensionsv1.Established, apiextensionsv1.ConditionTrue)
	require.Equal(t, http.StatusOK, w.do("GET", "/apis/example.org/v1/gadgets", "").code)
}

// The number of definitions is limited. At the limit, existing ones can be updated and applied, and one can replace
// another that is deleted.
func TestTooManyDefinitions(t *testing.T) {
	w := newWorld(t, t.TempDir())
	row := w.kinds.Table().ByGVK(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	require.Equal(t, custom.MaxDefinitions, row.Most)
	row.Most = 2
	t.Cleanup(func() { row.Most = custom.MaxDefinitions })
	named := func(name string) string {
		return strings.NewReplacer("widgets", name+"s", "singular: widget", "singular: "+name, "Widget",
			strings.ToUpper(name[:1])+name[1:], "shortNames: [wd]", "shortNames: []").Replace(widgets)
	}
	w.define(named("first"))
	w.define(named("second"))
	got := w.do("POST", definitionsPath, named("third"))
	require.Equal(t, http.StatusForbidden, got.code)
	const refused = `customresourcedefinitions.apiextensions.k8s.io "thirds.example.org" is forbidden: ` +
		`this cluster has 2 customresourcedefinitions.apiextensions.k8s.io, the maximum: delete unused ones`
	require.Equal(t, refused, got.message(t))
	apply := func(name string) reply {
		return w.do("PATCH", definitionsPath+"/"+name+"s.example.org?fieldManager=author&force=true", named(name),
			"Content-Type", string(types.ApplyPatchType))
	}
	require.Equal(t, refused, apply("third").message(t))
	require.Equal(t, http.StatusOK, apply("second").code)
	require.Equal(t, http.StatusConflict, w.do("POST", definitionsPath, named("second")).code)

	require.Equal(t, http.StatusOK, w.do("DELETE", definitionsPath+"/firsts.example.org", "").code)
	w.wait("firsts.example.org", func(crd *apiextensionsv1.CustomResourceDefinition) bool { return crd == nil })
	w.define(named("third"))
}

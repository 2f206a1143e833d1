package customresources

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const boats = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.org}
spec:
  group: example.org
  scope: Cluster
  names: {plural: boats, singular: boat, kind: Boat, listKind: Fleet}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {host: {type: string}}}}
  - name: v1beta1
    served: true
    storage: false
    deprecated: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {host: {type: string}, hostPort: {type: string}}}}
`

func boat(version, name, spec string) string {
	return "{apiVersion: example.org/" + version + ", kind: Boat, metadata: {name: " + name + "}, spec: " + spec + "}"
}

func boatsPath(version, name string) string { return "/apis/example.org/" + version + "/boats" + name }

func TestVersionsWithoutConversion(t *testing.T) {
	w := newWorld(t, t.TempDir())
	w.define(boats)
	made := w.do("POST", boatsPath("v1beta1", ""), boat("v1beta1", "a", `{host: h, hostPort: p}`))
	require.Equal(t, http.StatusCreated, made.code, made.body)
	require.Contains(t, made.header.Get("Warning"), "example.org/v1beta1 Boat is deprecated; use example.org/v1 Boat")
	require.Contains(t, made.body, `"apiVersion":"example.org/v1beta1"`)
	require.NotContains(t, w.do("GET", boatsPath("v1", "/a"), "").body, `"hostPort":"p"`,
		"the storage version does not have the field")
	list := w.do("GET", boatsPath("v1beta1", ""), "")
	require.Contains(t, list.body, `"kind":"Fleet"`)
	require.Contains(t, list.body, `"apiVersion":"example.org/v1beta1"`)
	require.Contains(t, w.do("GET", "/apis/example.org", "").body, `"preferredVersion":{"groupVersion":"example.org/v1"`)
	require.Contains(t,
		w.do("GET", "/apis", "", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList").body,
		`"responseKind":{"group":"example.org","version":"v1beta1","kind":"Boat"}`,
		"as upstream, which says it for custom resources")

	// After the storage version changes, existing objects can be read, and each is converted when it is written.
	got := patchIn(w, definitionsPath+"/boats.example.org",
		`[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}]`, types.JSONPatchType)
	require.Equal(t, http.StatusOK, got.code, got.body)
	crd := w.wait("boats.example.org", func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return len(crd.Status.StoredVersions) == 2
	})
	require.Equal(t, []string{"v1", "v1beta1"}, crd.Status.StoredVersions)
	require.Equal(t, "example.org/v1", w.stored("boats/a"))
	_, changed := w.kinds.Watch()
	if row := w.kinds.Table().
		ByGVR(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "boats"}); row.StoredAs == nil {
		<-changed
	}
	got = patchIn(w, boatsPath("v1", "/a"), `{}`, types.MergePatchType)
	require.Equal(t, http.StatusOK, got.code, got.body)
	require.Equal(t, "example.org/v1beta1", w.stored("boats/a"))
	require.Contains(t, w.do("GET", boatsPath("v1", "/a"), "").body, `"apiVersion":"example.org/v1"`)
	// A version can be removed once no objects are stored in it.
	remove := `[{"op":"remove","path":"/spec/versions/0"}]`
	require.Contains(t, patchIn(w, definitionsPath+"/boats.example.org", remove, types.JSONPatchType).message(t),
		"v1 was previously a storage version, and must remain in spec.versions")
	got = patchIn(w, definitionsPath+"/boats.example.org/status", `{"status":{"storedVersions":["v1beta1"]}}`,
		types.MergePatchType)
	require.Equal(t, http.StatusOK, got.code, got.body)
	require.Equal(t, http.StatusOK, patchIn(w, definitionsPath+"/boats.example.org", remove, types.JSONPatchType).code)
}

// Objects have the defaults of the stored version, whichever version they were written in.
func TestDefaultsOfTheStoredVersion(t *testing.T) {
	w := newWorld(t, t.TempDir())
	w.define(strings.Replace(boats, "host: {type: string}", "host: {type: string, default: here}", 1)) // a default in v1
	made := w.do("POST", boatsPath("v1beta1", ""), boat("v1beta1", "a", `{hostPort: p}`))
	require.Equal(t, http.StatusCreated, made.code, made.body)
	require.Contains(t, made.body, `"host":"here"`)
	require.Contains(t, w.do("GET", boatsPath("v1", "/a"), "").body, `"host":"here"`)
	again := patchIn(w, boatsPath("v1beta1", "/a"), `{"spec":{"host":null}}`, types.MergePatchType)
	require.Equal(t, http.StatusOK, again.code, again.body)
	require.Contains(t, again.body, `"host":"here"`)
	other := patchIn(w, boatsPath("v1", "/a"), `{"apiVersion":"example.org/v7"}`, types.MergePatchType)
	require.Equal(t, http.StatusUnprocessableEntity, other.code, other.body)
	require.Contains(t, other.message(t), `apiVersion: Invalid value: "example.org/v7": must be example.org/v1`)
	require.NotContains(t, w.do("POST", boatsPath("v1beta1", ""), boat("v1beta1", "b", `{host: away}`)).body, "here")
}

// An apply that changes nothing writes nothing, even in a version with defaults that the stored version lacks.
// Otherwise each repetition would increment the generation.
func TestAppliesThatChangeNothing(t *testing.T) {
	w := newWorld(t, t.TempDir())
	// A default in v1beta1 only.
	w.define(strings.Replace(boats, "hostPort: {type: string}", "hostPort: {type: string, default: p}", 1))
	apply := func(path, query string) *unstructured.Unstructured {
		got := patchIn(w, boatsPath("v1beta1", path)+query, boat("v1beta1", "a", `{host: h}`), types.ApplyPatchType)
		require.Less(t, got.code, 300, got.body)
		u := &unstructured.Unstructured{}
		require.NoError(t, u.UnmarshalJSON([]byte(got.body)))
		return u
	}
	require.EqualValues(t, 1, apply("/a", "?fieldManager=m&dryRun=All").GetGeneration())
	first := apply("/a", "?fieldManager=m")
	require.EqualValues(t, 1, first.GetGeneration())
	for range 3 {
		again := apply("/a", "?fieldManager=m")
		require.EqualValues(t, 1, again.GetGeneration())
		require.Equal(t, first.GetResourceVersion(), again.GetResourceVersion())
	}
}

// stored returns the version in which an object is stored.
func (w *world) stored(key string) string {
	w.t.Helper()
	kvs, _, _, err := w.store.Range(w.t.Context(), "/registry/example.org/"+key, "", 1, 0)
	require.NoError(w.t, err)
	require.Len(w.t, kvs, 1)
	var meta metav1.TypeMeta
	require.NoError(w.t, json.Unmarshal(kvs[0].Value, &meta))
	return meta.APIVersion
}

// converter is a conversion webhook that splits and joins host and port. lie may corrupt its responses.
type converter struct {
	*httptest.Server
	calls, objects atomic.Int64
	lie            atomic.Pointer[func(*apiextensionsv1.ConversionResponse)]
}

func newConverter(t *testing.T) *converter {
	c := &converter{}
	c.Server = httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		var review apiextensionsv1.ConversionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		c.calls.Add(1)
		c.objects.Add(int64(len(review.Request.Objects)))
		answer := &apiextensionsv1.ConversionResponse{
			UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess},
		}
		for _, raw := range review.Request.Objects {
			u := &unstructured.Unstructured{}
			if err := u.UnmarshalJSON(raw.Raw); err != nil {
				http.Error(rw, err.Error(), http.StatusBadRequest)
				return
			}
			u.SetAPIVersion(review.Request.DesiredAPIVersion)
			spec, _ := u.Object["spec"].(map[string]any)
			if both, ok := spec["hostPort"].(string); ok {
				host, port, _ := strings.Cut(both, ":")
				u.Object["spec"] = map[string]any{"host": host, "port": port}
			} else {
				u.Object["spec"] = map[string]any{"hostPort": fmt.Sprintf("%v:%v", spec["host"], spec["port"])}
			}
			answer.ConvertedObjects = append(answer.ConvertedObjects, runtime.RawExtension{Object: u})
		}
		if lie := c.lie.Load(); lie != nil {
			(*lie)(answer)
		}
		review.Request, review.Response = nil, answer
		_ = json.NewEncoder(rw).Encode(&review)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *converter) definition() string {
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{
		Type: "CERTIFICATE", Bytes: c.Certificate().Raw,
	}))
	text := strings.Replace(boats, "properties: {host: {type: string}}",
		"properties: {host: {type: string}, port: {type: string}}", 1)
	text = strings.Replace(text, "properties: {host: {type: string}, hostPort: {type: string}}",
		"properties: {hostPort: {type: string}}", 1)
	text = strings.Replace(text, "    storage: true\n",
		"    storage: true\n    selectableFields: [{jsonPath: .spec.port}]\n", 1)
	text = strings.Replace(text, "    storage: false\n",
		"    storage: false\n    selectableFields: [{jsonPath: .spec.hostPort}]\n", 1)
	return text +
		fmt.Sprintf("  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: %q, "+
			"caBundle: %s}}}\n", c.URL+"/convert", ca)
}

func TestConversionByWebhook(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir)
	hook := newConverter(t)
	w.define(hook.definition())
	for i := range 5 {
		made := w.do("POST", boatsPath("v1beta1", ""), boat("v1beta1", fmt.Sprintf("b%d", i), `{hostPort: "h:80"}`))
		require.Equal(t, http.StatusCreated, made.code, made.body)
		require.Contains(t, made.body, `"hostPort":"h:80"`)
	}
	require.Contains(t, w.do("GET", boatsPath("v1", "/b1"), "").body, `"host":"h","port":"80"`)
	got := patchIn(w, boatsPath("v1beta1", "/b1"), `{"spec":{"hostPort":"h:81"}}`, types.MergePatchType)
	require.Contains(t, got.body, `"hostPort":"h:81"`)
	require.Contains(t, w.do("GET", boatsPath("v1", "/b1"), "").body, `"port":"81"`)
	got = w.do("PATCH", boatsPath("v1beta1", "/b1")+"?fieldManager=x", boat("v1beta1", "b1", `{hostPort: "h:81"}`),
		"Content-Type", string(types.ApplyPatchType))
	require.Equal(t, http.StatusOK, got.code, got.body)

	// A list is converted with one call. A server can start while the webhook is down.
	w.end()
	before := hook.calls.Load()
	w = newWorld(t, dir)
	require.Equal(t, before, hook.calls.Load())
	hook.objects.Store(0)
	list := w.do("GET", boatsPath("v1beta1", ""), "")
	require.Equal(t, 5, strings.Count(list.body, `"hostPort"`), list.body)
	require.Equal(t, before+1, hook.calls.Load())
	require.EqualValues(t, 5, hook.objects.Load())

	// Field selectors use the fields of the requested version.
	require.Equal(t, 4,
		strings.Count(w.do("GET", boatsPath("v1beta1", "")+"?fieldSelector=spec.hostPort%3Dh:80", "").body, `"uid"`))
	require.Equal(t, 1, strings.Count(w.do("GET", boatsPath("v1", "")+"?fieldSelector=spec.port%3D81", "").body, `"uid"`))
	for name, c := range map[string]struct {
		lie  func(*apiextensionsv1.ConversionResponse)
		says string
	}{
		"uid":   {func(r *apiextensionsv1.ConversionResponse) { r.UID = "other" }, `expected response.uid=`},
		"count": {func(r *apiextensionsv1.ConversionResponse) { r.ConvertedObjects = nil }, "returned 0 objects, expected 1"},
		"failed": {func(r *apiextensionsv1.ConversionResponse) {
			r.Result = metav1.Status{Status: metav1.StatusFailure, Message: "no way"}
		}, "failed: no way"},
		"name": {func(r *apiextensionsv1.ConversionResponse) {
			r.ConvertedObjects[0].Object.(*unstructured.Unstructured).SetName("other")
		}, "must have the same name: b0 != other"},
		"version": {func(r *apiextensionsv1.ConversionResponse) {
			r.ConvertedObjects[0].Object.(*unstructured.Unstructured).SetAPIVersion("example.org/v7")
		}, "invalid groupVersion (expected example.org/v1beta1, received example.org/v7)"},
	} {
		hook.lie.Store(nil)
		require.Equal(t, http.StatusOK,
			patchIn(w, boatsPath("v1", "/b0"), fmt.Sprintf(`{"metadata":{"labels":{"for":%q}}}`, name), types.MergePatchType).
				code)
		hook.lie.Store(&c.lie)
		got := w.do("GET", boatsPath("v1beta1", "/b0"), "")
		require.Equal(t, http.StatusInternalServerError, got.code, name)
		require.Contains(t, got.message(t), c.says, name)
	}
	hook.lie.Store(nil)
	require.Equal(t, http.StatusOK, w.do("DELETE", definitionsPath+"/boats.example.org", "").code)
	w.wait("boats.example.org", func(crd *apiextensionsv1.CustomResourceDefinition) bool { return crd == nil })
}

// Definitions that upstream rejects are rejected with the same messages.
func TestBadDefinitions(t *testing.T) {
	w := newWorld(t, t.TempDir())
	with := func(s string) string {
		return strings.Replace(boats, "properties: {spec: {type: object, properties: {host: {type: string}}}}", s, 1)
	}
	for name, c := range map[string]struct{ text, says string }{
		"not structural": {
			with("properties: {spec: {properties: {host: {type: string}}}}"),
			"spec.versions[0].schema.openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified " +
				"object fields",
		},
		"reference": {with(`properties: {spec: {$ref: "#/definitions/x"}}`), "$ref: Forbidden: $ref is not supported"},
		"selectable, not structural": {
			strings.Replace(with("properties: {spec: {type: object, additionalProperties: false, properties: {host: {type: "+
				"string}}}}"), "    schema:", "    selectableFields: [{jsonPath: .spec.host}]\n    schema:", 1),
			"additionalProperties",
		},
		"costly rule": {
			with(`properties: {spec: {type: object, properties: {l: {type: array, items: {type: string}}}, x-kubernetes-validations: [{rule: "self.l.all(a, self.l.all(b, self.l.all(c, a != b)))"}]}}`),
			"estimated rule cost exceeds budget",
		},
		"bad rule": {with(`x-kubernetes-validations: [{rule: "self.nothing > 1"}]`), "undefined field 'nothing'"},
		"bad name": {
			strings.Replace(boats, "name: boats.example.org", "name: other.example.org", 1),
			"must be spec.names.plural+\".\"+spec.group",
		},
		"two stored": {
			strings.Replace(boats, "storage: false", "storage: true", 1),
			"must have exactly one version marked as storage version",
		},
		"too large": {with("description: " + strings.Repeat("x", 3<<20)), "limit is 3145728"},
	} {
		got := w.do("POST", definitionsPath, c.text)
		if !strings.Contains(got.message(t), c.says) {
			t.Errorf("%s: %d %.600s", name, got.code, got.message(t))
		}
	}
}

// An invalid stored definition affects neither the server nor other definitions.
func TestStoredDefinitionThatIsBroken(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir)
	w.define(boats)
	w.define(widgets)
	w.namespace("default")
	require.Equal(t, http.StatusCreated, w.do("POST", boatsPath("v1", ""), boat("v1", "a", `{}`)).code)
	kvs, _, _, err := w.store.Range(t.Context(),
		"/registry/apiextensions.k8s.io/customresourcedefinitions/boats.example.org", "", 1, 0)
	require.NoError(t, err)
	broken := strings.ReplaceAll(string(kvs[0].Value), `"type":"object"`, `"$ref":"#/nothing","type":"object"`)
	require.NotEqual(t, string(kvs[0].Value), broken)
	_, err = w.store.Update(t.Context(), kvs[0].Key, []byte(broken), kvs[0].Revision, 0)
	require.NoError(t, err)
	w.end()
	w = newWorld(t, dir)
	require.Equal(t, http.StatusCreated, w.do("POST", widgetsPath, widget("a", `{}`)).code)
	require.Equal(t, http.StatusInternalServerError, w.do("GET", boatsPath("v1", ""), "").code)
	crd := w.wait("boats.example.org", func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		for _, c := range crd.Status.Conditions {
			if c.Type == apiextensionsv1.NonStructuralSchema {
				return c.Reason == "StructuralError"
			}
		}
		return false
	})
	require.NotNil(t, crd)
}

package apiserver

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const someMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":{"a":"b"}}`

func TestBadInputGetsUpstreamsStatus(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	const maps = "/api/v1/namespaces/d/configmaps"
	require.Equal(t, 201, w.do(w.http, "POST", maps, strings.Replace(someMap, `"m"`, `"there"`, 1)).code)
	deployment :=
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"},"spec":{"foo":1,"selector":{"matchLabels":{"a":"b"}},` +
			`"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`
	cases := []struct {
		name, method, path, body string
		headers                  []string
		code                     int
		reason                   metav1.StatusReason
		text                     string
	}{
		{
			"unknown path of a group", "GET", "/apis/apps/v2", "", nil, 404, metav1.StatusReasonNotFound,
			"the server could not find the requested resource",
		},
		{
			"unknown resource", "GET", "/api/v1/namespaces/d/things", "", nil, 404, metav1.StatusReasonNotFound,
			"could not find the requested resource",
		},
		{"unknown object", "GET", maps + "/none", "", nil, 404, metav1.StatusReasonNotFound, `configmaps "none" not found`},
		{
			"a name that is a path", "GET", maps + "/%2e%2e", "", nil, 400, metav1.StatusReasonBadRequest,
			`Name parameter invalid: "..": may not be '..'`,
		},
		{
			"update without a name", "PUT", maps + "/m", `{"apiVersion":"v1","kind":"ConfigMap"}`, nil, 400,
			metav1.StatusReasonBadRequest,
			"the name of the object (m based on URL) was undeterminable: name must be provided",
		},
		{
			"wrong method", "POST", maps + "/m", someMap, nil, 405, metav1.StatusReasonMethodNotAllowed,
			"does not allow this method",
		},
		{"broken JSON", "POST", maps, `{"apiVersion":`, nil, 400, metav1.StatusReasonBadRequest,
			`the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input ({"apiVersion":)`},
		{"empty body", "POST", maps, "", nil, 400, metav1.StatusReasonBadRequest,
			`the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)`},
		{"a kind that is no string", "POST", maps, `{"kind":5}`, nil, 400, metav1.StatusReasonBadRequest,
			`couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string ({"kind":5})`},
		{
			"broken YAML",
			"POST",
			maps,
			"a: b: c",
			[]string{"Content-Type", typeYAML},
			400,
			metav1.StatusReasonBadRequest,
			"yaml",
		},
		{
			"wrong kind", "POST", maps, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"m"}}`, nil, 400,
			metav1.StatusReasonBadRequest, "cannot be handled as a ConfigMap",
		},
		{
			"wrong version", "POST", maps, `{"apiVersion":"apps/v1","kind":"ConfigMap"}`, nil, 400,
			metav1.StatusReasonBadRequest, "the API version in the data (apps/v1) does not match the expected API version (v1)",
		},
		{
			"unreadable version", "POST", maps, `{"apiVersion":"a/b/c","kind":"ConfigMap"}`, nil, 400,
			metav1.StatusReasonBadRequest, "unexpected GroupVersion string: a/b/c",
		},
		{
			"unknown field", "POST", "/apis/apps/v1/namespaces/d/deployments?fieldValidation=Strict", deployment, nil, 400,
			metav1.StatusReasonBadRequest,
			`Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: unknown field "spec.foo"`,
		},
		{
			"duplicate field", "POST", maps + "?fieldValidation=Strict",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":{"a":"b","a":"c"}}`, nil, 400,
			metav1.StatusReasonBadRequest,
			`strict decoding error: duplicate field "data.a"`,
		},
		{
			"invalid name", "POST", maps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"A b"}}`, nil, 422,
			metav1.StatusReasonInvalid, "metadata.name",
		},
		{
			"wrong namespace", "POST", maps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m","namespace":"e"}}`,
			nil, 400, metav1.StatusReasonBadRequest, "namespace",
		},
		{
			"too large", "POST", maps, `{"x":"` + strings.Repeat("x", maxBody) + `"}`, nil, 413,
			metav1.StatusReasonRequestEntityTooLarge, "limit is 3145728",
		},
		{
			"not acceptable",
			"GET",
			maps,
			"",
			[]string{"Accept", "text/html"},
			406,
			metav1.StatusReasonNotAcceptable,
			"only the following media types are accepted",
		},
		{
			"unsupported media",
			"POST",
			maps,
			someMap,
			[]string{"Content-Type", "text/plain"},
			415,
			metav1.StatusReasonUnsupportedMediaType,
			"the body of the request was in an unknown format",
		},
		{
			"unsupported patch",
			"PATCH",
			maps + "/m",
			`{}`,
			[]string{"Content-Type", typeJSON},
			415,
			metav1.StatusReasonUnsupportedMediaType,
			"application/json-patch+json",
		},
		{"bad dry run", "POST", maps + "?dryRun=Some", someMap, nil, 422, metav1.StatusReasonInvalid, "dryRun"},
		{
			"bad field validation", "POST", maps + "?fieldValidation=Maybe", someMap, nil, 422, metav1.StatusReasonInvalid,
			"fieldValidation",
		},
		{
			"bad list options", "GET", maps + "?resourceVersionMatch=Exact", "", nil, 422, metav1.StatusReasonInvalid,
			"resourceVersionMatch",
		},
		{"bad label selector", "GET", maps + "?labelSelector=a%20b%20c", "", nil, 400, metav1.StatusReasonBadRequest, ""},
		{"bad field selector", "GET", maps + "?fieldSelector=spec.x%3Dy", "", nil, 400, metav1.StatusReasonBadRequest, ""},
		{
			"bad protobuf",
			"POST",
			maps,
			"k8s\x00\xff\xff",
			[]string{"Content-Type", typeProto},
			400,
			metav1.StatusReasonBadRequest,
			"",
		},
		{
			"namespaced path of a cluster kind", "GET", "/api/v1/namespaces/d/nodes", "", nil, 404, metav1.StatusReasonNotFound,
			"",
		},
		{
			"patch of the kind",
			"PATCH",
			maps + "/there",
			`{"kind":"Secret"}`,
			[]string{"Content-Type", "application/merge-patch+json"},
			422,
			metav1.StatusReasonInvalid,
			"kind or apiVersion from ConfigMap of v1 to Secret of v1",
		},
		{
			"patch of the version",
			"PATCH",
			maps + "/there",
			`[{"op":"replace","path":"/apiVersion","value":"v2"}]`,
			[]string{"Content-Type", "application/json-patch+json"},
			422,
			metav1.StatusReasonInvalid,
			"to ConfigMap of v2",
		},
		{
			"patch without a name", "PATCH", maps + "/there", `{"metadata":null}`,
			[]string{"Content-Type", "application/merge-patch+json"}, 400, metav1.StatusReasonBadRequest,
			"the name of the object (there based on URL) was undeterminable: name must be provided",
		},
		{"delete across namespaces", "DELETE", "/api/v1/configmaps", "", nil, 405, metav1.StatusReasonMethodNotAllowed, ""},
		{
			"an eviction of old clients", "POST", "/api/v1/namespaces/d/pods/none/eviction",
			`{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"none"}}`, nil, 404,
			metav1.StatusReasonNotFound,
			`pods "none" not found`,
		},
		{
			"patch of the uid", "PATCH", maps + "/there", `{"metadata":{"uid":"11111111-2222-3333-4444-555555555555"}}`,
			[]string{"Content-Type", "application/merge-patch+json"}, 422, metav1.StatusReasonInvalid,
			"metadata.uid: Invalid value: \"11111111-2222-3333-4444-555555555555\": field is immutable",
		},
		{
			"apply of another uid", "PATCH", maps + "/there?fieldManager=m",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"there","uid":"11111111-2222-3333-4444-555555555555"}}`,
			[]string{"Content-Type", "application/apply-patch+yaml"}, 422, metav1.StatusReasonInvalid, "metadata.uid",
		},
		{
			"update of another uid", "PUT", maps + "/there",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"there","uid":"11111111-2222-3333-4444-555555555555"}}`,
			nil, 409, metav1.StatusReasonConflict,
			"Precondition failed",
		},
		{
			"a field of another kind", "GET", "/api/v1/nodes?fieldSelector=metadata.namespace%3Dx", "", nil, 400,
			metav1.StatusReasonBadRequest, "field label not supported: metadata.namespace",
		},
		{
			"a field that a kind does not have", "GET", "/api/v1/persistentvolumes?fieldSelector=spec.x%3Dx", "", nil, 400,
			metav1.StatusReasonBadRequest,
			`"spec.x" is not a known field selector: only "metadata.name", "metadata.namespace"`,
		},
		{
			"a missing service", "GET", "/api/v1/namespaces/d/services/none/proxy/", "", nil, 503,
			metav1.StatusReasonServiceUnavailable, `no endpoints available for service "none"`,
		},
		{
			"create across namespaces", "POST", "/api/v1/configmaps", someMap, nil, 405, metav1.StatusReasonMethodNotAllowed, "",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := w.do(w.http, c.method, c.path, c.body, c.headers...)
			require.Equal(t, c.code, r.code, "%s", r.body)
			s := r.status(t)
			require.Equal(t, c.reason, s.Reason, "%s", r.body)
			require.EqualValues(t, c.code, s.Code)
			require.Contains(t, s.Message, c.text)
			require.NotEmpty(t, r.header.Get("Audit-Id"))
		})
	}
	r := w.do(w.http, "POST", "/apis/apps/v1/namespaces/d/deployments", deployment)
	require.Equal(t, 201, r.code, "%s", r.body)
	require.Equal(t, `299 - "unknown field \"spec.foo\""`, r.header.Get("Warning"))
}

// A HEAD has the RequestInfo verb of a GET, but upstream answers it with 405 for built-in kinds and their discovery.
func TestHead(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	for path, code := range map[string]int{
		"/api/v1/namespaces/d": 405, "/api/v1/namespaces": 405, "/api/v1/namespaces/d/status": 405, "/api/v1/nodes/none": 405,
		"/api": 405, "/apis": 200, "/apis/apps": 200, "/apis/apps/v1": 405,
		"/apis/nonsense": 404, "/api/v1/nonsense": 404, "/version": 200, "/healthz": 200,
	} {
		require.Equal(t, code, w.do(w.http, "HEAD", path, "").code, path)
	}
}

// Unknown paths give 404 for every method. A path with two leading slashes is unknown too.
func TestPathsThatAreNotThere(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{
		"/nonsense", "/metrics/nonsense", "/debug/nonsense", "/api/v1/proxy/nodes/x",
		"/apis/authorization.k8s.io/v1/subjectaccessreviews/x", "//api/v1/nodes", "//version",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
			require.Equal(t, 404, w.do(w.http, method, path, "").code, "%s %s", method, path)
		}
	}
	require.Equal(t, 405, w.do(w.http, "POST", "/metrics", "").code)
}

// Clients may send their context's namespace in a cluster-scoped object. The server drops it.
func TestNamespaceOfAClusterScopedObject(t *testing.T) {
	w := newWorld(t)
	const classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
	low := `{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"low","namespace":"elsewhere"},"value":1}`
	for _, r := range []reply{w.do(w.http, "POST", classes, low), w.do(w.http, "PUT", classes+"/low", low)} {
		require.Less(t, r.code, 300, "%s", r.body)
		require.NotContains(t, string(r.body), "elsewhere")
	}
}

func TestFieldsThatObjectsLack(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	require.Equal(t, 201,
		w.do(w.http, "POST", "/api/v1/namespaces/d/serviceaccounts",
			`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`).code)
	pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	require.Equal(t, 201, w.do(w.http, "POST", "/api/v1/namespaces/d/pods", pod).code)
	items := func(path string) (n int) {
		var list metav1.PartialObjectMetadataList
		r := w.do(w.http, "GET", path, "")
		require.Equal(t, 200, r.code, "%s: %s", path, r.body)
		require.NoError(t, json.Unmarshal(r.body, &list))
		return len(list.Items)
	}
	require.Equal(t, 1, items("/api/v1/pods?fieldSelector=status.podIPs%3D"))
	require.Zero(t, items("/api/v1/pods?fieldSelector=status.podIPs%3D192.0.2.1"))
	const classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
	require.Equal(t, 201,
		w.do(w.http, "POST", classes,
			`{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"low"},"value":1}`).code)
	require.Equal(t, 1, items(classes+"?fieldSelector=metadata.namespace%3D,metadata.name%3Dlow"))
	require.Zero(t, items(classes+"?fieldSelector=metadata.namespace%3Dd"))
}

// Kinds that upstream has deprecated are served with its warnings, which kubectl prints.
func TestDeprecatedKindsWarn(t *testing.T) {
	w := newWorld(t)
	for path, want := range map[string]string{
		"/api/v1/namespaces/default/endpoints":     `299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"`,
		"/api/v1/componentstatuses":                `299 - "v1 ComponentStatus is deprecated in v1.19+"`,
		"/api/v1/namespaces/default/services":      "",
		"/apis/discovery.k8s.io/v1/endpointslices": "",
	} {
		require.Equal(t, want, w.do(w.http, "GET", path, "").header.Get("Warning"), path)
	}
}

func TestPlainPaths(t *testing.T) {
	w := newWorld(t)
	for path, text := range map[string]string{
		"/version": `"gitVersion": "v1.37.1+coracle"`, "/": `"/apis/apps/v1"`, "/healthz": "ok",
		"/livez?verbose": "[+]ping ok",
		"/readyz":        "ok", "/readyz/ping": "ok", "/api": `"APIVersions"`, "/apis": `"APIGroupList"`,
		"/apis/apps": `"preferredVersion"`, "/apis/apps/v1": `"deployments/scale"`,
		"/api/v1": `"pods/log"`, "/openapi/v3": `api/v1?hash=`, "/openid/v1/jwks": `"keys"`,
		"/.well-known/openid-configuration": `"issuer"`,
	} {
		r := w.do(w.http, "GET", path, "")
		require.Equal(t, 200, r.code, "%s: %s", path, r.body)
		require.Contains(t, string(r.body), text, path)
	}
	// Make a request first, so that the counter exists.
	require.Contains(t, string(w.do(w.http, "GET", "/metrics", "").body), "apiserver_request_total")
	r := w.do(w.http, "GET", "/apis", "", "Accept",
		"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json")
	require.Contains(t, r.header.Get("Content-Type"), "as=APIGroupDiscoveryList")
	require.Contains(t, string(r.body), `"responseKind":{"group":"","version":"","kind":"Deployment"}`)
	require.Contains(t, string(r.body), `"responseKind":{"group":"autoscaling","version":"v1","kind":"Scale"}`)
	etag := r.header.Get("ETag")
	require.NotEmpty(t, etag)
	r = w.do(w.http, "GET", "/apis", "", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
		"If-None-Match", etag)
	require.Equal(t, 304, r.code)
	const aggregated = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	r = w.do(w.http, "GET", "/apis", "", "Accept", "text/html,"+typeProto+aggregated+",application/json")
	require.Equal(t, typeProto+aggregated, r.header.Get("Content-Type"))
	require.Equal(t, etag, r.header.Get("ETag"))
	var u runtime.Unknown
	require.NoError(t, u.Unmarshal(r.body[len(protoMagic):]))
	require.Equal(t, runtime.TypeMeta{APIVersion: "apidiscovery.k8s.io/v2", Kind: "APIGroupDiscoveryList"}, u.TypeMeta)
	var groups apidiscovery.APIGroupDiscoveryList
	require.NoError(t, groups.Unmarshal(u.Raw))
	require.Equal(t, "apiregistration.k8s.io", groups.Items[0].Name)
	require.Equal(t, typeYAML+aggregated,
		w.do(w.http, "GET", "/api", "", "Accept", typeYAML+aggregated).header.Get("Content-Type"))
	require.Equal(t, typeJSON,
		w.do(w.http, "GET", "/api", "", "Accept", "application/json,"+typeProto+aggregated).header.Get("Content-Type"),
		"the first one that is served")
	require.Equal(t, 406,
		w.do(w.http, "GET", "/apis", "", "Accept",
			"application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList").code)
	require.Equal(t, 406, w.do(w.http, "GET", "/apis/apps", "", "Accept", typeJSON+aggregated).code)
	require.Equal(t, 405, w.do(w.http, "POST", "/version", "{}").code)
}

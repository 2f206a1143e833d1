package upstream_test

import "strings"

// scenario is a sequence of requests about one subject.
type scenario struct {
	name      string
	exchanges []exchange
}

// manifest is an object that is created before the requests.
type manifest struct{ path, body string }

var prepared = []manifest{
	{
		"/api/v1/namespaces",
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: " + space + ", labels: {" + chosen + "-space: 'yes'}}\n",
	},
	{"/api/v1/namespaces", "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n"},
	{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.harbour.example.com}
spec:
  group: harbour.example.com
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat, listKind: BoatList, shortNames: [bt], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    selectableFields: [{jsonPath: .spec.colour}]
    subresources: {status: {}, scale: {specReplicasPath: .spec.crew, statusReplicasPath: .status.crew}}
    additionalPrinterColumns: [{name: Colour, type: string, jsonPath: .spec.colour}]
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            x-kubernetes-validations: [{rule: "self.colour != 'black'", message: no black boats}]
            properties:
              colour: {type: string, maxLength: 20}
              length: {type: integer, default: 7, minimum: 1}
              crew: {type: integer, default: 1}
              first: {type: string, default: one}
              sails: {type: array, items: {type: object, properties: {area: {type: integer, default: 3}}}}
              kind: {type: string, enum: [sloop, ketch]}
          status: {type: object, properties: {crew: {type: integer}, afloat: {type: boolean, default: true}}}
  - name: v2
    served: true
    storage: false
    deprecated: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              colour: {type: string}
              length: {type: integer, default: 9}
              crew: {type: integer}
              first: {type: string}
              second: {type: string, default: two}
              sails: {type: array, items: {type: object, properties: {area: {type: integer}}}}
              kind: {type: string}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`},
	{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: buoys.harbour.example.com}
spec:
  group: harbour.example.com
  scope: Cluster
  names: {plural: buoys, kind: Buoy}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`},
	{"/apis/rbac.authorization.k8s.io/v1/namespaces/" + space + "/roles", `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [secrets], resourceNames: [one], verbs: [get, update, patch]}
- {apiGroups: [""], resources: [pods/status], verbs: [patch]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings], verbs: [create, update, patch, get]}
`},
	{"/apis/rbac.authorization.k8s.io/v1/namespaces/" + space + "/rolebindings", `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`},
	{
		"/api/v1/namespaces/" + space + "/secrets",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: one}\nstringData: {a: b}\n",
	},
	{
		"/api/v1/namespaces/" + space + "/serviceaccounts", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: robot}\n",
	},
	{"/api/v1/namespaces/" + space + "/pods", runner("runner", "")},
	{"/api/v1/namespaces/" + space + "/pods", runner("placed", ", nodeName: nowhere")},
	{
		"/api/v1/namespaces/" + space + "/services",
		"apiVersion: v1\nkind: Service\nmetadata: {name: lonely}\nspec: {ports: [{name: http, port: 80}, {name: more, " +
			"port: 81}]}\n",
	},
}

func runner(name, more string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name +
		", labels: {app: runner}}\nspec: {containers: [{name: main, image: busybox}]" + more + "}\n"
}

var alice = []string{"Impersonate-User", "alice"}

// probes succeed once the prepared objects are in effect.
var probes = []exchange{
	{"", "GET", "/apis/harbour.example.com/v1/boats", "", nil},
	{"", "GET", "/apis/harbour.example.com/v2/boats", "", nil},
	{"", "GET", "/apis/harbour.example.com/v1/buoys", "", nil},
	{"", "GET", "/api/v1/namespaces/" + space + "/configmaps", "", alice},
}

func scenarios() []scenario {
	return []scenario{
		{"discovery", discoveries()}, {"paths", paths()}, {"versions of a custom resource", versions()},
		{"invalid custom resources", invalidBoats()}, {"definitions", definitions()},
		{"users", users()}, {"reviews", reviews()}, {"pods", podRequests()}, {"scale", scales()},
		{"fields", fieldSelectors()}, {"proxies", proxies()}, {"services", services()},
	}
}

func discoveries() (all []exchange) {
	const v2 = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	for _, path := range []string{
		"/api", "/apis", "/api/", "/apis/", "/api/v1", "/apis/apps", "/apis/apps/", "/apis/apps/v1",
		"/apis/harbour.example.com", "/apis/harbour.example.com/v1", "/apis/harbour.example.com/v2",
		"/apis/nonsense", "/apis/apps/v9", "/api/v2", "/apis/nonsense/v1",
	} {
		for _, accept := range []string{
			"", jsonType, yamlType, protoType, cborType, "text/plain", "*/*", jsonType + v2, protoType + v2, yamlType + v2,
			cborType + v2,
			jsonType + ";g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
			jsonType + ";g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList",
			jsonType + ";g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList," + jsonType + v2 + "," + jsonType,
			protoType + v2 + "," + jsonType, "text/plain," + protoType + v2,
			jsonType + v2 + ";profile=nopeer", "application/json;as=Table;v=v1;g=meta.k8s.io",
			jsonType + ";q=0.5," + protoType + v2 + ";q=0.9", "application/json;as=APIGroupDiscoveryList",
		} {
			all = append(all, exchange{path + " for " + accept, "GET", path, "", []string{"Accept", accept}})
		}
		for _, method := range []string{"HEAD", "POST", "PUT", "DELETE", "OPTIONS"} {
			all = append(all, exchange{method + " " + path, method, path, "", nil})
		}
		all = append(all,
			exchange{path + " with a bad etag", "GET", path, "", []string{"If-None-Match", `"x"`, "Accept", jsonType + v2}},
			exchange{path + " with any etag", "GET", path, "", []string{"If-None-Match", `*`, "Accept", jsonType + v2}})
	}
	return all
}

func paths() (all []exchange) {
	for _, path := range []string{
		"/", "/version", "/version/", "/healthz", "/livez", "/readyz", "/healthz/ping", "/healthz/nonsense",
		"/readyz?verbose", "/nonsense", "/api/v1/nonsense", "/apis/apps/v1/nonsense",
		"/api/v1/namespaces/" + space + "/nonsense", "/api/v1/namespaces/" + space + "/nonsense/x",
		"/api/v1/nodes/nonsense/nonsense", "/apis/apps/v1/namespaces/" + space + "/deployments/x/nonsense",
		"/api/v1/namespaces/" + space + "/nodes", "/apis/harbour.example.com/v1/nonsense",
		"/apis/harbour.example.com/v1/namespaces/" + space + "/buoys", "/api/v1/namespaces//configmaps", "//api/v1/nodes",
		"/api/v1/configmaps/x",
		"/api/v1/watch", "/api/v1/watch/nodes?timeoutSeconds=1", "/api/v1/proxy/nodes/x", "/openid/v1/jwks",
		"/.well-known/openid-configuration", "/swagger.json", "/logs", "/metrics/nonsense", "/debug/pprof/nonsense",
		"/openapi", "/openapi/v3/nonsense",
		"/api/v1/namespaces/" + space + "/status", "/api/v1/namespaces/" + space + "/finalize",
		"/api/v1/componentstatuses/nonsense",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "DELETE", "PATCH", "PUT"} {
			if method != "GET" && strings.Contains(path, "z") {
				continue
			}
			all = append(all, exchange{method + " " + path, method, path, "", nil})
		}
	}
	return all
}

const boatsPath = "/apis/harbour.example.com/v1/namespaces/" + space + "/boats"

var newerBoats = strings.Replace(boatsPath, "/v1/", "/v2/", 1)

func boat(version, name, rest string) string {
	return `{"apiVersion":"harbour.example.com/` + version + `","kind":"Boat","metadata":{"name":"` + name + `"}` + rest +
		`}`
}

// versions are requests that write custom resources in one version and read them in the other.
func versions() []exchange {
	j := []string{"Content-Type", jsonType}
	return []exchange{
		{"create in the second", "POST", newerBoats, boat("v2", "second", `,"spec":{"colour":"red"}`), j},
		{"get in the second", "GET", newerBoats + "/second", "", nil},
		{"get in the first", "GET", boatsPath + "/second", "", nil},
		{"create in the first", "POST", boatsPath, boat("v1", "first", `,"spec":{"colour":"red","sails":[{}]}`), j},
		{"get the first in the second", "GET", newerBoats + "/first", "", nil},
		{"get the first in the first", "GET", boatsPath + "/first", "", nil},
		{"list in the second", "GET", newerBoats, "", nil},
		{"list in the first", "GET", boatsPath, "", nil},
		{
			"create in the second what the first refuses", "POST", newerBoats,
			boat("v2", "black", `,"spec":{"colour":"black","kind":"raft","length":0}`), j,
		},
		{"create in the second without a spec", "POST", newerBoats, boat("v2", "bare", ``), j},
		{"get that in the first", "GET", boatsPath + "/bare", "", nil},
		{"get that in the second", "GET", newerBoats + "/bare", "", nil},
		{
			"create in the second, dry", "POST", newerBoats + "?dryRun=All",
			boat("v2", "dry", `,"spec":{"sails":[{},{"area":2}]}`), j,
		},
		{"update in the second", "PUT", newerBoats + "/second", boat("v2", "second", `,"spec":{"colour":"blue"}`), j},
		{
			"label in the second",
			"PATCH",
			newerBoats + "/second",
			`{"metadata":{"labels":{"a":"b"}}}`,
			[]string{"Content-Type", merge},
		},
		{"get the label in the first", "GET", boatsPath + "/second", "", nil},
		{
			"merge in the second",
			"PATCH",
			newerBoats + "/second",
			`{"spec":{"sails":[{}],"first":null,"second":null}}`,
			[]string{"Content-Type", merge},
		},
		{
			"merge in the first",
			"PATCH",
			boatsPath + "/second",
			`{"spec":{"first":null,"second":null,"crew":null}}`,
			[]string{"Content-Type", merge},
		},
		{"get that in the second again", "GET", newerBoats + "/second", "", nil},
		{
			"apply in the second",
			"PATCH",
			newerBoats + "/applied?fieldManager=m",
			boat("v2", "applied", `,"spec":{"colour":"green"}`),
			[]string{"Content-Type", apply},
		},
		{
			"apply in the first",
			"PATCH",
			boatsPath + "/applied?fieldManager=n",
			boat("v1", "applied", `,"spec":{"kind":"ketch"}`),
			[]string{"Content-Type", apply},
		},
		{
			"apply in the first with a conflict",
			"PATCH",
			boatsPath + "/applied?fieldManager=o",
			boat("v1", "applied", `,"spec":{"colour":"white"}`),
			[]string{"Content-Type", apply},
		},
		{
			"apply in the second again",
			"PATCH",
			newerBoats + "/applied?fieldManager=m",
			boat("v2", "applied", `,"spec":{"length":4}`),
			[]string{"Content-Type", apply},
		},
		{
			"status in the second",
			"PATCH",
			newerBoats + "/second/status",
			`{"status":{"crew":3,"more":1}}`,
			[]string{"Content-Type", merge},
		},
		{"that status in the first", "GET", boatsPath + "/second", "", nil},
		{
			"status in the first",
			"PATCH",
			boatsPath + "/second/status",
			`{"status":{"crew":4,"more":1}}`,
			[]string{"Content-Type", merge},
		},
		{"delete in the second", "DELETE", newerBoats + "/second", "", nil},
		{"watch in the second", "GET", newerBoats + "?watch=1&timeoutSeconds=1&resourceVersion=0", "", nil},
		{"delete all in the second", "DELETE", newerBoats, "", nil},
	}
}

func invalidBoats() (all []exchange) {
	for what, rest := range map[string]string{
		"no spec": ``, "a text for spec": `,"spec":"x"`, "null spec": `,"spec":null`,
		"a long colour":       `,"spec":{"colour":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`,
		"a number for colour": `,"spec":{"colour":5}`,
		"black":               `,"spec":{"colour":"black"}`, "no length": `,"spec":{"length":0}`,
		"a text for length": `,"spec":{"length":"x"}`, "half a length": `,"spec":{"length":1.5}`,
		"a whole float":        `,"spec":{"colour":"red","length":2.0}`,
		"another kind of boat": `,"spec":{"kind":"raft"}`, "sails of texts": `,"spec":{"sails":["x"]}`,
		"null colour": `,"spec":{"colour":null}`, "null length": `,"spec":{"length":null}`,
		"a large length":   `,"spec":{"length":99999999999999999999}`,
		"an unknown field": `,"spec":{"colour":"red","nonsense":{"deep":1}}`,
		"a status":         `,"spec":{"colour":"red"},"status":{"crew":5}`,
		"a bad status":     `,"spec":{"colour":"red"},"status":{"crew":"x"}`,
	} {
		for _, v := range []string{"Strict", "Warn", "Ignore"} {
			all = append(all, exchange{
				what + ", " + v,
				"POST",
				boatsPath + "?dryRun=All&fieldValidation=" + v,
				boat("v1", "invalid", rest),
				[]string{"Content-Type", jsonType},
			})
		}
	}
	return all
}

// definition returns a CustomResourceDefinition of moorings with other parts of its spec.
func definition(spec string) string {
	return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"moorings.harbour.example.com"},"spec":{"group":"harbour.example.com","scope":"Namespaced","names":{"plural":"moorings","kind":"Mooring"}` + spec + `}}`
}

func definitions() (all []exchange) {
	version := func(schema string) string {
		return `,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":` + schema + `}}]`
	}
	for what, spec := range map[string]string{
		"no versions": ``, "empty versions": `,"versions":[]`,
		"no schema":      `,"versions":[{"name":"v1","served":true,"storage":true}]`,
		"no storage":     `,"versions":[{"name":"v1","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}]`,
		"not structural": version(`{"properties":{"a":{}}}`), "a bad type": version(`{"type":"nonsense"}`),
		"a bad rule":    version(`{"type":"object","x-kubernetes-validations":[{"rule":"self.a =="}]}`),
		"a bad default": version(`{"type":"object","properties":{"a":{"type":"integer","default":"x"}}}`),
		"a bad pattern": version(`{"type":"object","properties":{"a":{"type":"string","pattern":"("}}}`),
		"a bad version": `,"versions":[{"name":"1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]`, "a bad column": `,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}},"additionalPrinterColumns":[{"name":"x","type":"nonsense","jsonPath":"a"}]}]`,
		"two storage versions": `,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}},{"name":"v2","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]`,
		"a list map without keys": version(
			`{"type":"object","properties":{"a":{"type":"array","x-kubernetes-list-type":"map","items":{"type":"object"}}}}`),
		"a costly rule": version(
			`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string","x-kubernetes-validations":[{"rule":"self.matches('.*')"}]}}}}`),
		"preserved fields":           `,"preserveUnknownFields":true` + version(`{"type":"object"}`),
		"a webhook without a client": `,"conversion":{"strategy":"Webhook"}` + version(`{"type":"object"}`),
		"good":                       version(`{"type":"object","x-kubernetes-preserve-unknown-fields":true}`),
		"metadata with rules": version(
			`{"type":"object","properties":{"metadata":{"type":"object","properties":{"name":{"type":"string","pattern":"a"},"labels":{"type":"object"}}}}}`),
	} {
		all = append(all, exchange{
			what,
			"POST",
			"/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All",
			definition(spec),
			[]string{"Content-Type", jsonType},
		})
	}
	return all
}

func users() (all []exchange) {
	ns := "/api/v1/namespaces/" + space
	rbac := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + space
	as := func(more ...string) []string {
		return append(append([]string{"Content-Type", jsonType}, alice...), more...)
	}
	role := func(name, rules string) string {
		return `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"` + name + `"},"rules":[` +
			rules + `]}`
	}
	all = []exchange{
		{"may list", "GET", ns + "/configmaps", "", as()},
		{
			"may not create", "POST", ns + "/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`, as(),
		},
		{"may not create a malformed object", "POST", ns + "/configmaps", `{`, as()},
		{"may not list elsewhere", "GET", "/api/v1/namespaces/other/configmaps", "", as()},
		{"may not list everywhere", "GET", "/api/v1/configmaps", "", as()},
		{"may not get nodes", "GET", "/api/v1/nodes", "", as()},
		{
			"may get one", "GET", ns + "/secrets/one", "",
			as("Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
		},
		{"may not get two", "GET", ns + "/secrets/two", "", as()},
		{"may not list secrets", "GET", ns + "/secrets", "", as()},
		{"may not list one", "GET", ns + "/secrets?fieldSelector=metadata.name%3Done", "", as()},
		{"may not delete one", "DELETE", ns + "/secrets/one", "", as()},
		{"may not delete all", "DELETE", ns + "/secrets", "", as()},
		{"may not watch", "GET", ns + "/pods?watch=1", "", as()},
		{"may not get a missing kind", "GET", ns + "/nonsense", "", as()},
		{"may not get the status", "GET", ns + "/pods/runner/status", "", as()},
		{"may not bind", "POST", ns + "/pods/runner/binding", `{}`, as()},
		{"may not exec", "POST", ns + "/pods/runner/exec?command=x", "", as()},
		{"may not proxy", "GET", ns + "/services/lonely/proxy/", "", as()},
		{"may discover", "GET", "/api", "", as()},
		{"may not read metrics", "GET", "/metrics", "", as()},
		{"may not read paths", "GET", "/nonsense", "", as()},
		{"may read the version", "GET", "/version", "", as()},
		{
			"may apply an existing object", "PATCH", ns + "/secrets/one?fieldManager=m&dryRun=All",
			`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"one","labels":{"a":"b"}}}`, as("Content-Type", apply),
		},
		{
			"may not apply a missing object", "PATCH", ns + "/secrets/two?fieldManager=m",
			`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"two"}}`, as("Content-Type", apply),
		},
		{
			"a role with its rights", "POST", rbac + "/roles",
			role("less", `{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}`), as(),
		},
		{
			"a role with more", "POST", rbac + "/roles",
			role("more",
				`{"apiGroups":[""],"resources":["secrets"],"verbs":["get","list"]},{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}`), as(),
		},
		{
			"a role update with more", "PUT", rbac + "/roles/less",
			role("less", `{"apiGroups":["apps"],"resources":["deployments"],"verbs":["delete"]}`), as(),
		},
		{
			"a binding to more", "POST", rbac + "/rolebindings",
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"more"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[]}`, as(),
		},
		{
			"a binding to a missing role", "POST", rbac + "/rolebindings",
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"more"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"none"},"subjects":[]}`, as(),
		},
		{
			"impersonates on",
			"GET",
			ns + "/configmaps",
			"",
			[]string{"Impersonate-User", "alice", "Impersonate-Group", "system:masters"},
		},
		{
			"impersonates with extra",
			"GET",
			ns + "/pods",
			"",
			[]string{"Impersonate-User", "alice", "Impersonate-Extra-Scopes", "a", "Impersonate-Uid", "7"},
		},
		{"impersonates a group alone", "GET", ns + "/pods", "", []string{"Impersonate-Group", "g"}},
		{
			"impersonates an account",
			"GET",
			ns + "/pods",
			"",
			[]string{"Impersonate-User", "system:serviceaccount:" + space + ":robot"},
		},
		{
			"impersonates a node",
			"GET",
			ns + "/pods",
			"",
			[]string{"Impersonate-User", "system:node:n", "Impersonate-Group", "system:nodes"},
		},
		{"impersonates anonymous", "GET", ns + "/pods", "", []string{"Impersonate-User", "system:anonymous"}},
		{"with a bad token", "GET", ns + "/pods", "", []string{"Authorization", "Bearer nonsense"}},
		{"with a bad scheme", "GET", ns + "/pods", "", []string{"Authorization", "Basic YTpi"}},
	}
	return all
}

func reviews() (all []exchange) {
	j := []string{"Content-Type", jsonType}
	for _, r := range []struct{ kind, path, spec string }{
		{"TokenReview", "/apis/authentication.k8s.io/v1/tokenreviews", `{"token":"nonsense"}`},
		{"TokenReview", "/apis/authentication.k8s.io/v1/tokenreviews", `{}`},
		{"TokenReview", "/apis/authentication.k8s.io/v1/tokenreviews", `{"token":"a","audiences":["b"]}`},
		{"SelfSubjectReview", "/apis/authentication.k8s.io/v1/selfsubjectreviews", ``},
		{"SelfSubjectAccessReview", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{}`},
		{
			"SelfSubjectAccessReview", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
			`{"resourceAttributes":{"verb":"get","resource":"pods"},"nonResourceAttributes":{"path":"/"}}`,
		},
		{
			"SelfSubjectAccessReview", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
			`{"resourceAttributes":{"verb":"get","resource":"pods","fieldSelector":{"rawSelector":"a=b","requirements":[{"key":"a","operator":"In","values":["b"]}]}}}`,
		},
		{
			"SelfSubjectAccessReview", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
			`{"nonResourceAttributes":{"path":"/x","verb":"get"}}`,
		},
		{
			"SubjectAccessReview", "/apis/authorization.k8s.io/v1/subjectaccessreviews",
			`{"user":"alice","resourceAttributes":{"namespace":"` + space + `","verb":"get","resource":"configmaps"}}`,
		},
		{
			"SubjectAccessReview", "/apis/authorization.k8s.io/v1/subjectaccessreviews",
			`{"user":"alice","resourceAttributes":{"namespace":"other","verb":"get","resource":"configmaps"}}`,
		},
		{
			"SubjectAccessReview", "/apis/authorization.k8s.io/v1/subjectaccessreviews",
			`{"resourceAttributes":{"namespace":"other","verb":"get","resource":"configmaps"}}`,
		},
		{
			"LocalSubjectAccessReview", "/apis/authorization.k8s.io/v1/namespaces/" + space + "/localsubjectaccessreviews",
			`{"user":"alice","resourceAttributes":{"namespace":"` + space + `","verb":"get","resource":"configmaps"}}`,
		},
		{
			"LocalSubjectAccessReview", "/apis/authorization.k8s.io/v1/namespaces/" + space + "/localsubjectaccessreviews",
			`{"user":"alice","resourceAttributes":{"namespace":"other","verb":"get","resource":"configmaps"}}`,
		},
		{"SelfSubjectRulesReview", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", `{}`},
	} {
		group := strings.Split(r.path, "/")[2] + "/v1"
		body := `{"apiVersion":"` + group + `","kind":"` + r.kind + `"`
		if r.spec != "" {
			body += `,"spec":` + r.spec
		}
		body += "}"
		all = append(all, exchange{r.kind + " " + r.spec, "POST", r.path, body, j},
			exchange{
				r.kind + " strict " + r.spec, "POST", r.path + "?fieldValidation=Strict&dryRun=All",
				strings.TrimSuffix(body, "}") + `,"nonsense":1}`, j,
			},
			exchange{r.kind + " bad dry run", "POST", r.path + "?dryRun=x", body, j},
			exchange{r.kind + " protobuf", "POST", r.path, body, append([]string{"Accept", protoType}, j...)},
			exchange{
				r.kind + " table", "POST", r.path, body,
				append([]string{"Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"}, j...),
			})
		if r.kind != "TokenReview" {
			all = append(all, exchange{
				r.kind + " of alice " + r.spec, "POST", r.path, body, append(append([]string{}, alice...), j...),
			})
		}
		for _, method := range []string{"GET", "PUT", "DELETE", "PATCH", "HEAD"} {
			all = append(all, exchange{r.kind + " " + method, method, r.path, "", j},
				exchange{r.kind + " " + method + " one", method, r.path + "/x", "", j})
		}
		all = append(all, exchange{r.kind + " nothing", "POST", r.path, "", j},
			exchange{r.kind + " half", "POST", r.path, "{", j},
			exchange{r.kind + " as text", "POST", r.path, body, []string{"Content-Type", "text/plain"}})
	}
	return all
}

func podRequests() []exchange {
	j := []string{"Content-Type", jsonType}
	ns := "/api/v1/namespaces/" + space
	binding := func(rest string) string {
		return `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"runner"}` + rest + `}`
	}
	eviction := func(rest string) string {
		return `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"runner"}` + rest + `}`
	}
	token := func(spec string) string {
		return `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":` + spec + `}`
	}
	return []exchange{
		{"bind without a target", "POST", ns + "/pods/runner/binding", binding(``), j},
		{"bind to nothing", "POST", ns + "/pods/runner/binding", binding(`,"target":{}`), j},
		{"bind to a pod", "POST", ns + "/pods/runner/binding", binding(`,"target":{"kind":"Pod","name":"x"}`), j},
		{"bind to a bad name", "POST", ns + "/pods/runner/binding", binding(`,"target":{"kind":"Node","name":""}`), j},
		{
			"bind another", "POST", ns + "/pods/runner/binding",
			strings.Replace(binding(`,"target":{"kind":"Node","name":"n"}`), "runner", "another", 1), j,
		},
		{
			"bind a missing one", "POST", ns + "/pods/none/binding",
			strings.Replace(binding(`,"target":{"kind":"Node","name":"n"}`), "runner", "none", 1), j,
		},
		{"bind, dry", "POST", ns + "/pods/runner/binding?dryRun=All", binding(`,"target":{"kind":"Node","name":"n"}`), j},
		{
			"bind with another uid", "POST", ns + "/pods/runner/binding",
			`{"apiVersion":"v1","kind":"Binding","metadata":{"name":"runner","uid":"11111111-2222-3333-4444-555555555555"},"target":{"kind":"Node","name":"n"}}`, j,
		},
		{"bind with bindings", "POST", ns + "/bindings", binding(`,"target":{"kind":"Node","name":"n"}`), j},
		{"bind again", "POST", ns + "/pods/runner/binding", binding(`,"target":{"kind":"Node","name":"n"}`), j},
		{"bind elsewhere", "POST", ns + "/pods/runner/binding", binding(`,"target":{"kind":"Node","name":"m"}`), j},
		{"get bindings", "GET", ns + "/bindings", "", nil},
		{"get a binding", "GET", ns + "/pods/runner/binding", "", nil},
		{"evict, dry", "POST", ns + "/pods/runner/eviction?dryRun=All", eviction(``), j},
		{"evict, dry in the body", "POST", ns + "/pods/runner/eviction", eviction(`,"deleteOptions":{"dryRun":["All"]}`), j},
		{
			"evict with another uid", "POST", ns + "/pods/runner/eviction",
			eviction(`,"deleteOptions":{"preconditions":{"uid":"x"}}`), j,
		},
		{"evict another", "POST", ns + "/pods/placed/eviction", eviction(``), j},
		{"evict a missing one", "POST", ns + "/pods/none/eviction", strings.Replace(eviction(``), "runner", "none", 1), j},
		{"evict with nothing", "POST", ns + "/pods/runner/eviction", ``, j},
		{"evict with another kind", "POST", ns + "/pods/runner/eviction", binding(``), j},
		{"log of an unplaced pod", "GET", ns + "/pods/runner/log", "", nil},
		{"log with a bad tail", "GET", ns + "/pods/runner/log?tailLines=-1", "", nil},
		{"log of a missing container", "GET", ns + "/pods/placed/log?container=none", "", nil},
		{"log of a missing node", "GET", ns + "/pods/placed/log", "", nil},
		{"log of a missing pod", "GET", ns + "/pods/none/log", "", nil},
		{"log with both sinces", "GET", ns + "/pods/placed/log?sinceSeconds=1&sinceTime=2020-01-01T00:00:00Z", "", nil},
		{"exec without a command", "POST", ns + "/pods/placed/exec", "", nil},
		{"exec in a missing container", "POST", ns + "/pods/placed/exec?command=x&container=none&stdout=1", "", nil},
		{"exec in a missing pod", "POST", ns + "/pods/none/exec?command=x&stdout=1", "", nil},
		{"attach to a missing pod", "POST", ns + "/pods/none/attach", "", nil},
		{"attach by put", "PUT", ns + "/pods/placed/attach", "", nil},
		{"forward to a missing pod", "POST", ns + "/pods/none/portforward", "", nil},
		{
			"update a pod's image",
			"PATCH",
			ns + "/pods/placed",
			`{"spec":{"containers":[{"name":"main","image":"other"}]}}`,
			[]string{"Content-Type", strategic},
		},
		{
			"update a pod's command",
			"PATCH",
			ns + "/pods/placed",
			`{"spec":{"containers":[{"name":"main","command":["x"]}]}}`,
			[]string{"Content-Type", strategic},
		},
		{
			"update a pod's status",
			"PATCH",
			ns + "/pods/placed/status",
			`{"status":{"phase":"Running","podIPs":[{"ip":"10.1.2.3"}],"podIP":"10.1.2.3"}}`,
			[]string{"Content-Type", strategic},
		},
		{
			"a bad phase",
			"PATCH",
			ns + "/pods/placed/status",
			`{"status":{"phase":"Nonsense"}}`,
			[]string{"Content-Type", strategic},
		},
		{
			"resize",
			"PATCH",
			ns + "/pods/placed/resize",
			`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"1"}}}]}}`,
			[]string{"Content-Type", strategic},
		},
		{
			"add an ephemeral container",
			"PATCH",
			ns + "/pods/placed/ephemeralcontainers?dryRun=All",
			`{"spec":{"ephemeralContainers":[{"name":"debug","image":"busybox"}]}}`,
			[]string{"Content-Type", strategic},
		},
		{"a token", "POST", ns + "/serviceaccounts/robot/token", token(`{"audiences":["a"],"expirationSeconds":600}`), j},
		{"a short token", "POST", ns + "/serviceaccounts/robot/token", token(`{"expirationSeconds":1}`), j},
		{"a long token", "POST", ns + "/serviceaccounts/robot/token", token(`{"expirationSeconds":99999999999}`), j},
		{"a token of a missing account", "POST", ns + "/serviceaccounts/none/token", token(`{}`), j},
		{
			"a token bound to a missing pod", "POST", ns + "/serviceaccounts/robot/token",
			token(`{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"none"}}`), j,
		},
		{
			"a token bound to another kind", "POST", ns + "/serviceaccounts/robot/token",
			token(`{"boundObjectRef":{"kind":"ConfigMap","apiVersion":"v1","name":"none"}}`), j,
		},
		{"a token, dry", "POST", ns + "/serviceaccounts/robot/token?dryRun=All", token(`{"audiences":["a"]}`), j},
		{"get a token", "GET", ns + "/serviceaccounts/robot/token", "", nil},
		{"delete gracefully", "DELETE", ns + "/pods/placed", "", nil},
		{"delete sooner", "DELETE", ns + "/pods/placed?gracePeriodSeconds=5", "", nil},
		{"delete later", "DELETE", ns + "/pods/placed?gracePeriodSeconds=500", "", nil},
		{"delete at once", "DELETE", ns + "/pods/placed?gracePeriodSeconds=0", "", nil},
		{"evict", "POST", ns + "/pods/runner/eviction", eviction(``), j},
	}
}

func scales() (all []exchange) {
	at := "/apis/apps/v1/namespaces/" + space + "/deployments/scaled"
	all = append(all,
		exchange{
			"create",
			"POST",
			"/apis/apps/v1/namespaces/" + space + "/deployments",
			`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"scaled"},"spec":{"replicas":2,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
			[]string{"Content-Type", jsonType},
		},
		exchange{
			"create a boat",
			"POST",
			boatsPath,
			boat("v1", "scaled", `,"spec":{"colour":"red"}`),
			[]string{"Content-Type", jsonType},
		})
	for _, on := range []string{at, boatsPath + "/scaled", newerBoats + "/scaled"} {
		scale := func(name, rest string) string {
			return `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"` + name + `","namespace":"` + space +
				`"` + rest + `}`
		}
		for _, x := range []exchange{
			{"get", "GET", on + "/scale", "", nil},
			{"get missing", "GET", on + "-none/scale", "", nil},
			{"get a table", "GET", on + "/scale", "", []string{"Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"}},
			{"put", "PUT", on + "/scale", scale("scaled", `},"spec":{"replicas":3}`), []string{"Content-Type", jsonType}},
			{
				"put less than none",
				"PUT",
				on + "/scale",
				scale("scaled", `},"spec":{"replicas":-1}`),
				[]string{"Content-Type", jsonType},
			},
			{
				"put another name",
				"PUT",
				on + "/scale",
				scale("other", `},"spec":{"replicas":3}`),
				[]string{"Content-Type", jsonType},
			},
			{
				"put an old revision",
				"PUT",
				on + "/scale",
				scale("scaled", `,"resourceVersion":"1"},"spec":{"replicas":3}`),
				[]string{"Content-Type", jsonType},
			},
			{
				"put its revision",
				"PUT",
				on + "/scale",
				scale("scaled", `,"resourceVersion":"$RV"},"spec":{"replicas":4}`),
				[]string{"Content-Type", jsonType},
			},
			{
				"put another uid",
				"PUT",
				on + "/scale",
				scale("scaled", `,"uid":"11111111-2222-3333-4444-555555555555"},"spec":{"replicas":3}`),
				[]string{"Content-Type", jsonType},
			},
			{
				"put another kind",
				"PUT",
				on + "/scale",
				`{"kind":"Deployment","apiVersion":"apps/v1"}`,
				[]string{"Content-Type", jsonType},
			},
			{
				"put missing",
				"PUT",
				on + "-none/scale",
				scale("scaled-none", `},"spec":{"replicas":3}`),
				[]string{"Content-Type", jsonType},
			},
			{"merge", "PATCH", on + "/scale?fieldManager=s", `{"spec":{"replicas":5}}`, []string{"Content-Type", merge}},
			{"merge a text", "PATCH", on + "/scale", `{"spec":{"replicas":"x"}}`, []string{"Content-Type", merge}},
			{"merge less than none", "PATCH", on + "/scale", `{"spec":{"replicas":-2}}`, []string{"Content-Type", merge}},
			{
				"merge strategically",
				"PATCH",
				on + "/scale?dryRun=All",
				`{"spec":{"replicas":6}}`,
				[]string{"Content-Type", strategic},
			},
			{
				"merge nonsense",
				"PATCH",
				on + "/scale?fieldValidation=Strict",
				`{"spec":{"nonsense":6}}`,
				[]string{"Content-Type", merge},
			},
			{
				"apply",
				"PATCH",
				on + "/scale?fieldManager=applier",
				scale("scaled", `},"spec":{"replicas":7}`),
				[]string{"Content-Type", apply},
			},
			{
				"apply with force",
				"PATCH",
				on + "/scale?fieldManager=applier&force=true",
				scale("scaled", `},"spec":{"replicas":7}`),
				[]string{"Content-Type", apply},
			},
			{"post", "POST", on + "/scale", "{}", []string{"Content-Type", jsonType}},
			{"delete", "DELETE", on + "/scale", "", nil},
			{"look", "GET", on, "", nil},
		} {
			x.what = on[strings.LastIndex(on[:len(on)-7], "/")+1:] + ": " + x.what
			all = append(all, x)
		}
	}
	return append(all, exchange{"delete the boat", "DELETE", boatsPath + "/scaled", "", nil},
		exchange{"delete it", "DELETE", at, "", nil})
}

// fieldSelectors are lists by every field that upstream selects by, on every kind with such fields and on some without.
func fieldSelectors() (all []exchange) {
	labels := []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.restartPolicy", "spec.schedulerName",
		"spec.serviceAccountName", "spec.hostNetwork", "spec.host", "status.phase", "status.podIP",
		"status.podIPs", "status.hostIP", "status.nominatedNodeName", "spec.unschedulable", "status.replicas",
		"status.successful", "involvedObject.kind", "involvedObject.name", "involvedObject.uid", "involvedObject.fieldPath",
		"regarding.kind", "regarding.name",
		"reason", "reportingComponent", "reportingController", "source", "type", "spec.clusterIP", "spec.type",
		"spec.signerName", "spec.podName", "spec.driver", "spec.pool.name", "spec.group", "spec.ipAddress",
		"spec.parentRef.name", "spec.colour", "spec.length", "status.observedGeneration", "timestamp",
	}
	for _, kind := range []string{
		"/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces", "/api/v1/services", "/api/v1/secrets", "/api/v1/events",
		"/apis/events.k8s.io/v1/events", "/api/v1/configmaps", "/api/v1/replicationcontrollers", "/api/v1/persistentvolumes",
		"/api/v1/persistentvolumeclaims", "/apis/apps/v1/replicasets", "/apis/apps/v1/statefulsets", "/apis/batch/v1/jobs",
		"/apis/batch/v1/cronjobs", "/apis/certificates.k8s.io/v1/certificatesigningrequests",
		"/apis/certificates.k8s.io/v1/clustertrustbundles",
		"/apis/certificates.k8s.io/v1/podcertificaterequests", "/apis/resource.k8s.io/v1/resourceslices",
		"/apis/resource.k8s.io/v1/resourceclaims", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"/apis/apiregistration.k8s.io/v1/apiservices",
		"/apis/harbour.example.com/v1/boats", "/apis/harbour.example.com/v2/boats", "/apis/harbour.example.com/v1/buoys",
		"/apis/storage.k8s.io/v1/storageclasses", "/apis/rbac.authorization.k8s.io/v1/clusterroles",
		"/apis/coordination.k8s.io/v1/leases",
		"/apis/networking.k8s.io/v1/ipaddresses", "/apis/networking.k8s.io/v1/servicecidrs",
		"/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/componentstatuses",
	} {
		for _, label := range labels {
			all = append(all, exchange{
				kind + " by " + label, "GET", kind + "?fieldSelector=" + label + "%3Dno-such-value", "", nil,
			})
		}
		all = append(all,
			exchange{
				kind + " by nothing", "GET", kind + "?fieldSelector=metadata.namespace%3D,metadata.name%3Dno-such", "", nil,
			},
			exchange{"watch " + kind, "GET", kind + "?watch=1&timeoutSeconds=1&fieldSelector=nonsense%3Dx", "", nil},
			exchange{"delete " + kind, "DELETE", kind + "?fieldSelector=nonsense%3Dx&dryRun=All", "", nil})
	}
	ns := "/api/v1/namespaces/" + space
	return append(all,
		exchange{
			"address",
			"PATCH",
			ns + "/pods/runner/status",
			`{"status":{"podIP":"10.1.2.3","podIPs":[{"ip":"10.1.2.3"},{"ip":"fd00::1"}]}}`,
			[]string{"Content-Type", strategic},
		},
		exchange{"by address", "GET", ns + "/pods?fieldSelector=status.podIP%3D10.1.2.3", "", nil},
		exchange{"by addresses", "GET", ns + "/pods?fieldSelector=status.podIPs%3D10.1.2.3", "", nil},
		exchange{"by no addresses", "GET", ns + "/pods?fieldSelector=status.podIPs%3D", "", nil},
		exchange{"by the second address", "GET", ns + "/pods?fieldSelector=status.podIPs%3Dfd00::1", "", nil})
}

func proxies() (all []exchange) {
	ns := "/api/v1/namespaces/" + space
	for _, path := range []string{
		ns + "/services/none/proxy", ns + "/services/none/proxy/x", ns + "/services/lonely/proxy/",
		ns + "/services/lonely:nonsense/proxy/", ns + "/services/lonely:http/proxy/", ns + "/services/lonely:99/proxy/",
		ns + "/services/ftp:lonely:http/proxy/", ns + "/services/https:lonely:http/proxy/",
		ns + "/services/a:b:c:d/proxy/", ns + "/pods/none/proxy", ns + "/pods/none/proxy/", ns + "/pods/none:80/proxy/",
		ns + "/pods/none:nonsense/proxy/", ns + "/pods/runner/proxy/", ns + "/pods/runner:80/proxy/",
		"/api/v1/nodes/none/proxy", "/api/v1/nodes/none/proxy/", "/api/v1/nodes/none:10250/proxy/",
		"/api/v1/nodes/http:none:1:2/proxy/",
	} {
		for _, method := range []string{"GET", "POST", "DELETE", "HEAD", "OPTIONS"} {
			all = append(all, exchange{method + " " + path, method, path, "", nil})
		}
	}
	return all
}

func services() (all []exchange) {
	at := "/api/v1/namespaces/" + space + "/services"
	for what, spec := range map[string]string{
		"no ports": `{}`, "no spec": `null`, "headless": `{"clusterIP":"None"}`,
		"a bad address":        `{"clusterIP":"x","ports":[{"port":80}]}`,
		"an address elsewhere": `{"clusterIP":"1.2.3.4","ports":[{"port":80}]}`,
		"a port twice":         `{"ports":[{"port":80,"name":"a"},{"port":80,"name":"b"}]}`,
		"an unnamed port":      `{"ports":[{"port":80},{"port":81,"name":"b"}]}`, "a bad port": `{"ports":[{"port":0}]}`,
		"a large port": `{"ports":[{"port":70000}]}`, "a bad type": `{"type":"Nonsense","ports":[{"port":80}]}`,
		"a node port out of range":   `{"type":"NodePort","ports":[{"port":80,"nodePort":5}]}`,
		"a node port of a cluster's": `{"ports":[{"port":80,"nodePort":30007}]}`,
		"an external name":           `{"type":"ExternalName","externalName":"example.com"}`,
		"no external name":           `{"type":"ExternalName"}`,
		"a balancer":                 `{"type":"LoadBalancer","ports":[{"port":80}]}`,
		"both families":              `{"ipFamilyPolicy":"RequireDualStack","ports":[{"port":80}]}`,
		"the sixth":                  `{"ipFamilies":["IPv6"],"ports":[{"port":80}]}`,
		"preferring both":            `{"ipFamilyPolicy":"PreferDualStack","ports":[{"port":80}]}`,
		"affinity":                   `{"sessionAffinity":"ClientIP","ports":[{"port":80}]}`,
		"bad affinity":               `{"sessionAffinity":"Nonsense","ports":[{"port":80}]}`,
		"a bad policy":               `{"externalTrafficPolicy":"Local","ports":[{"port":80}]}`,
		"sources":                    `{"type":"LoadBalancer","loadBalancerSourceRanges":["x"],"ports":[{"port":80}]}`,
	} {
		body := `{"apiVersion":"v1","kind":"Service","metadata":{"name":"tried"},"spec":` + spec + `}`
		all = append(all, exchange{what + ", dry", "POST", at + "?dryRun=All", body, []string{"Content-Type", jsonType}},
			exchange{what, "POST", at, body, []string{"Content-Type", jsonType}},
			exchange{
				what + ", to a node port",
				"PATCH",
				at + "/tried",
				`{"spec":{"type":"NodePort"}}`,
				[]string{"Content-Type", merge},
			},
			exchange{
				what + ", to none", "PATCH", at + "/tried", `{"spec":{"clusterIP":"None"}}`, []string{"Content-Type", merge},
			},
			exchange{
				what + ", to a name",
				"PATCH",
				at + "/tried",
				`{"spec":{"type":"ExternalName","externalName":"example.com"}}`,
				[]string{"Content-Type", merge},
			},
			exchange{
				what + ", status",
				"PATCH",
				at + "/tried/status",
				`{"status":{"loadBalancer":{"ingress":[{"ip":"x"}]}}}`,
				[]string{"Content-Type", merge},
			},
			exchange{what + ", deleted", "DELETE", at + "/tried", "", nil})
	}
	return all
}

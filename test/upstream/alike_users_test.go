package upstream_test

import "strings"

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

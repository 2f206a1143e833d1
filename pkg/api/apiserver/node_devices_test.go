package apiserver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A node may read its own ResourceSlices and the resource claims of its pods, also claims that are created after the
// pod was bound. It may read no others.
func TestNodesReadTheirClaimsAndSlices(t *testing.T) {
	w := newWorld(t)
	one, two := w.as("system:node:n1", "system:nodes"), w.as("system:node:n2", "system:nodes")
	const group = "/apis/resource.k8s.io/v1"
	post := func(path, body string) {
		t.Helper()
		res := w.do(w.http, "POST", path, body)
		require.Equal(t, 201, res.code, string(res.body))
	}
	post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`)
	post(group+"/resourceslices",
		`{"metadata":{"name":"s"},"spec":{"driver":"d.example.com","nodeName":"n1","pool":{"name":"n1","generation":1,"resourceSliceCount":1},"devices":[{"name":"d"}]}}`)
	post(group+"/namespaces/default/resourceclaims",
		`{"metadata":{"name":"c"},"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"x"}}]}}}`)
	post("/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"default"}}`)
	post("/api/v1/namespaces/default/pods",
		`{"metadata":{"name":"p"},"spec":{"nodeName":"n1","containers":[{"name":"c","image":"i"}],"resourceClaims":[{"name":"r","resourceClaimTemplateName":"t"}]}}`)
	require.Eventually(t, func() bool {
		return w.do(one, "GET", group+"/resourceslices/s", "").code == 200
	}, 2*time.Minute, time.Millisecond)
	require.Equal(t, 403, w.do(two, "GET", group+"/resourceslices/s", "").code)
	require.Equal(t, 403, w.do(two, "DELETE", group+"/resourceslices/s", "").code)

	claim := group + "/namespaces/default/resourceclaims/c"
	require.Equal(t, 403, w.do(one, "GET", claim, "").code)
	res := w.do(w.http, "PATCH", "/api/v1/namespaces/default/pods/p/status",
		`{"status":{"resourceClaimStatuses":[{"name":"r","resourceClaimName":"c"}]}}`, "Content-Type",
		"application/merge-patch+json")
	require.Equal(t, 200, res.code, string(res.body))
	require.Eventually(t, func() bool { return w.do(one, "GET", claim, "").code == 200 }, 2*time.Minute, time.Millisecond)
	require.Equal(t, 403, w.do(two, "GET", claim, "").code)

	require.Equal(t, 200, w.do(one, "DELETE", group+"/resourceslices/s", "").code)
}

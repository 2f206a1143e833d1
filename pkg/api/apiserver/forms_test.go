package apiserver

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// Errors are encoded in the media type that the client accepts.
func TestErrorsInProtobuf(t *testing.T) {
	w := newWorld(t)
	r := w.do(w.http, "GET", "/api/v1/nodes/none", "", "Accept", typeProto)
	require.Equal(t, 404, r.code)
	require.Equal(t, typeProto, r.header.Get("Content-Type"))
	var u runtime.Unknown
	require.NoError(t, u.Unmarshal(r.body[len(protoMagic):]))
	var status metav1.Status
	require.NoError(t, status.Unmarshal(u.Raw))
	require.Equal(t, metav1.StatusReasonNotFound, status.Reason)
}

func TestEveryFormOfAnObject(t *testing.T) {
	w := newWorld(t)
	w.namespace("d")
	const maps = "/api/v1/namespaces/d/configmaps"
	r := w.do(w.http, "POST", maps, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: b}\n", "Content-Type",
		typeYAML)
	require.Equal(t, 201, r.code, "%s", r.body)
	var m corev1.ConfigMap
	require.NoError(t, json.Unmarshal(r.body, &m))
	require.Equal(t, "b", m.Data["a"])
	require.Equal(t, "ConfigMap", m.Kind)

	r = w.do(w.http, "GET", maps+"/m", "")
	require.True(t, strings.HasPrefix(string(r.body), `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"m"`),
		"%s", r.body)
	require.True(t, strings.HasSuffix(string(r.body), "}\n"))

	r = w.do(w.http, "GET", maps+"/m?pretty=true", "")
	require.Contains(t, string(r.body), "\n  \"kind\": \"ConfigMap\"")

	r = w.do(w.http, "GET", maps+"/m", "", "Accept", typeYAML)
	require.Equal(t, typeYAML, r.header.Get("Content-Type"))
	require.Contains(t, string(r.body), "kind: ConfigMap\n")

	ps := protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme)
	proto := func(b []byte) runtime.Object {
		obj, _, err := ps.Decode(b, nil, nil)
		require.NoError(t, err)
		return obj
	}
	r = w.do(w.http, "GET", maps+"/m", "", "Accept", typeProto+","+typeJSON)
	require.Equal(t, typeProto, r.header.Get("Content-Type"))
	require.Equal(t, "b", proto(r.body).(*corev1.ConfigMap).Data["a"])

	r = w.do(w.http, "GET", maps, "", "Accept", typeProto)
	list := proto(r.body).(*corev1.ConfigMapList)
	require.Len(t, list.Items, 1)
	require.NotEmpty(t, list.ResourceVersion)

	r = w.do(w.http, "GET", maps, "")
	var jl corev1.ConfigMapList
	require.NoError(t, json.Unmarshal(r.body, &jl))
	require.Equal(t, "ConfigMapList", jl.Kind)
	require.Equal(t, list.ResourceVersion, jl.ResourceVersion)
	require.Empty(t, jl.Items[0].Kind)

	r = w.do(w.http, "GET", "/api/v1/namespaces/none/configmaps", "")
	require.Contains(t, string(r.body), `"items":[]`)

	r = w.do(w.http, "GET", maps, "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	var table metav1.Table
	require.NoError(t, json.Unmarshal(r.body, &table), "%s", r.body)
	require.Equal(t, "Table", table.Kind)
	require.Equal(t, "Name", table.ColumnDefinitions[0].Name)
	require.Equal(t, "m", table.Rows[0].Cells[0])
	require.Contains(t, string(table.Rows[0].Object.Raw), `"PartialObjectMetadata"`)

	r = w.do(w.http, "GET", maps+"/m?includeObject=Object", "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	require.NoError(t, json.Unmarshal(r.body, &table), "%s", r.body)
	require.Contains(t, string(table.Rows[0].Object.Raw), `"kind":"ConfigMap"`)

	// Scales have columns of their own, as upstream.
	r = w.do(w.http, "POST", "/apis/apps/v1/namespaces/d/deployments",
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"},"spec":{"replicas":3,"selector":{"matchLabels":{"a":"b"}},`+
			`"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	require.Equal(t, 201, r.code, "%s", r.body)
	r = w.do(w.http, "GET", "/apis/apps/v1/namespaces/d/deployments/x/scale", "", "Accept",
		"application/json;as=Table;v=v1;g=meta.k8s.io")
	table = metav1.Table{}
	require.NoError(t, json.Unmarshal(r.body, &table), "%s", r.body)
	require.Len(t, table.ColumnDefinitions, 4)
	require.Equal(t, "Desired", table.ColumnDefinitions[1].Name)
	require.Equal(t, []any{"x", float64(3), float64(0)}, table.Rows[0].Cells[:3])

	r = w.do(w.http, "GET", maps, "", "Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
	var partials metav1.PartialObjectMetadataList
	require.NoError(t, json.Unmarshal(r.body, &partials), "%s", r.body)
	require.Equal(t, "m", partials.Items[0].Name)

	r = w.do(w.http, "GET", maps+"/m", "", "Accept",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
	require.Equal(t, typeProto, r.header.Get("Content-Type"))

	r = w.do(w.http, "PATCH", maps+"/m", `{"data":{"c":"d"}}`, "Content-Type", "application/merge-patch+json")
	require.Equal(t, 200, r.code, "%s", r.body)
	r = w.do(w.http, "PUT", maps+"/m", someMap)
	require.Equal(t, 200, r.code, "%s", r.body)
	r = w.do(w.http, "DELETE", maps+"/m", "")
	require.Equal(t, 200, r.code)
	require.Equal(t, metav1.StatusSuccess, r.status(t).Status)
	require.Equal(t, 404, w.do(w.http, "GET", maps+"/m", "").code)
}

package apiserver

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// fakeUsage has metrics for every node and pod.
type fakeUsage struct{}

func (fakeUsage) Nodes(_ context.Context, nodes []*corev1.Node) (out []*metricsv1beta1.NodeMetrics) {
	for _, n := range nodes {
		out = append(out, &metricsv1beta1.NodeMetrics{
			TypeMeta:   metav1.TypeMeta{Kind: "NodeMetrics", APIVersion: "metrics.k8s.io/v1beta1"},
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels},
			Usage:      corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")},
		})
	}
	return out
}

func (fakeUsage) Pods(_ context.Context, pods []*corev1.Pod) (out []*metricsv1beta1.PodMetrics) {
	for _, p := range pods {
		out = append(out, &metricsv1beta1.PodMetrics{
			TypeMeta:   metav1.TypeMeta{Kind: "PodMetrics", APIVersion: "metrics.k8s.io/v1beta1"},
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
		})
	}
	return out
}

func TestUsageIsServed(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Usage = fakeUsage{} })
	for _, name := range []string{"b", "a"} {
		require.Equal(t, 201,
			w.do(w.http, "POST", "/api/v1/nodes", `{"metadata":{"name":"`+name+`","labels":{"is":"`+name+`"}}}`).code)
	}
	const root = "/apis/metrics.k8s.io/v1beta1"
	names := func(path string) (out []string) {
		t.Helper()
		res := w.do(w.http, "GET", root+path, "")
		require.Equal(t, 200, res.code, string(res.body))
		var l metricsv1beta1.NodeMetricsList
		require.NoError(t, json.Unmarshal(res.body, &l))
		require.Equal(t, "NodeMetricsList", l.Kind)
		for _, n := range l.Items {
			out = append(out, n.Name)
		}
		return out
	}
	require.Equal(t, []string{"a", "b"}, names("/nodes"))
	require.Equal(t, []string{"b"}, names("/nodes?labelSelector=is%3Db"))
	require.Equal(t, []string{"a"}, names("/nodes?fieldSelector=metadata.name%3Da"))
	require.Contains(t, string(w.do(w.http, "GET", root+"/nodes/a", "").body), `"cpu":"250m"`)
	require.Contains(t, string(w.do(w.http, "GET", root, "").body), `"PodMetrics"`)
	for path, code := range map[string]int{
		"/nodes/none": 404, "/namespaces/default/pods/none": 404, "/namespaces/default/nodes": 404, "/pods/a": 404,
		"/nodes/a/status": 404,
		"/pods":           200, "/namespaces/default/pods": 200, "/nodes?labelSelector=!!": 400,
		"/nodes?fieldSelector=spec.x%3D1": 400,
		"/watch/nodes":                    405, "/nodes?watch=1": 405,
	} {
		require.Equal(t, code, w.do(w.http, "GET", root+path, "").code, path)
	}
	require.Equal(t, 405, w.do(w.http, "POST", root+"/nodes", `{}`).code)
	require.Equal(t, 405, w.do(w.http, "DELETE", root+"/nodes/a", "").code)
}

func TestUsageIsUnavailableWithoutNodes(t *testing.T) {
	w := newWorld(t)
	require.Equal(t, 503, w.do(w.http, "GET", "/apis/metrics.k8s.io/v1beta1/nodes", "").code)
}

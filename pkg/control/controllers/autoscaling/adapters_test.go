package autoscaling

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

// adapter maps each path with its query to a response.
type adapter map[string]string

func (a adapter) get(_ context.Context, path string, query url.Values) ([]byte, error) {
	if answer, ok := a[path+"?"+query.Encode()]; ok {
		return []byte(answer), nil
	}
	return nil, aggregated.ErrNotServed
}

func reading(a Adapters) *reconciler { return &reconciler{adapters: a} }

func TestMetricsOfAdapters(t *testing.T) {
	r := reading(adapter{
		"/apis/custom.metrics.k8s.io/v1beta2/namespaces/d/pods/*/rps?labelSelector=app%3Dx&metricLabelSelector=verb%3DGET": `{"items":[
			{"describedObject":{"name":"a"},"timestamp":"2026-01-02T03:04:05Z","windowSeconds":30,"value":"1500m"},{"describedObject":{"name":"b"},"value":"2"}]}`,
		"/apis/custom.metrics.k8s.io/v1beta1/namespaces/d/pods/*/old?labelSelector=app%3Dx":  `{"items":[{"describedObject":{"name":"a"},"metricName":"old","window":10,"value":"3"}]}`,
		"/apis/custom.metrics.k8s.io/v1beta2/namespaces/d/metrics/size?":                     `{"items":[{"describedObject":{"name":"d"},"value":"7"}]}`,
		"/apis/custom.metrics.k8s.io/v1beta2/namespaces/d/pods/*/none?labelSelector=app%3Dx": `{"items":[]}`,
		"/apis/custom.metrics.k8s.io/v1beta2/namespaces/d/pods/*/lies?labelSelector=app%3Dx": `{"items":[{"value":"many"}]}`,
		"/apis/external.metrics.k8s.io/v1beta1/namespaces/d/queue?labelSelector=q%3Done":     `{"items":[{"metricName":"queue","value":"4"},{"metricName":"queue","value":"500m"}]}`,
	}.get)
	metric := func(name string, labels map[string]string) autoscalingv2.MetricIdentifier {
		m := autoscalingv2.MetricIdentifier{Name: name}
		if labels != nil {
			m.Selector = &metav1.LabelSelector{MatchLabels: labels}
		}
		return m
	}
	pods := func(name string, labels map[string]string) Value {
		return r.ofPods(t.Context(), "d", "app=x", metric(name, labels))
	}
	v := pods("rps", map[string]string{"verb": "GET"})
	require.NoError(t, v.Err)
	require.Equal(t, Sample{At: v.Samples["a"].At, Window: 30 * time.Second, Value: 1500}, v.Samples["a"])
	require.Equal(t, int64(2000), v.Samples["b"].Value)
	require.Equal(t, time.Minute, v.Samples["b"].Window)
	require.Equal(t, Sample{Window: 10 * time.Second, Value: 3000}, pods("old", nil).Samples["a"], "of the older version")
	require.EqualError(t, pods("none", nil).Err, "unable to get metric none: no metrics returned from custom metrics API")
	require.ErrorContains(t, pods("lies", nil).Err, "quantities must match")
	require.ErrorIs(t, pods("unknown", nil).Err, errNoCustomMetrics)

	v = r.ofObject(t.Context(), "d", &autoscalingv2.ObjectMetricSource{
		DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Namespace", Name: "d", APIVersion: "v1"},
		Metric:          metric("size", nil),
	})
	require.Equal(t, Value{Total: 7000}, v)

	require.Equal(t, Value{Total: 4500}, r.external(t.Context(), "d", metric("queue", map[string]string{"q": "one"})))
	require.EqualError(t, r.external(t.Context(), "d", metric("other", nil)).Err,
		"unable to get external metric d/other/<none>: unable to fetch metrics from external metrics API: the server could "+
			"not find the requested resource (get other.external.metrics.k8s.io)")

	broken := errors.New("dead")
	r = reading(func(context.Context, string, url.Values) ([]byte, error) { return nil, broken })
	require.ErrorIs(t, r.external(t.Context(), "d", metric("queue", nil)).Err, broken)
	require.ErrorIs(t, pods("rps", nil).Err, broken)
	require.Error(t, reading(nil).ofPods(t.Context(), "d", "a=b", metric("rps", nil)).Err)
}

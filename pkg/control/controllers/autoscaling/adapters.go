package autoscaling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

// Adapters sends a GET request to an API server that serves custom.metrics.k8s.io or external.metrics.k8s.io. It
// returns aggregated.ErrNotServed if no server has the path's group and version.
type Adapters func(ctx context.Context, path string, query url.Values) ([]byte, error)

// defaultWindow is upstream's window of custom metrics that state none.
const defaultWindow = time.Minute

// custom is a response of custom.metrics.k8s.io, in v1beta2 or v1beta1, or of external.metrics.k8s.io.
type custom struct {
	Items []struct {
		DescribedObject struct {
			Name string `json:"name"`
		} `json:"describedObject"`
		Timestamp     metav1.Time       `json:"timestamp"`
		WindowSeconds *int64            `json:"windowSeconds"`
		Window        *int64            `json:"window"` // v1beta1
		Value         resource.Quantity `json:"value"`
	} `json:"items"`
}

// ask gets a path from the first of a group's versions that is served.
func (r *reconciler) ask(ctx context.Context, group string, versions []string, path string,
	query url.Values) (out custom, err error) {
	err = aggregated.ErrNotServed
	for _, version := range versions {
		if r.adapters == nil {
			break
		}
		var data []byte
		if data, err = r.adapters(ctx, "/apis/"+group+"/"+version+path, query); errors.Is(err, aggregated.ErrNotServed) {
			continue
		}
		if err == nil {
			err = json.Unmarshal(data, &out)
		}
		break
	}
	return out, err
}

func (r *reconciler) askCustom(ctx context.Context, path string, query url.Values) (custom, error) {
	out, err := r.ask(ctx, "custom.metrics.k8s.io", []string{"v1beta2", "v1beta1"}, path, query)
	switch {
	case errors.Is(err, aggregated.ErrNotServed):
		return out, errNoCustomMetrics
	case err != nil:
		return out, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	case len(out.Items) == 0:
		return out, errors.New("no metrics returned from custom metrics API")
	}
	return out, nil
}

func selecting(query url.Values, parameter string, s *metav1.LabelSelector) (url.Values, error) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil, err
	}
	if s != nil && !selector.Empty() {
		query.Set(parameter, selector.String())
	}
	return query, nil
}

func (r *reconciler) ofPods(ctx context.Context, namespace, selector string,
	m autoscalingv2.MetricIdentifier) (v Value) {
	query, err := selecting(url.Values{"labelSelector": {selector}}, "metricLabelSelector", m.Selector)
	var found custom
	if err == nil {
		found, err = r.askCustom(ctx, "/namespaces/"+namespace+"/pods/*/"+url.PathEscape(m.Name), query)
	}
	if err != nil {
		return Value{Err: fmt.Errorf("unable to get metric %s: %w", m.Name, err)}
	}
	v.Samples = make(map[string]Sample, len(found.Items))
	for _, i := range found.Items {
		s := Sample{At: i.Timestamp.Time, Window: defaultWindow, Value: i.Value.MilliValue()}
		for _, window := range []*int64{i.WindowSeconds, i.Window} {
			if window != nil {
				s.Window = time.Duration(*window) * time.Second
			}
		}
		v.Samples[i.DescribedObject.Name] = s
	}
	return v
}

func (r *reconciler) ofObject(ctx context.Context, namespace string, s *autoscalingv2.ObjectMetricSource) Value {
	d := s.DescribedObject
	path, err := r.objectPath(namespace, d)
	var query url.Values
	var found custom
	if err == nil {
		query, err = selecting(url.Values{}, "metricLabelSelector", s.Metric.Selector)
	}
	if err == nil {
		found, err = r.askCustom(ctx, path+"/"+url.PathEscape(s.Metric.Name), query)
	}
	if err != nil {
		return Value{
			Err: fmt.Errorf("unable to get metric %s on %s %s/%s: %w", s.Metric.Name, d.Kind, namespace, d.Name, err),
		}
	}
	return Value{Total: found.Items[0].Value.MilliValue()}
}

func (r *reconciler) objectPath(namespace string, d autoscalingv2.CrossVersionObjectReference) (string, error) {
	gv, err := schema.ParseGroupVersion(d.APIVersion)
	if err != nil {
		return "", err
	}
	gk := schema.GroupKind{Group: gv.Group, Kind: d.Kind}
	if gk == (schema.GroupKind{Kind: "Namespace"}) {
		return "/namespaces/" + url.PathEscape(d.Name) + "/metrics", nil
	}
	m, err := r.Client.RESTMapper().RESTMapping(gk, gv.Version)
	if err != nil {
		return "", err
	}
	path := "/" + m.Resource.GroupResource().String() + "/" + url.PathEscape(d.Name)
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		path = "/namespaces/" + namespace + path
	}
	return path, nil
}

func (r *reconciler) external(ctx context.Context, namespace string, m autoscalingv2.MetricIdentifier) (v Value) {
	query, err := selecting(url.Values{}, "labelSelector", m.Selector)
	var found custom
	if err == nil {
		found, err = r.ask(ctx, "external.metrics.k8s.io", []string{"v1beta1"},
			"/namespaces/"+namespace+"/"+url.PathEscape(m.Name), query)
	}
	switch {
	case errors.Is(err, aggregated.ErrNotServed):
		err = fmt.Errorf("unable to fetch metrics from external metrics API: %w (get %s.external.metrics.k8s.io)", err,
			m.Name)
	case err != nil:
		err = fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	case len(found.Items) == 0:
		err = errors.New("no metrics returned from external metrics API")
	}
	if err != nil {
		return Value{
			Err: fmt.Errorf("unable to get external metric %s/%s/%s: %w", namespace, m.Name,
				metav1.FormatLabelSelector(m.Selector), err),
		}
	}
	for _, i := range found.Items {
		v.Total += i.Value.MilliValue()
	}
	return v
}

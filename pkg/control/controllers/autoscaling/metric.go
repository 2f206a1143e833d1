package autoscaling

import (
	"errors"
	"fmt"
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Value is the current value of one of an autoscaler's metrics.
type Value struct {
	// Samples are the values of pods, by pod name, for resource and pod metrics.
	Samples map[string]Sample
	// Total is the value of an object metric, or the sum of an external metric, in thousandths.
	Total int64
	Err   error
}

type measured struct {
	proposal
	name   string // for messages
	status autoscalingv2.MetricStatus
	failed string // the reason of the ScalingActive condition if err is not nil
	err    error
}

func (o *Observed) measure(spec *autoscalingv2.MetricSpec, v Value, now time.Time) measured {
	t := o.tolerances()
	m := measured{status: autoscalingv2.MetricStatus{Type: spec.Type}}
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		s := spec.Resource
		current := autoscalingv2.MetricValueStatus{}
		m.failed = "FailedGetResourceMetric"
		m.resource(o, s.Name, "", s.Target, v, t, now, &current)
		m.status.Resource = &autoscalingv2.ResourceMetricStatus{Name: s.Name, Current: current}
		m.wrap("failed to get %s resource metric value", s.Name)
	case autoscalingv2.ContainerResourceMetricSourceType:
		s := spec.ContainerResource
		current := autoscalingv2.MetricValueStatus{}
		m.failed = "FailedGetContainerResourceMetric"
		m.resource(o, s.Name, s.Container, s.Target, v, t, now, &current)
		m.status.ContainerResource = &autoscalingv2.ContainerResourceMetricStatus{
			Name: s.Name, Container: s.Container, Current: current,
		}
		m.wrap("failed to get %s container metric value", s.Container)
	case autoscalingv2.PodsMetricSourceType:
		s := spec.Pods
		m.failed, m.name = "FailedGetPodsMetric", "pods metric "+s.Metric.Name
		if m.err = v.Err; m.err == nil && s.Target.AverageValue != nil {
			m.proposal, m.err = perPod(o.Pods, v.Samples, o.Scale.Spec.Replicas,
				target{amount: s.Target.AverageValue.MilliValue()}, "", "", t, now)
		}
		m.status.Pods = &autoscalingv2.PodsMetricStatus{
			Metric: s.Metric, Current: autoscalingv2.MetricValueStatus{AverageValue: milli(m.average)},
		}
		m.wrap("failed to get pods metric value")
	case autoscalingv2.ObjectMetricSourceType:
		s := spec.Object
		m.failed, m.name = "FailedGetObjectMetric", fmt.Sprintf("%s metric %s", s.DescribedObject.Kind, s.Metric.Name)
		m.status.Object = &autoscalingv2.ObjectMetricStatus{DescribedObject: s.DescribedObject, Metric: s.Metric}
		m.whole(o, s.Target, s.Metric, v, t, "object", &m.status.Object.Current)
		m.wrap("failed to get object metric value")
	case autoscalingv2.ExternalMetricSourceType:
		s := spec.External
		m.failed, m.name = "FailedGetExternalMetric", external(s.Metric)
		m.status.External = &autoscalingv2.ExternalMetricStatus{Metric: s.Metric}
		m.whole(o, s.Target, s.Metric, v, t, "external", &m.status.External.Current)
		m.wrap("failed to get %s external metric value", s.Metric.Name)
	default:
		m.failed, m.err = "InvalidMetricSourceType", fmt.Errorf("unknown metric source type %q", spec.Type)
	}
	if m.err != nil {
		m.status = autoscalingv2.MetricStatus{}
	}
	return m
}

// wrap adds context to the error. Conditions omit the context, so the cause is kept.
func (m *measured) wrap(format string, args ...any) {
	if m.err != nil {
		m.err = &metricError{what: fmt.Sprintf(format, args...), cause: m.err}
	}
}

// metricError adds context to an error. Conditions show only the cause.
type metricError struct {
	what  string
	cause error
}

func (e *metricError) Error() string { return e.what + ": " + e.cause.Error() }
func (e *metricError) Unwrap() error { return e.cause }

func (m *measured) resource(o *Observed, name corev1.ResourceName, inContainer string, to autoscalingv2.MetricTarget,
	v Value, t tolerances, now time.Time, current *autoscalingv2.MetricValueStatus) {
	format := resource.DecimalSI
	if name == corev1.ResourceMemory {
		format = resource.BinarySI
	}
	aim, word := target{}, "usage"
	switch {
	case to.AverageValue != nil:
		aim.amount, m.name = to.AverageValue.MilliValue(), string(name)+" resource"
	case to.AverageUtilization != nil:
		aim.utilization, word = *to.AverageUtilization, "utilization"
		m.name = string(name) + " resource utilization (percentage of request)"
		if inContainer != "" {
			m.name = string(name) + " container resource utilization (percentage of request)"
		}
	default:
		m.err = errors.New("invalid resource metric source: neither an average utilization target nor an average value " +
			"(usage) target was set")
		return
	}
	if m.err = v.Err; m.err == nil {
		m.proposal, m.err = perPod(o.Pods, v.Samples, o.Scale.Spec.Replicas, aim, name, inContainer, t, now)
	} else {
		m.err = fmt.Errorf("unable to get metrics for resource %s: %w", name, m.err)
	}
	if m.err != nil {
		m.err = fmt.Errorf("failed to get %s %s: %w", name, word, m.err)
		return
	}
	current.AverageValue = resource.NewMilliQuantity(m.average, format)
	if to.AverageValue == nil {
		current.AverageUtilization = new(m.utilization)
	}
}

// whole evaluates object and external metrics, which have one value for all pods.
func (m *measured) whole(o *Observed, to autoscalingv2.MetricTarget, metric autoscalingv2.MetricIdentifier, v Value,
	t tolerances, kind string, current *autoscalingv2.MetricValueStatus) {
	spec, have := o.Scale.Spec.Replicas, o.Scale.Status.Replicas
	perEach := to.AverageValue != nil
	switch {
	case to.AverageValue == nil && to.Value == nil:
		m.err = fmt.Errorf("invalid %s metric source: neither a value target nor an average value target was set", kind)
	case v.Err != nil && perEach:
		m.err = fmt.Errorf("failed to get %s %s metric: %w", metric.Name, kind, v.Err)
	case v.Err != nil && kind == "external":
		m.err = fmt.Errorf("failed to get external metric %s: %w", metric.Name, v.Err)
	case v.Err != nil:
		m.err = v.Err
	case perEach:
		m.name, m.replicas = external(metric), have
		each := float64(to.AverageValue.MilliValue())
		if !t.within(float64(v.Total) / (each * float64(have))) {
			m.replicas = count(float64(v.Total) / each)
		}
		average := v.Total
		if have > 0 {
			average = clamp64(math.Ceil(float64(v.Total) / float64(have)))
		}
		current.AverageValue = milli(average)
	default:
		ratio := float64(v.Total) / float64(to.Value.MilliValue())
		current.Value = milli(v.Total)
		switch {
		case spec == 0:
			m.replicas = count(ratio)
		case t.within(ratio):
			m.replicas = spec
		case len(o.Pods) == 0:
			m.err = fmt.Errorf("unable to calculate ready pods: %w", errNoPods)
		default:
			ready := 0
			for _, p := range o.Pods {
				if p.Status.Phase == corev1.PodRunning && isReady(p) {
					ready++
				}
			}
			m.replicas = count(ratio * float64(ready))
		}
	}
}

func milli(n int64) *resource.Quantity { return resource.NewMilliQuantity(n, resource.DecimalSI) }

func external(m autoscalingv2.MetricIdentifier) string {
	return fmt.Sprintf("external metric %s(%+v)", m.Name, m.Selector)
}

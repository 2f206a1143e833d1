package autoscaling

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// Observed is the observed state.
type Observed struct {
	Autoscaler *autoscalingv2.HorizontalPodAutoscaler
	Scale      *autoscalingv1.Scale
	// Unselectable says why the pods are unknown. The other two are the reasons of the condition and of the event.
	Unselectable, UnselectableReason, UnselectableEvent string
	Pods                                                []*corev1.Pod
	// Values are the current values of the autoscaler's metrics, in the order of its spec.
	Values  []Value
	History History
}

// Event is an event about the autoscaler.
type Event struct{ Type, Reason, Message string }

// Actions is the result of Plan.
type Actions struct {
	// Rescale means that the target must be scaled to Replicas. Reason is for the event.
	Rescale  bool
	Replicas int32
	Reason   string
	Status   autoscalingv2.HorizontalPodAutoscalerStatus
	Events   []Event
	History  History
	// Err says why some or all metrics could not be evaluated, or why the scale could not be written.
	Err error
}

func isReady(p *corev1.Pod) bool { return podstate.Ready(p) }

func (o *Observed) tolerances() tolerances {
	t := tolerances{tolerance, tolerance}
	if b := o.Autoscaler.Spec.Behavior; b != nil {
		if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
			t.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
		}
		if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
			t.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
		}
	}
	return t
}

// Plan computes the actions. It does not change o. The status is the one before the scale is written; Rescaled
// completes it.
func Plan(o Observed, now time.Time) Actions {
	hpa, current := o.Autoscaler, o.Scale.Spec.Replicas
	least := int32(1)
	if hpa.Spec.MinReplicas != nil {
		least = *hpa.Spec.MinReplicas
	}
	a := Actions{Status: *hpa.Status.DeepCopy(), History: o.History.after(now)}
	a.set(now, autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale",
		"the HPA controller was able to get the target's current scale")
	if len(a.History.Recommended) == 0 {
		a.History.Recommended = []Moment{{now, current}}
	}
	byItself := scaledToZero(hpa) // the autoscaler scaled to zero, not a user
	switch {
	case current == 0 && !(least != 0 && byItself) && !(byItself && ofWholes(hpa)):
		a.set(now, autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled",
			"scaling is disabled since the replica count of the target is zero")
		a.finish(o, 0, nil)
		return a
	case current > hpa.Spec.MaxReplicas:
		a.rescale(hpa.Spec.MaxReplicas, "Current number of replicas above Spec.MaxReplicas")
		a.finish(o, a.Replicas, nil)
		return a
	case current < least && current != 0:
		a.rescale(least, "Current number of replicas below Spec.MinReplicas")
		a.finish(o, a.Replicas, nil)
		return a
	}
	proposed, metric, statuses, ok := a.metrics(o, now)
	if !ok {
		a.Status.CurrentReplicas, a.Status.CurrentMetrics = current, statuses
		a.observe(hpa)
		a.Events = append(a.Events, Event{corev1.EventTypeWarning, "FailedComputeMetricsReplicas", a.Err.Error()})
		return a
	}
	reason := ""
	switch {
	case proposed > current:
		reason = metric + " above target"
	case proposed < current:
		reason = "All metrics below target"
	}
	l := limitsOf(hpa, current, least)
	stable := l.stabilize(proposed, a.History.Recommended, now)
	a.History.Recommended = append(a.History.Recommended, Moment{now, proposed})
	switch {
	case stable == proposed:
		a.set(now, autoscalingv2.AbleToScale, corev1.ConditionTrue, "ReadyForNewScale",
			"recommended size matches current size")
	case l.up != nil && proposed >= current:
		a.set(now, autoscalingv2.AbleToScale, corev1.ConditionTrue, "ScaleUpStabilized",
			"recent recommendations were lower than current one, applying the lowest recent recommendation")
	default:
		a.set(now, autoscalingv2.AbleToScale, corev1.ConditionTrue, "ScaleDownStabilized",
			"recent recommendations were higher than current one, applying the highest recent recommendation")
	}
	desired, why, message := l.limit(stable, a.History, now)
	limited := corev1.ConditionFalse
	if desired != stable {
		limited = corev1.ConditionTrue
	}
	a.set(now, autoscalingv2.ScalingLimited, limited, why, message)
	if current == 0 && least != 0 && desired < least {
		desired = least
		reason = cmp.Or(reason, "Current number of replicas below Spec.MinReplicas")
	}
	desired = max(min(desired, hpa.Spec.MaxReplicas), min(least, hpa.Spec.MaxReplicas))
	if desired != current {
		a.rescale(desired, reason)
	}
	a.finish(o, desired, statuses)
	return a
}

// metrics evaluates all metrics and returns the highest proposal. If a metric fails, proposals below the current
// count are ignored.
func (a *Actions) metrics(o Observed,
	now time.Time) (replicas int32, name string, statuses []autoscalingv2.MetricStatus, ok bool) {
	specs := o.Autoscaler.Spec.Metrics
	if o.Unselectable != "" {
		a.Events = append(a.Events, Event{corev1.EventTypeWarning, o.UnselectableEvent, o.Unselectable})
		message := o.Unselectable
		if o.UnselectableEvent == "SelectorRequired" {
			message = "the HPA target's scale is missing a selector"
		}
		a.set(now, autoscalingv2.ScalingActive, corev1.ConditionFalse, o.UnselectableReason, message)
		a.Err = fmt.Errorf("%s", o.Unselectable)
		return 0, "", nil, false
	}
	statuses = make([]autoscalingv2.MetricStatus, len(specs))
	failures := 0
	var first measured
	for i := range specs {
		m := o.measure(&specs[i], o.Values[i], now)
		statuses[i] = m.status
		if m.err != nil {
			if failures == 0 {
				first = m
			}
			failures++
			a.Events = append(a.Events, Event{corev1.EventTypeWarning, m.failed, cause(m.err).Error()})
			continue
		}
		if replicas == 0 || m.replicas > replicas {
			replicas, name = m.replicas, m.name
		}
	}
	if failures > 0 {
		a.Err = fmt.Errorf("invalid metrics (%v invalid out of %v), first error is: %w", failures, len(specs), first.err)
	}
	if failures >= len(specs) || failures > 0 && replicas < o.Scale.Spec.Replicas {
		if a.Err == nil {
			a.Err = fmt.Errorf("the autoscaler has no metrics")
		} else {
			a.set(now, autoscalingv2.ScalingActive, corev1.ConditionFalse, first.failed,
				fmt.Sprintf("the HPA was unable to compute the replica count: %v", cause(first.err)))
		}
		return 0, "", statuses, false
	}
	a.set(now, autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound",
		"the HPA was able to successfully calculate a replica count from "+name)
	return replicas, name, statuses, true
}

func cause(err error) error {
	if m, ok := err.(*metricError); ok { //nolint:errorlint // created above, never wrapped
		return m.cause
	}
	return err
}

func (a *Actions) rescale(n int32, reason string) { a.Rescale, a.Replicas, a.Reason = true, n, reason }

func (a *Actions) finish(o Observed, desired int32, statuses []autoscalingv2.MetricStatus) {
	if !a.Rescale {
		desired = o.Scale.Spec.Replicas
	}
	a.Replicas = desired
	a.Status.CurrentReplicas, a.Status.DesiredReplicas, a.Status.CurrentMetrics = o.Scale.Spec.Replicas, desired, statuses
	a.observe(o.Autoscaler)
}

func (a *Actions) observe(hpa *autoscalingv2.HorizontalPodAutoscaler) {
	a.Status.ObservedGeneration = new(hpa.Generation)
}

// Rescaled records the result of writing the scale.
func (a *Actions) Rescaled(o Observed, err error, now time.Time) {
	hpa, current := o.Autoscaler, o.Scale.Spec.Replicas
	if err != nil {
		a.Events = append(a.Events, Event{
			corev1.EventTypeWarning, "FailedRescale",
			fmt.Sprintf("New size: %d; reason: %s; error: %v", a.Replicas, a.Reason, err),
		})
		a.set(now, autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedUpdateScale",
			fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err))
		a.Status.DesiredReplicas = hpa.Status.DesiredReplicas
		a.Err = err
		return
	}
	a.Events = append(a.Events, Event{
		corev1.EventTypeNormal, "SuccessfulRescale", fmt.Sprintf("New size: %d; reason: %s", a.Replicas, a.Reason),
	})
	a.set(now, autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale",
		fmt.Sprintf("the HPA controller was able to update the target scale to %d", a.Replicas))
	if a.Replicas == 0 && ofWholes(hpa) {
		a.set(now, autoscalingv2.ScaledToZero, corev1.ConditionTrue, "ScaledToZero",
			"the HPA controller scaled the workload to zero")
	} else {
		a.set(now, autoscalingv2.ScaledToZero, corev1.ConditionFalse, "NotScaledToZero",
			"the HPA controller did not scale the workload to zero")
	}
	a.Status.LastScaleTime = new(metav1.NewTime(now))
	if hpa.Spec.Behavior != nil {
		if d := a.Replicas - current; d > 0 {
			a.History.Up = append(a.History.Up, Moment{now, d})
		} else {
			a.History.Down = append(a.History.Down, Moment{now, -d})
		}
	}
}

// Unreachable returns the actions for an autoscaler whose target's scale cannot be read.
func Unreachable(hpa *autoscalingv2.HorizontalPodAutoscaler, err error, now time.Time) Actions {
	a := Actions{
		Status: *hpa.Status.DeepCopy(),
		Err:    err,
		Events: []Event{{corev1.EventTypeWarning, "FailedGetScale", err.Error()}},
	}
	a.set(now, autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale",
		fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", err))
	return a
}

// set sets a condition. Its transition time changes only with its status.
func (a *Actions) set(now time.Time, kind autoscalingv2.HorizontalPodAutoscalerConditionType, is corev1.ConditionStatus,
	reason, message string) {
	i := slices.IndexFunc(a.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == kind
	})
	if i < 0 {
		i = len(a.Status.Conditions)
		a.Status.Conditions = append(a.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{Type: kind})
	}
	c := &a.Status.Conditions[i]
	if c.Status != is {
		c.LastTransitionTime = metav1.NewTime(now)
	}
	c.Status, c.Reason, c.Message = is, reason, message
}

func scaledToZero(hpa *autoscalingv2.HorizontalPodAutoscaler) bool {
	return slices.ContainsFunc(hpa.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.ScaledToZero && c.Status == corev1.ConditionTrue
	})
}

// ofWholes reports whether the autoscaler has a metric that has a value without pods.
func ofWholes(hpa *autoscalingv2.HorizontalPodAutoscaler) bool {
	return slices.ContainsFunc(hpa.Spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	})
}

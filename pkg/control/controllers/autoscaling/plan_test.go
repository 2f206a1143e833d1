package autoscaling

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// hpa returns an autoscaler with a target CPU utilization of 50 %.
func hpa(least, most int32,
	change ...func(*autoscalingv2.HorizontalPodAutoscaler)) *autoscalingv2.HorizontalPodAutoscaler {
	half := int32(50)
	a := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", Generation: 2}}
	a.Spec.MinReplicas, a.Spec.MaxReplicas = &least, most
	a.Spec.Metrics = []autoscalingv2.MetricSpec{
		{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
			Name:   corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &half},
		}},
	}
	for _, f := range change {
		f(a)
	}
	return a
}

func pod(i int, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("p", i)}}
	p.Spec.Containers = []corev1.Container{
		{
			Name:      "c",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		},
	}
	old := metav1.NewTime(now.Add(-time.Hour))
	p.Status = corev1.PodStatus{
		Phase:      corev1.PodRunning,
		StartTime:  &old,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: old}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// observed returns n ready pods with the given usage in millicores. A negative value means a pod without a sample.
func observed(a *autoscalingv2.HorizontalPodAutoscaler, uses ...int64) Observed {
	o := Observed{Autoscaler: a, Scale: &autoscalingv1.Scale{}}
	o.Scale.Spec.Replicas, o.Scale.Status.Replicas = int32(len(uses)), int32(len(uses))
	v := Value{Samples: map[string]Sample{}}
	for i, u := range uses {
		o.Pods = append(o.Pods, pod(i))
		if u >= 0 {
			v.Samples[fmt.Sprint("p", i)] = Sample{At: now, Window: 15 * time.Second, Value: u}
		}
	}
	o.Values = []Value{v}
	return o
}

func condition(a Actions,
	kind autoscalingv2.HorizontalPodAutoscalerConditionType) (out autoscalingv2.HorizontalPodAutoscalerCondition) {
	for _, c := range a.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return out
}

func TestPlan(t *testing.T) {
	object := func(a *autoscalingv2.HorizontalPodAutoscaler) {
		ten := resource.MustParse("10")
		a.Spec.Metrics = []autoscalingv2.MetricSpec{
			{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "queue"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &ten},
			}},
		}
	}
	external := func(total int64, replicas int32) Observed {
		o := observed(hpa(1, 10, object), make([]int64, replicas)...)
		o.Values = []Value{{Total: total}}
		return o
	}
	for name, c := range map[string]struct {
		o        Observed
		replicas int32
		active   string
		limited  string
		reason   string
	}{
		"up": {
			observed(hpa(1, 10), 1000, 1000), 4, "ValidMetricFound", withinRange,
			"cpu resource utilization (percentage of request) above target",
		},
		"within the tolerance": {observed(hpa(1, 10), 540, 540), 2, "ValidMetricFound", withinRange, ""},
		"down": {
			observed(hpa(1, 10), 100, 100, 100), 1, "ValidMetricFound", withinRange, "All metrics below target",
		},
		"at most": {
			observed(hpa(1, 3), 2000, 2000), 3, "ValidMetricFound", "TooManyReplicas",
			"cpu resource utilization (percentage of request) above target",
		},
		"at least": {
			observed(hpa(2, 9), 0, 0, 0), 2, "ValidMetricFound", "TooFewReplicas", "All metrics below target",
		},
		"not all at once": {
			observed(hpa(1, 100), 9000), 4, "ValidMetricFound", "ScaleUpLimit",
			"cpu resource utilization (percentage of request) above target",
		},
		"above the bounds": {
			observed(hpa(1, 2), 0, 0, 0), 2, "", "", "Current number of replicas above Spec.MaxReplicas",
		},
		"below the bounds": {
			observed(hpa(3, 5), 0), 3, "", "", "Current number of replicas below Spec.MinReplicas",
		},
		"disabled":                 {observed(hpa(1, 5)), 0, "ScalingDisabled", "", ""},
		"missing ones hold it":     {observed(hpa(1, 10), 100, -1, -1), 3, "ValidMetricFound", withinRange, ""},
		"missing ones use nothing": {observed(hpa(1, 10), 900, 900, -1, -1), 4, "ValidMetricFound", withinRange, ""},
		"external": {
			external(35_000, 2), 4, "ValidMetricFound", withinRange, "external metric queue(nil) above target",
		},
		"a huge lie": {
			external(math.MaxInt64, 2), 4, "ValidMetricFound", "ScaleUpLimit", "external metric queue(nil) above target",
		},
		"a negative lie": {
			external(math.MinInt64, 2), 1, "ValidMetricFound", "TooFewReplicas", "All metrics below target",
		},
		"huge usage in all the pods": {
			observed(hpa(1, 10), math.MaxInt64, math.MaxInt64), 4, "ValidMetricFound", "ScaleUpLimit",
			"cpu resource utilization (percentage of request) above target",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.History.Recommended = []Moment{{now.Add(-10 * time.Minute), 1}}
			a := Plan(c.o, now)
			require.NoError(t, a.Err)
			require.Equal(t, c.replicas, a.Replicas)
			require.Equal(t, c.replicas != c.o.Scale.Spec.Replicas, a.Rescale)
			require.Equal(t, c.active, condition(a, autoscalingv2.ScalingActive).Reason)
			require.Equal(t, c.limited, condition(a, autoscalingv2.ScalingLimited).Reason)
			if a.Rescale {
				require.Equal(t, c.reason, a.Reason)
			}
			require.Equal(t, c.o.Scale.Spec.Replicas, a.Status.CurrentReplicas)
			require.EqualValues(t, 2, *a.Status.ObservedGeneration)
		})
	}
}

func TestFailures(t *testing.T) {
	o := observed(hpa(1, 5), 1, 1)
	o.Values = []Value{{Err: errors.New("nobody knows")}}
	a := Plan(o, now)
	require.False(t, a.Rescale)
	c := condition(a, autoscalingv2.ScalingActive)
	require.Equal(t, "FailedGetResourceMetric", c.Reason)
	require.Equal(t,
		"the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for "+
			"resource cpu: nobody knows", c.Message)
	require.Equal(t, []string{"FailedGetResourceMetric", "FailedComputeMetricsReplicas"},
		[]string{a.Events[0].Reason, a.Events[1].Reason})
	require.Equal(t,
		"invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: failed to get cpu "+
			"utilization: unable to get metrics for resource cpu: nobody knows", a.Events[1].Message)

	o = observed(hpa(1, 5), 1, 1)
	o.Pods[1].Spec.Containers[0].Resources.Requests = nil
	require.Contains(t, condition(Plan(o, now), autoscalingv2.ScalingActive).Message,
		"missing request for cpu in container c of Pod p1")

	// One failing metric prevents scaling down but not scaling up.
	both := func(use int64) Actions {
		o := observed(hpa(1, 9), use, use)
		o.Autoscaler.Spec.Metrics = append(o.Autoscaler.Spec.Metrics, o.Autoscaler.Spec.Metrics[0])
		o.Values = append(o.Values, Value{Err: errors.New("x")})
		return Plan(o, now)
	}
	require.EqualValues(t, 4, both(1000).Replicas)
	require.False(t, both(10).Rescale)

	o = observed(hpa(1, 5), 1)
	o.Unselectable, o.UnselectableReason, o.UnselectableEvent = "two of them", "AmbiguousSelector", "AmbiguousSelector"
	a = Plan(o, now)
	require.False(t, a.Rescale)
	require.Equal(t, "AmbiguousSelector", condition(a, autoscalingv2.ScalingActive).Reason)

	a = Unreachable(hpa(1, 5), errors.New("no scale"), now)
	require.Equal(t, "FailedGetScale", condition(a, autoscalingv2.AbleToScale).Reason)
}

// TestStartingPods: the CPU usage of a starting pod does not count as load.
func TestStartingPods(t *testing.T) {
	o := observed(hpa(1, 10), 600, 5000)
	fresh := metav1.NewTime(now.Add(-10 * time.Second))
	o.Pods[1].Status.StartTime = &fresh
	o.Pods[1].Status.Conditions[0].LastTransitionTime = fresh
	require.EqualValues(t, 2, Plan(o, now).Replicas)
}

func TestScaleDownIsStabilized(t *testing.T) {
	o := observed(hpa(1, 10), 100, 100, 100)
	o.History.Recommended = []Moment{{now.Add(-4 * time.Minute), 3}}
	a := Plan(o, now)
	require.False(t, a.Rescale)
	require.Equal(t, "ScaleDownStabilized", condition(a, autoscalingv2.AbleToScale).Reason)
	require.Len(t, a.History.Recommended, 2)
	require.Len(t, o.History.Recommended, 1, "Plan does not change its argument")
	o.History.Recommended = []Moment{{now.Add(-6 * time.Minute), 3}}
	require.EqualValues(t, 1, Plan(o, now).Replicas)
}

func TestBehavior(t *testing.T) {
	zero, one := int32(0), resource.MustParse("1")
	disabled, least := autoscalingv2.DisabledPolicySelect, autoscalingv2.MinChangePolicySelect
	policy := func(kind autoscalingv2.HPAScalingPolicyType, value int32) autoscalingv2.HPAScalingPolicy {
		return autoscalingv2.HPAScalingPolicy{Type: kind, Value: value, PeriodSeconds: 60}
	}
	behave := func(up, down *autoscalingv2.HPAScalingRules) func(*autoscalingv2.HorizontalPodAutoscaler) {
		return func(a *autoscalingv2.HorizontalPodAutoscaler) {
			a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: up, ScaleDown: down}
		}
	}
	rules := func(s *autoscalingv2.ScalingPolicySelect,
		p ...autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
		return &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &zero, SelectPolicy: s, Policies: p}
	}
	pods, percent := autoscalingv2.PodsScalingPolicy, autoscalingv2.PercentScalingPolicy
	full := []int64{2000, 2000, 2000, 2000}
	idle := []int64{0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	for name, c := range map[string]struct {
		up, down *autoscalingv2.HPAScalingRules
		history  History
		uses     []int64
		replicas int32
	}{
		"one at a time":       {up: rules(nil, policy(pods, 1)), uses: full, replicas: 5},
		"by percent, rounded": {up: rules(nil, policy(percent, 10)), uses: full, replicas: 5},
		"the larger":          {up: rules(nil, policy(pods, 1), policy(percent, 100)), uses: full, replicas: 8},
		"the smaller":         {up: rules(&least, policy(pods, 1), policy(percent, 100)), uses: full, replicas: 5},
		"disabled":            {up: rules(&disabled), uses: full, replicas: 4},
		"already this minute": {
			up: rules(nil, policy(pods, 2)), history: History{Up: []Moment{{now.Add(-30 * time.Second), 2}}}, uses: full,
			replicas: 4,
		},
		"that was a while ago": {
			up: rules(nil, policy(pods, 2)), history: History{Up: []Moment{{now.Add(-90 * time.Second), 2}}}, uses: full,
			replicas: 6,
		},
		"down by one":         {down: rules(nil, policy(pods, 1)), uses: idle, replicas: 9},
		"down by half":        {down: rules(nil, policy(percent, 50)), uses: idle, replicas: 5},
		"down by the smaller": {down: rules(&least, policy(percent, 50), policy(pods, 1)), uses: idle, replicas: 9},
		"down by the larger":  {down: rules(nil, policy(percent, 50), policy(pods, 1)), uses: idle, replicas: 5},
		"never down":          {down: rules(&disabled), uses: idle, replicas: 10},
		"tolerant": {
			up: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &zero, Tolerance: &one}, uses: []int64{900},
			replicas: 1,
		},
		"default of scale down": {uses: idle, replicas: 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := observed(hpa(1, 100, behave(c.up, c.down)), c.uses...)
			o.History = c.history
			o.History.Recommended = []Moment{{now.Add(-10 * time.Minute), 1}}
			require.Equal(t, c.replicas, Plan(o, now).Replicas)
		})
	}
}

func TestRescaledIsRemembered(t *testing.T) {
	o := observed(hpa(1, 9, func(a *autoscalingv2.HorizontalPodAutoscaler) {
		a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{}
	}), 1000, 1000)
	a := Plan(o, now)
	a.Rescaled(o, nil, now)
	require.Equal(t, []Moment{{now, 2}}, a.History.Up)
	require.Equal(t, "SucceededRescale", condition(a, autoscalingv2.AbleToScale).Reason)
	require.Equal(t, "New size: 4; reason: cpu resource utilization (percentage of request) above target",
		a.Events[0].Message)
	a = Plan(o, now)
	a.Rescaled(o, errors.New("no"), now)
	require.Equal(t, "FailedUpdateScale", condition(a, autoscalingv2.AbleToScale).Reason)
	require.Empty(t, a.History.Up)
}

// TestNeverOutsideTheBounds: the bounds hold whatever pods report and the history contains, unless scaling is disabled.
func TestNeverOutsideTheBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := rapid.Int32Range(1, 10).Draw(t, "least")
		most := rapid.Int32Range(least, 20).Draw(t, "most")
		a := hpa(least, most)
		window := rapid.Int32Range(0, 600).Draw(t, "window")
		n := rapid.Int32Range(1, 10).Draw(t, "policy")
		behaves := rapid.Bool().Draw(t, "behavior")
		if behaves {
			rules := func() *autoscalingv2.HPAScalingRules {
				return &autoscalingv2.HPAScalingRules{
					StabilizationWindowSeconds: &window,
					Policies: []autoscalingv2.HPAScalingPolicy{
						{Type: autoscalingv2.PodsScalingPolicy, Value: n, PeriodSeconds: 60},
					},
				}
			}
			a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(), ScaleDown: rules()}
		}
		current := rapid.Int32Range(1, 25).Draw(t, "current")
		at, history := now, History{}
		changed := []Moment{}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			uses := make([]int64, current)
			for i := range uses {
				uses[i] = rapid.OneOf(rapid.Int64Range(-1, 3000), rapid.Just(int64(math.MaxInt64))).Draw(t, "use")
			}
			o := observed(a, uses...)
			o.History = history
			p := Plan(o, at)
			if p.Rescale {
				require.GreaterOrEqual(t, p.Replicas, least)
				require.LessOrEqual(t, p.Replicas, most)
				p.Rescaled(o, nil, at)
				if behaves && current >= least && current <= most {
					changed = append(changed, Moment{at, p.Replicas - current})
					up, down := int32(0), int32(0)
					for _, m := range changed {
						if m.At.After(at.Add(-time.Minute)) {
							up, down = up+max(m.N, 0), down+max(-m.N, 0)
						}
					}
					require.LessOrEqual(t, up-down, n, "no more than the policy allows in a minute")
					require.LessOrEqual(t, down-up, n)
				}
				current = p.Replicas
			}
			history = p.History
			at = at.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "wait")) * time.Second)
		}
		require.LessOrEqual(t, len(history.Recommended), 21+1)
	})
}

package autoscaling

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

const (
	// stabilization is the default window for scaling down: the highest recommendation in it counts
	// (--horizontal-pod-autoscaler-downscale-stabilization).
	stabilization = 5 * time.Minute
	// longest bounds an autoscaler's history: validation rejects longer windows and periods.
	longest = time.Hour
	// upFactor and upLeast limit a scale-up if no behavior is set.
	upFactor, upLeast = 2, 4
)

// Moment is a replica count, or a change of it, at a point in time.
type Moment struct {
	At time.Time
	N  int32
}

// History is the state of an autoscaler: its recommendations before limits, and the changes that it made.
type History struct{ Recommended, Up, Down []Moment }

func (h History) after(now time.Time) History {
	old := func(m Moment) bool { return now.Sub(m.At) > longest }
	return History{
		slices.DeleteFunc(slices.Clone(h.Recommended), old), slices.DeleteFunc(slices.Clone(h.Up), old),
		slices.DeleteFunc(slices.Clone(h.Down), old),
	}
}

// within returns the sum of the changes in a period of seconds.
func within(list []Moment, period int32, now time.Time) (n int32) {
	for _, m := range list {
		if m.At.After(now.Add(-time.Duration(period) * time.Second)) {
			n += m.N
		}
	}
	return n
}

type limits struct {
	current, least, most int32
	up, down             *autoscalingv2.HPAScalingRules // nil if no behavior is set
}

// stabilize bounds a scale-up by the lowest and a scale-down by the highest recommendation of its stabilization window.
func (l limits) stabilize(desired int32, h []Moment, now time.Time) int32 {
	upTo, downTo := desired, desired
	upWindow, downWindow := time.Duration(0), stabilization
	if l.up != nil {
		upWindow, downWindow = time.Duration(*l.up.StabilizationWindowSeconds)*time.Second, time.Duration(
			*l.down.StabilizationWindowSeconds)*time.Second
	}
	for _, m := range h {
		if m.At.After(now.Add(-upWindow)) {
			upTo = min(upTo, m.N)
		}
		if m.At.After(now.Add(-downWindow)) {
			downTo = max(downTo, m.N)
		}
	}
	if l.up == nil {
		return downTo
	}
	return min(max(l.current, upTo), downTo)
}

// limit restricts a stabilized recommendation. reason and message are upstream's.
func (l limits) limit(desired int32, h History, now time.Time) (n int32, reason, message string) {
	if l.up == nil {
		upTo := int32(min(max(upFactor*int64(l.current), upLeast), math.MaxInt32))
		switch {
		case desired < l.least:
			return l.least, "TooFewReplicas", "the desired replica count is less than the minimum replica count"
		case desired > min(l.most, upTo) && l.most > upTo:
			return upTo, "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"
		case desired > l.most:
			return l.most, "TooManyReplicas", "the desired replica count is more than the maximum replica count"
		}
		return desired, withinRange, withinMessage
	}
	switch {
	case desired > l.current:
		upTo := max(l.rate(l.up, h, now, 1), l.current)
		if l.most > upTo {
			if desired > upTo {
				return upTo, "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"
			}
		} else if desired > l.most {
			return l.most, "TooManyReplicas", "the desired replica count is more than the maximum replica count"
		}
	case desired < l.current:
		downTo := min(l.rate(l.down, h, now, -1), l.current)
		if l.least < downTo {
			if desired < downTo {
				return downTo, "ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate"
			}
		} else if desired < l.least {
			return l.least, "TooFewReplicas", "the desired replica count is less than the minimum replica count"
		}
	}
	return desired, withinRange, withinMessage
}

const (
	withinRange   = "DesiredWithinRange"
	withinMessage = "the desired count is within the acceptable range"
)

// rate returns the bound that the scaling policies set for scaling up (sign 1) or down (-1).
func (l limits) rate(rules *autoscalingv2.HPAScalingRules, h History, now time.Time, sign int32) int32 {
	selected := *rules.SelectPolicy
	if selected == autoscalingv2.DisabledPolicySelect {
		return l.current
	}
	found := false
	var out int32
	for _, p := range rules.Policies {
		start := float64(l.current) - float64(within(h.Up, p.PeriodSeconds, now)) +
			float64(within(h.Down, p.PeriodSeconds, now))
		var n int32
		switch {
		case p.Type == autoscalingv2.PodsScalingPolicy:
			n = clamp(start + float64(sign)*float64(p.Value))
		case sign > 0: // rounded up, otherwise a small count could never grow
			n = clamp(math.Ceil(start * (1 + float64(p.Value)/100)))
		default:
			n = clamp(math.Trunc(start * (1 - float64(p.Value)/100)))
		}
		further := (n > out) == (sign > 0) && n != out
		if !found || further == (selected != autoscalingv2.MinChangePolicySelect) && n != out {
			out, found = n, true
		}
	}
	if !found {
		return l.current
	}
	return out
}

// rulesOf applies the API server's defaults to scaling rules.
func rulesOf(given *autoscalingv2.HPAScalingRules, window int32,
	policies ...autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
	out := &autoscalingv2.HPAScalingRules{}
	if given != nil {
		out = given.DeepCopy()
	}
	if out.StabilizationWindowSeconds == nil {
		out.StabilizationWindowSeconds = &window
	}
	if out.SelectPolicy == nil {
		out.SelectPolicy = new(autoscalingv2.MaxChangePolicySelect)
	}
	if len(out.Policies) == 0 {
		out.Policies = policies
	}
	return out
}

func limitsOf(a *autoscalingv2.HorizontalPodAutoscaler, current, least int32) limits {
	l := limits{current: current, least: least, most: a.Spec.MaxReplicas}
	if b := a.Spec.Behavior; b != nil {
		l.up = rulesOf(b.ScaleUp, 0,
			autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
			autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15})
		l.down = rulesOf(b.ScaleDown, int32(stabilization.Seconds()),
			autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15})
	}
	return l
}

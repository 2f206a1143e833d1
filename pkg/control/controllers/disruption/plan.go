package disruption

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	pdbhelper "k8s.io/component-helpers/apps/poddisruptionbudget"

	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// deletionTimeout is how long an evicted pod counts as disrupted if it is not marked as deleted.
const deletionTimeout = 2 * time.Minute

// Observed is the observed state.
type Observed struct {
	Budget *policyv1.PodDisruptionBudget
	Pods   []*corev1.Pod
	// Expected is the sum of the scales of the pods' controllers. It is used only if NeedsScale returns true.
	Expected int64
}

// Actions is what to do.
type Actions struct {
	Status policyv1.PodDisruptionBudgetStatus
	// Overdue are the pods whose eviction was recorded but that were not deleted in time.
	Overdue []*corev1.Pod
	// Again is the time until the next recorded eviction expires, 0 if there is none.
	Again time.Duration
}

// NeedsScale reports whether the budget depends on the number of pods that the controllers want.
func NeedsScale(b *policyv1.PodDisruptionBudget) bool {
	return b.Spec.MaxUnavailable != nil || b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.String
}

// Plan computes the status. It does not change o.
func Plan(o Observed, now time.Time) (Actions, error) {
	expected, desired, err := counts(o)
	if err != nil {
		return Actions{}, err
	}
	var a Actions
	disrupted := map[string]metav1.Time{}
	var healthy int32
	for _, p := range o.Pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		if at, ok := o.Budget.Status.DisruptedPods[p.Name]; ok {
			left := at.Add(deletionTimeout).Sub(now)
			if left < 0 {
				a.Overdue = append(a.Overdue, p)
			} else {
				disrupted[p.Name] = at
				left = max(left, time.Millisecond)
				if a.Again == 0 || left < a.Again {
					a.Again = left
				}
				continue
			}
		}
		if podstate.Ready(p) {
			healthy++
		}
	}
	// Without expected pods no disruption is allowed: the first pods may appear before the next computation.
	allowed := max(healthy-desired, 0)
	if expected <= 0 {
		allowed = 0
	}
	next := o.Budget.DeepCopy()
	next.Status = policyv1.PodDisruptionBudgetStatus{
		CurrentHealthy: healthy, DesiredHealthy: desired, ExpectedPods: expected, DisruptionsAllowed: allowed,
		ObservedGeneration: o.Budget.Generation, Conditions: next.Status.Conditions,
	}
	if len(disrupted) > 0 {
		next.Status.DisruptedPods = disrupted
	}
	pdbhelper.UpdateDisruptionAllowedCondition(next)
	stamp(next, o.Budget, now)
	a.Status = next.Status
	return a, nil
}

// counts returns the number of expected pods, and how many of them must be healthy.
func counts(o Observed) (expected, desired int32, err error) {
	spec := &o.Budget.Spec
	whole := int32(min(o.Expected, math.MaxInt32))
	switch {
	case spec.MaxUnavailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, int(whole), true)
		if err != nil {
			return 0, 0, err
		}
		return whole, int32(max(int(whole)-n, 0)), nil
	case spec.MinAvailable == nil:
		return 0, 0, nil
	case spec.MinAvailable.Type == intstr.Int:
		return int32(len(o.Pods)), spec.MinAvailable.IntVal, nil
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, int(whole), true)
	if err != nil {
		return 0, 0, err
	}
	return whole, int32(min(n, math.MaxInt32)), nil
}

// Failed returns a status that allows no disruption because the pods could not be counted.
func Failed(b *policyv1.PodDisruptionBudget, err error, now time.Time) policyv1.PodDisruptionBudgetStatus {
	next := b.DeepCopy()
	next.Status.DisruptionsAllowed = 0
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
		Message: err.Error(), ObservedGeneration: next.Status.ObservedGeneration,
	})
	stamp(next, b, now)
	return next.Status
}

// stamp sets transition times from the reconciler's clock, which upstream's helpers do not use.
func stamp(next, was *policyv1.PodDisruptionBudget, now time.Time) {
	is := meta.FindStatusCondition(next.Status.Conditions, policyv1.DisruptionAllowedCondition)
	before := meta.FindStatusCondition(was.Status.Conditions, policyv1.DisruptionAllowedCondition)
	if is != nil && (before == nil || before.Status != is.Status) {
		is.LastTransitionTime = metav1.NewTime(now)
	}
}

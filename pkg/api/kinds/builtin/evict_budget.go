package builtin

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	pdbhelper "k8s.io/component-helpers/apps/poddisruptionbudget"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine/podstate"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// maxDisruptedPods limits the evictions of one budget that its controller has not seen yet, as upstream.
const maxDisruptedPods = 2000

var budgetKind = policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget")

// guarding returns the pod's budget, or nil. counted means that the eviction must be subtracted from the budget.
func guarding(on kind.Parent, pod *corev1.Pod) (budget *policyv1.PodDisruptionBudget, counted bool, err error) {
	for _, o := range on.Siblings(budgetKind) {
		b, ok := o.(*policyv1.PodDisruptionBudget)
		if !ok {
			continue
		}
		s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || !s.Matches(labels.Set(pod.Labels)) {
			continue // an invalid selector matches nothing
		}
		if budget != nil {
			return nil, false, severalBudgets
		}
		budget = b
	}
	if budget == nil {
		return nil, false, nil
	}
	if podstate.Ready(pod) {
		return budget, true, nil
	}
	if p := budget.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return budget, false, nil
	}
	s := &budget.Status
	return budget, s.CurrentHealthy < s.DesiredHealthy || s.DesiredHealthy <= 0, nil
}

// spend takes one disruption from a budget. The error says why the budget allows none.
func spend(on kind.Parent, b *policyv1.PodDisruptionBudget, dry bool) error {
	_, _, pod := on.Target()
	budget, err := on.Sibling(budgetKind, b.Name)
	if err != nil {
		return err
	}
	if dry {
		stored, err := budget.Current()
		if err != nil {
			return err
		}
		return allows(stored.(*policyv1.PodDisruptionBudget))
	}
	_, err = budget.Change(func(stored client.Object) (client.Object, error) {
		b := stored.(*policyv1.PodDisruptionBudget)
		if err := allows(b); err != nil {
			return nil, err
		}
		b.Status.DisruptionsAllowed--
		if b.Status.DisruptionsAllowed == 0 {
			pdbhelper.UpdateDisruptionAllowedCondition(b)
			for i := range b.Status.Conditions { // truncate, as the store does
				b.Status.Conditions[i].LastTransitionTime.Time = b.Status.Conditions[i].LastTransitionTime.Truncate(time.Second)
			}
		}
		if b.Status.DisruptedPods == nil {
			b.Status.DisruptedPods = map[string]metav1.Time{}
		}
		// Until the pod is deleted or two minutes have passed, the controller does not count it as healthy.
		b.Status.DisruptedPods[pod] = metav1.Time{Time: time.Now().Truncate(time.Second)}
		return b, nil
	})
	return err
}

// allows returns upstream's error if the budget allows no disruption.
func allows(b *policyv1.PodDisruptionBudget) error {
	s := &b.Status
	switch {
	case s.ObservedGeneration < b.Generation:
		return tryLater(b.Name)
	case s.DisruptionsAllowed < 0:
		return withBudgetError(b.Name, "pdb disruptions allowed is negative", "pdb disruptions allowed is negative")
	case len(s.DisruptedPods) > maxDisruptedPods:
		return withBudgetError(b.Name, "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
			"too many pending evictions not confirmed by PDB controller")
	case s.DisruptionsAllowed > 0:
		return nil
	}
	var message string
	c := meta.FindStatusCondition(s.Conditions, policyv1.DisruptionAllowedCondition)
	refused := c != nil && c.Status == metav1.ConditionFalse && c.Message != ""
	switch {
	case refused && c.Reason == policyv1.SyncFailedReason: // the numbers may be wrong
		message = fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %s",
			b.Name, c.Message)
	case s.CurrentHealthy <= s.DesiredHealthy:
		message = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, s.DesiredHealthy,
			s.CurrentHealthy)
	case refused:
		message = fmt.Sprintf("The disruption budget %s does not allow evicting pods currently (%s): %s", b.Name, c.Reason,
			c.Message)
	default:
		message = fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
	}
	return withCause(apierrors.NewTooManyRequests(wouldViolate, 0), message)
}

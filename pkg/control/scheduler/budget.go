package scheduler

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// budget is a disruption budget with a selector that selects pods.
type budget struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
}

// newBudget returns nil for budgets with an invalid or empty selector, which preemption ignores, as upstream.
func newBudget(b *policyv1.PodDisruptionBudget) *budget {
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil || s.Empty() {
		return nil
	}
	return &budget{b, s}
}

// budgets lists the disruption budgets. On an error it returns none, since budgets do not prevent preemption.
func (s *Scheduler) budgets() []*budget {
	var list policyv1.PodDisruptionBudgetList
	if err := s.client.Cache().List(context.Background(), &list); err != nil {
		s.log.Warn("could not list disruption budgets", "error", err)
		return nil
	}
	out := make([]*budget, 0, len(list.Items))
	for i := range list.Items {
		if b := newBudget(&list.Items[i]); b != nil {
			out = append(out, b)
		}
	}
	return out
}

// violations returns the pods whose eviction violates a budget if more important pods are evicted before. pods is
// sorted by importance, the most important last.
func violations(pods []*podInfo, budgets []*budget) map[*podInfo]bool {
	if len(budgets) == 0 {
		return nil
	}
	out := map[*podInfo]bool{}
	spent := make([]int32, len(budgets))
	for i := len(pods) - 1; i >= 0; i-- {
		p := pods[i]
		if len(p.pod.Labels) == 0 {
			continue
		}
		for j, b := range budgets {
			if b.Namespace != p.pod.Namespace || !b.selector.Matches(labels.Set(p.pod.Labels)) {
				continue
			}
			if _, evicted := b.Status.DisruptedPods[p.pod.Name]; evicted {
				continue // the API server has already counted it
			}
			if spent[j]++; spent[j] > b.Status.DisruptionsAllowed {
				out[p] = true
				break
			}
		}
	}
	return out
}

package registry

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func budgetTarget(name string) Target {
	return at(policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"), "work", name)
}

func (h *env) guard(name string, status policyv1.PodDisruptionBudgetStatus,
	change ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	one := intstr.FromInt32(1)
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work"}, Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
		},
	}
	for _, f := range change {
		f(b)
	}
	b = copied(put(h, budgetTarget(""), b))
	b.Status = status
	res, err := h.Update(h.ctx, sub(budgetTarget(name), "status"), b, metav1.UpdateOptions{})
	return answer[*policyv1.PodDisruptionBudget](h.t, res, err)
}

func (h *env) runs(name string, ready bool) *corev1.Pod {
	p := smallPod(name)
	p.Labels, p.Spec.NodeName = map[string]string{"app": "x"}, "n"
	p = copied(put(h, v1("Pod", ""), p))
	p.Status.Phase = corev1.PodRunning
	is := corev1.ConditionFalse
	if ready {
		is = corev1.ConditionTrue
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: is}}
	res, err := h.Update(h.ctx, sub(v1("Pod", name), "status"), p, metav1.UpdateOptions{})
	return answer[*corev1.Pod](h.t, res, err)
}

func (h *env) evict(pod string, o metav1.CreateOptions) error {
	_, err := h.Create(h.ctx, sub(v1("Pod", pod), "eviction"),
		&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: "work"}}, o)
	return err
}

func (h *env) budget(name string) *policyv1.PodDisruptionBudget {
	res, err := h.Get(h.ctx, budgetTarget(name), metav1.GetOptions{})
	return answer[*policyv1.PodDisruptionBudget](h.t, res, err)
}

func TestEvictionAsksTheBudget(t *testing.T) {
	always := policyv1.AlwaysAllow
	unhealthy := func(b *policyv1.PodDisruptionBudget) { b.Spec.UnhealthyPodEvictionPolicy = &always }
	ok := policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: 1,
		DisruptionsAllowed: 1,
		CurrentHealthy:     2,
		DesiredHealthy:     1,
		ExpectedPods:       2,
	}
	with := func(change func(*policyv1.PodDisruptionBudgetStatus)) policyv1.PodDisruptionBudgetStatus {
		s := *ok.DeepCopy()
		change(&s)
		return s
	}
	none := with(func(s *policyv1.PodDisruptionBudgetStatus) { s.DisruptionsAllowed, s.CurrentHealthy = 0, 1 })
	for name, c := range map[string]struct {
		status  policyv1.PodDisruptionBudgetStatus
		policy  func(*policyv1.PodDisruptionBudget)
		unready bool
		code    int32
		cause   string
		retry   int32
		spent   bool
	}{
		"allowed":      {status: ok, spent: true},
		"nothing left": {status: none, code: 429, cause: "The disruption budget b needs 1 healthy pods and has 1 currently"},
		"not observed": {
			status: with(func(s *policyv1.PodDisruptionBudgetStatus) { s.ObservedGeneration = 0 }), code: 429, retry: 10,
			cause: "The disruption budget b is still being processed by the server.",
		},
		"failed sync": {status: with(func(s *policyv1.PodDisruptionBudgetStatus) {
			s.DisruptionsAllowed = 0
			s.Conditions = []metav1.Condition{
				{
					Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
					Message: "why", LastTransitionTime: metav1.Now(),
				},
			}
		}), code: 429, cause: "The disruption budget b does not allow evicting pods currently because it failed sync: why"},
		"no reason": {status: with(func(s *policyv1.PodDisruptionBudgetStatus) { s.DisruptionsAllowed = 0 }), code: 429,
			cause: "The disruption budget b does not allow evicting pods currently"},
		"unhealthy, budget is kept": {
			status:  with(func(s *policyv1.PodDisruptionBudgetStatus) { s.DisruptionsAllowed = 0; s.CurrentHealthy = 1 }),
			unready: true,
		},
		"unhealthy, budget is not kept": {
			status:  with(func(s *policyv1.PodDisruptionBudgetStatus) { s.DisruptionsAllowed, s.CurrentHealthy = 0, 0 }),
			unready: true, code: 429, cause: "needs 1 healthy pods and has 0 currently",
		},
		"unhealthy ones may always go": {
			status:  with(func(s *policyv1.PodDisruptionBudgetStatus) { s.DisruptionsAllowed, s.CurrentHealthy = 0, 0 }),
			unready: true, policy: unhealthy,
		},
		"healthy ones may not always go": {status: none, policy: unhealthy, code: 429, cause: "needs 1 healthy pods"},
		"unhealthy, nothing needs be kept": {
			status: with(func(s *policyv1.PodDisruptionBudgetStatus) { s.DesiredHealthy = 0 }), unready: true, spent: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := build(t)
			if c.policy == nil {
				c.policy = func(*policyv1.PodDisruptionBudget) {}
			}
			h.guard("b", c.status, c.policy)
			h.runs("p", !c.unready)
			err := h.evict("p", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			require.Equal(t, c.status.DisruptionsAllowed, h.budget("b").Status.DisruptionsAllowed, "a dry run spends nothing")
			if c.code == 0 {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
			}
			err = h.evict("p", metav1.CreateOptions{})
			res, getErr := h.Get(h.ctx, v1("Pod", "p"), metav1.GetOptions{})
			p := answer[*corev1.Pod](t, res, getErr)
			if c.code != 0 {
				s := requireStatus(t, err, c.code, "Cannot evict pod as it would violate the pod's disruption budget.")
				require.Equal(t, policyv1.DisruptionBudgetCause, s.Details.Causes[0].Type)
				require.Contains(t, s.Details.Causes[0].Message, c.cause)
				require.Equal(t, c.retry, s.Details.RetryAfterSeconds)
				require.Nil(t, p.DeletionTimestamp)
				return
			}
			require.NoError(t, err)
			require.NotNil(t, p.DeletionTimestamp)
			b := h.budget("b")
			if c.spent {
				require.Equal(t, c.status.DisruptionsAllowed-1, b.Status.DisruptionsAllowed)
				require.Contains(t, b.Status.DisruptedPods, "p")
			} else {
				require.Equal(t, c.status.DisruptionsAllowed, b.Status.DisruptionsAllowed)
				require.Empty(t, b.Status.DisruptedPods)
			}
			require.NoError(t, h.evict("p", metav1.CreateOptions{}), "a pod that is going needs no budget")
		})
	}
}

func TestEvictionUnderTwoBudgets(t *testing.T) {
	h := build(t)
	h.guard("a", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1})
	h.guard("b", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1})
	h.runs("p", true)
	requireStatus(t, h.evict("p", metav1.CreateOptions{}), 500,
		"This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
}

// TestEvictionOfAWaitingPod: a pod that has not run yet needs no budget.
func TestEvictionOfAWaitingPod(t *testing.T) {
	h := build(t)
	h.guard("b", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1})
	p := smallPod("p")
	p.Labels = map[string]string{"app": "x"}
	put(h, v1("Pod", ""), p)
	require.NoError(t, h.evict("p", metav1.CreateOptions{}))
	_, err := h.Get(h.ctx, v1("Pod", "p"), metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
	requireStatus(t, h.evict("p", metav1.CreateOptions{}), 404)
}

func TestEvictionsDoNotOverspend(t *testing.T) {
	h := build(t)
	h.guard("b", policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: 1,
		DisruptionsAllowed: 2,
		CurrentHealthy:     8,
		DesiredHealthy:     6,
	})
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for _, n := range names {
		h.runs(n, true)
	}
	var wg sync.WaitGroup
	var done, refused atomic.Int32
	for _, n := range names {
		wg.Go(func() {
			switch err := h.evict(n, metav1.CreateOptions{}); {
			case err == nil:
				done.Add(1)
			case apierrors.IsTooManyRequests(err):
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 2, done.Load())
	require.EqualValues(t, 6, refused.Load())
	b := h.budget("b")
	require.Zero(t, b.Status.DisruptionsAllowed)
	require.Len(t, b.Status.DisruptedPods, 2)
	require.Equal(t, metav1.ConditionFalse, b.Status.Conditions[0].Status)
}

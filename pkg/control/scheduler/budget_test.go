package scheduler

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func testBudget(app string, allowed int32, disrupted ...string) *budget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app}}
	b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	b.Status.DisruptionsAllowed = allowed
	b.Status.DisruptedPods = map[string]metav1.Time{}
	for _, name := range disrupted {
		b.Status.DisruptedPods[name] = metav1.Now()
	}
	return newBudget(b)
}

func TestPreemptionPrefersVictimsThatViolateNoBudget(t *testing.T) {
	guarded := labelled("app", "guarded")
	for name, c := range map[string]struct {
		there   []bound
		budgets []*budget
		gone    []types.UID
		broken  int
	}{
		"another node": {
			[]bound{{testPod("x", cpu("4"), guarded, priority(1)), "a"}, {testPod("y", cpu("4"), priority(5)), "b"}},
			[]*budget{testBudget("guarded", 0)}, []types.UID{"y"}, 0,
		},
		"another pod of the node": {
			[]bound{
				{testPod("x", cpu("2"), guarded, priority(1)), "a"},
				{testPod("y", cpu("2"), priority(5)), "a"},
				{testPod("z", cpu("4"), priority(9)), "b"},
			},
			[]*budget{testBudget("guarded", 0)}, []types.UID{"y"}, 0,
		},
		"a budget that allows it": {
			[]bound{{testPod("x", cpu("4"), guarded, priority(1)), "a"}, {testPod("y", cpu("4"), priority(5)), "b"}},
			[]*budget{testBudget("guarded", 1)}, []types.UID{"x"}, 0,
		},
		"an eviction that is counted already": {
			[]bound{{testPod("x", cpu("4"), guarded, priority(1)), "a"}, {testPod("y", cpu("4"), priority(5)), "b"}},
			[]*budget{testBudget("guarded", 0, "x")}, []types.UID{"x"}, 0,
		},
		"no other choice": {
			[]bound{{testPod("x", cpu("4"), guarded, priority(1)), "a"}, {testPod("y", cpu("4"), priority(9)), "b"}},
			[]*budget{testBudget("guarded", 0)}, []types.UID{"x"}, 1,
		},
		"a budget of another namespace": {
			[]bound{{testPod("x", cpu("4"), guarded, priority(1)), "a"}, {testPod("y", cpu("4"), priority(5)), "b"}},
			[]*budget{func() *budget { b := testBudget("guarded", 0); b.Namespace = "other"; return b }()}, []types.UID{"x"}, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := world([]*corev1.Node{testNode("a"), testNode("b")}, c.there...)
			s.budgets = func() []*budget { return c.budgets }
			_, failed := s.pick(newPodInfo(testPod("p", cpu("1"), priority(9))))
			require.NotNil(t, failed)
			e, _ := failed.preempt()
			require.NotNil(t, e)
			var gone []types.UID
			for _, v := range e.victims {
				gone = append(gone, v.pod.UID)
			}
			require.Equal(t, c.gone, gone)
			require.Equal(t, c.broken, e.violations)
		})
	}
}

func TestEmptyBudgetsAreIgnoredByPreemption(t *testing.T) {
	require.Nil(t,
		newBudget(&policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}}))
}

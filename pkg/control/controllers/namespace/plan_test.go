package namespace

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

func TestPlan(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	message := func(cs []corev1.NamespaceCondition, t corev1.NamespaceConditionType) (corev1.ConditionStatus, string) {
		for _, c := range cs {
			if c.Type == t {
				return c.Status, c.Message
			}
		}
		return "", ""
	}
	ns := &corev1.Namespace{}
	cs, empty := Plan(ns, nil, now)
	require.True(t, empty)
	require.Len(t, cs, 5)

	cs, empty = Plan(ns,
		[]aggregated.Remaining{
			{Resource: "pods", Count: 2, Finalizers: map[string]int{"x/y": 1}},
			{Resource: "deployments.apps", Err: errors.New("no")},
		}, now)
	require.False(t, empty)
	status, text := message(cs, corev1.NamespaceContentRemaining)
	require.Equal(t, corev1.ConditionTrue, status)
	require.Equal(t, "Some resources are remaining: pods has 2 resource instances", text)
	_, text = message(cs, corev1.NamespaceFinalizersRemaining)
	require.Equal(t, "Some content in the namespace has finalizers remaining: x/y in 1 resource instances", text)
	status, text = message(cs, corev1.NamespaceDeletionContentFailure)
	require.Equal(t, corev1.ConditionTrue, status)
	require.Contains(t, text, "deployments.apps")

	ns.Status.Conditions = cs
	again, _ := Plan(ns,
		[]aggregated.Remaining{
			{Resource: "pods", Count: 2, Finalizers: map[string]int{"x/y": 1}},
			{Resource: "deployments.apps", Err: errors.New("no")},
		}, now.Add(time.Hour))
	require.Equal(t, cs, again, "times change only with the status")
}

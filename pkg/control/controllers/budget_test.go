package controllers_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// TestBudgetLimitsEvictions runs over HTTP with the rights of upstream's role.
func TestBudgetLimitsEvictions(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelWarn, HTTP: true})
	c.Node("a")
	d := deployment("web", "one", 4)
	third := intstr.FromString("25%")
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &third, Selector: d.Spec.Selector,
		},
	}
	c.Make(d, b)
	controlplane.Until(c, &appsv1.DeploymentList{}, "default", "web", done)
	full := func(b *policyv1.PodDisruptionBudget) bool {
		s := b.Status
		return s.ExpectedPods == 4 && s.CurrentHealthy == 4 && s.DesiredHealthy == 3 && s.DisruptionsAllowed == 1
	}
	controlplane.Until(c, &policyv1.PodDisruptionBudgetList{}, "default", "web", full)

	// With the only node cordoned, an evicted pod is not replaced.
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	controlplane.Edit(c, n, func(n *corev1.Node) { n.Spec.Unschedulable = true })
	var pods corev1.PodList
	require.NoError(t, c.List(c.Ctx, &pods, ctrl.InNamespace("default")))
	evict := func(p *corev1.Pod) error {
		return c.SubResource("eviction").Create(c.Ctx, p, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
		})
	}
	require.NoError(t, evict(&pods.Items[0]))
	err := evict(&pods.Items[1])
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	controlplane.Until(c, &policyv1.PodDisruptionBudgetList{}, "default", "web",
		func(b *policyv1.PodDisruptionBudget) bool {
			return b.Status.CurrentHealthy == 3 && b.Status.DisruptionsAllowed == 0 && len(b.Status.DisruptedPods) == 0
		})
	controlplane.Edit(c, n, func(n *corev1.Node) { n.Spec.Unschedulable = false })
	controlplane.Until(c, &policyv1.PodDisruptionBudgetList{}, "default", "web", full)
	require.NoError(t, evict(&pods.Items[1]))
}

// TestBudgetOfPodsThatCannotBeCounted: the budget allows no disruption, and its condition says why.
func TestBudgetOfPodsThatCannotBeCounted(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelError})
	c.Node("a")
	yes := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", Labels: map[string]string{"app": "x"},
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "u", Controller: &yes},
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}}}
	all := intstr.FromString("100%")
	c.Make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}})
	var owner corev1.ConfigMap
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "default", Name: "c"}, &owner))
	p.OwnerReferences[0].UID = owner.UID
	c.Make(p, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"}, Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &all, Selector: &metav1.LabelSelector{},
		},
	})
	b := controlplane.Until(c, &policyv1.PodDisruptionBudgetList{}, "default", "b",
		func(b *policyv1.PodDisruptionBudget) bool {
			return len(b.Status.Conditions) > 0
		})
	require.Equal(t, policyv1.SyncFailedReason, b.Status.Conditions[0].Reason)
	require.Equal(t, "configmaps does not implement the scale subresource", b.Status.Conditions[0].Message)
	require.Zero(t, b.Status.DisruptionsAllowed)
}

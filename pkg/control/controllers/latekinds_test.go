package controllers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// TestKindsThatComeLater: a kind that is added while the reconcilers run takes part in garbage collection,
// namespace deletion and quota. The same holds after it is removed and added again.
func TestKindsThatComeLater(t *testing.T) {
	c := start(t, controlplane.Options{})
	ctx := t.Context()
	for round := range 2 {
		row := own.Untyped{
			Kind:   schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Widget"},
			Plural: "widgets",
			Status: true,
		}.Row()
		require.NoError(t, c.Engine.Kinds.Change(ctx, nil, []*kind.Resource{row}))
		ns := fmt.Sprintf("late-%d", round)
		require.NoError(t, c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		widget := func(name string, owner ctrl.Object) *unstructured.Unstructured {
			u := row.New().(*unstructured.Unstructured)
			u.SetNamespace(ns)
			u.SetName(name)
			if owner != nil {
				gvk := owner.GetObjectKind().GroupVersionKind()
				u.SetOwnerReferences([]metav1.OwnerReference{
					{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: owner.GetName(), UID: owner.GetUID()},
				})
			}
			return u
		}
		parent := widget("parent", nil)
		require.NoError(t, c.Create(ctx, parent))
		child := widget("child", parent)
		require.NoError(t, c.Create(ctx, child))
		config := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c", OwnerReferences: child.GetOwnerReferences()},
		}
		require.NoError(t, c.Create(ctx, config))
		require.NoError(t, c.Delete(ctx, widget("parent", nil)))
		c.Gone(child)
		c.Gone(config)

		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "q"},
			Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/widgets.example.org": resource.MustParse("1")}}}
		require.NoError(t, c.Create(ctx, quota))
		require.Eventually(t, func() bool {
			return c.Get(ctx, ctrl.ObjectKeyFromObject(quota), quota) == nil && len(quota.Status.Hard) == 1
		}, controlplane.Patience, 2*time.Millisecond)
		last := widget("last", nil)
		require.NoError(t, c.Create(ctx, last))
		require.True(t, apierrors.IsForbidden(c.Create(ctx, widget("over", nil))))

		require.NoError(t, c.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		c.Gone(last)
		c.Gone(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
		require.NoError(t, c.Engine.Kinds.Change(ctx, []*kind.Resource{row}, nil))
	}
}

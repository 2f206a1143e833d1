package kontrol_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// TestKontrolApproval checks that each generation waits for its approval.
func TestKontrolApproval(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelError})
	c.Make(&kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Spec: kontrol.ClusterSpec{Local: true}})
	r := managed("careful", "here", configMapTemplate("careful", "b"))
	r.Spec.Approval = kontrol.ApprovalManual
	c.Make(r)
	waits := func(generation int64) *kontrol.Resource {
		t.Helper()
		controlplane.Until(c, &kontrol.AppliedStateList{}, "", "careful.here", func(a *kontrol.AppliedState) bool {
			return a.State.Reason == kontrol.ReasonApproval && a.State.AttemptedGeneration == generation
		})
		return controlplane.Until(c, &kontrol.ResourceList{}, "", "careful", func(r *kontrol.Resource) bool {
			return r.Status.ObservedGeneration == generation && r.Status.Message != ""
		}).DeepCopy()
	}
	approve := func(r *kontrol.Resource) {
		t.Helper()
		for { // Kontrol may update the status meanwhile
			r.Status.Approved = r.Generation
			err := c.Status().Update(c.Ctx, r)
			if err == nil {
				return
			}
			r = waits(r.Generation)
		}
	}
	approve(waits(1))
	c.in("careful", kontrol.StateSynced)
	c.has("careful", map[string]string{"a": "b"})
	c.Change(&kontrol.Resource{}, "careful", `{"spec":{"template":{"data":{"a":"c"}}}}`)
	second := waits(2)
	got, _ := c.configMap("careful")
	require.Equal(t, map[string]string{"a": "b"}, got.Data)
	approve(second)
	c.has("careful", map[string]string{"a": "c"})
	c.Change(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, "careful", `{"data":{"a":"drift"}}`)
	c.has("careful", map[string]string{"a": "c"})
}

// TestKontrolWindows checks that outside its windows a Resource is neither applied nor corrected. Its drift is
// reported, and its deletion does not wait.
func TestKontrolWindows(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelError})
	c.Make(&kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Spec: kontrol.ClusterSpec{Local: true}})
	shut := `{"spec":{"windows":[{"kind":"Deny","schedule":"0 * * * *","duration":"2h"}]}}`
	r := managed("nightly", "here", configMapTemplate("nightly", "b"))
	c.Make(r)
	c.in("nightly", kontrol.StateSynced)
	c.Change(&kontrol.Resource{}, "nightly", shut)
	controlplane.Until(c, &kontrol.AppliedStateList{}, "", "nightly.here", func(a *kontrol.AppliedState) bool {
		return a.State.Reason == kontrol.ReasonWindow
	})
	controlplane.Until(c, &kontrol.ResourceList{}, "", "nightly", func(r *kontrol.Resource) bool {
		return r.Status.State == kontrol.StateOutOfSync
	})
	c.Change(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, "nightly", `{"data":{"a":"drift"}}`)
	controlplane.Until(c, &kontrol.CurrentStateList{}, "", "nightly.here", func(s *kontrol.CurrentState) bool {
		return s.State.DriftCount == 1
	})
	got, _ := c.configMap("nightly")
	require.Equal(t, "drift", got.Data["a"])
	c.Change(&kontrol.Resource{}, "nightly",
		`{"spec":{"windows":[{"kind":"Allow","schedule":"0 * * * *","duration":"2h"}]}}`)
	c.has("nightly", map[string]string{"a": "b"})
	c.in("nightly", kontrol.StateSynced)
	c.Change(&kontrol.Resource{}, "nightly", shut)
	require.NoError(t, c.Delete(c.Ctx, r))
	c.Gone(r)
	_, ok := c.configMap("nightly")
	require.False(t, ok)
}

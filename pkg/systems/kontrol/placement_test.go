package kontrol_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// TestKontrolOverrides checks overrides and labels for the clusters of one Resource. A cluster without a needed label
// fails alone, a changed label is applied, and a cluster that no longer matches is handled as the deletion policy says.
func TestKontrolOverrides(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelError})
	other := c.beside("there")
	c.Make(&kontrol.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{"name": "here"}},
		Spec:       kontrol.ClusterSpec{Local: true},
	})
	r := managed("color", "", configMapTemplate("color", "plain"))
	r.Spec.ClusterSelector = &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: metav1.LabelSelectorOpExists}},
	}
	r.Spec.Overrides = []kontrol.Override{
		{Patch: []kontrol.PatchOperation{{Op: "add", Path: "/data/on", ValueFrom: &kontrol.ValueSource{Name: true}}}},
		{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "there"}},
			Patch: []kontrol.PatchOperation{{Op: "replace", Path: "/data/a", ValueFrom: &kontrol.ValueSource{Label: "color"}}}},
	}
	c.Make(r)
	c.has("color", map[string]string{"a": "plain", "on": "here"})
	failed := controlplane.Until(c, &kontrol.AppliedStateList{}, "", "color.there", func(a *kontrol.AppliedState) bool {
		return a.State.Status == kontrol.ApplyFailed
	})
	require.Equal(t, kontrol.ReasonOverride, failed.State.Reason)
	require.Contains(t, failed.State.Error, "cluster there has no label color: set it")
	controlplane.Until(c, &kontrol.ResourceList{}, "", "color", func(r *kontrol.Resource) bool {
		return r.Status.State == kontrol.StateOutOfSync && strings.HasPrefix(r.Status.Message, "on there: ") &&
			r.Status.Clusters.Synced == 1
	})
	_, made := other.configMap("color")
	require.False(t, made)

	c.Change(&kontrol.Cluster{}, "there", `{"metadata":{"labels":{"color":"red"}}}`)
	other.has("color", map[string]string{"a": "red", "on": "there"})
	c.in("color", kontrol.StateSynced)
	c.Change(&kontrol.Cluster{}, "there", `{"metadata":{"labels":{"color":"blue"}}}`)
	other.has("color", map[string]string{"a": "blue", "on": "there"})
	c.in("color", kontrol.StateSynced)

	// A value from a label stays when the label is removed, and the state reports it.
	c.Change(&kontrol.Cluster{}, "there", `{"metadata":{"labels":{"color":null}}}`)
	c.in("color", kontrol.StateOutOfSync)
	other.has("color", map[string]string{"a": "blue", "on": "there"})

	// Without the label the selector no longer matches the cluster.
	c.Change(&kontrol.Cluster{}, "there", `{"metadata":{"labels":{"name":null}}}`)
	controlplane.Until(c, &kontrol.ResourceList{}, "", "color", func(r *kontrol.Resource) bool {
		return r.Status.Clusters.Total == 1
	})
	c.Gone(&kontrol.AppliedState{ObjectMeta: metav1.ObjectMeta{Name: "color.there"}})
	_, made = other.configMap("color")
	require.False(t, made)
	c.has("color", map[string]string{"a": "plain", "on": "here"})
}

package pod

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	nodefeatures "k8s.io/component-helpers/nodedeclaredfeatures"
)

// The declared features are sorted, as the API requires, and known to upstream's framework.
func TestDeclaredFeatures(t *testing.T) {
	names := DeclaredFeatures()
	require.Len(t, names, len(honoured), "a feature that upstream does not know would never be declared")
	require.IsIncreasing(t, names)
	set, err := nodefeatures.DefaultFramework.MapSorted(names)
	require.NoError(t, err)
	require.False(t, set.IsEmpty())
}

func TestMissingFeatures(t *testing.T) {
	p := &corev1.Pod{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}, InitContainers: []corev1.Container{{Name: "i"}}},
	}
	require.Empty(t, missingFeatures(p))
	p.Spec.InitContainers[0].RestartPolicyRules = []corev1.ContainerRestartRule{
		{Action: corev1.ContainerRestartRuleActionRestartAllContainers},
	}
	require.Empty(t, missingFeatures(p), "declared")
	no := false
	p.Spec.HostNetwork, p.Spec.HostUsers = true, &no
	require.Equal(t, []string{"UserNamespacesHostNetworkSupport"}, missingFeatures(p))
}

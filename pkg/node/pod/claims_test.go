package pod

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// A pod is not reported as ended while its devices are prepared: the scheduler would give them to other pods.
func TestPodHasNotEndedWhileItsClaimsArePrepared(t *testing.T) {
	p := spec(corev1.RestartPolicyNever, nil, []string{"a"})
	o := up(run("a", 0, runtime.Exited, 0))
	o.Claimed = true
	d := Plan(p, o, now)
	require.True(t, d.Stopped)
	require.Equal(t, corev1.PodRunning, Status(p, o, d, Facts{Start: now}, now).Phase)
	o.Claimed = false
	require.Equal(t, corev1.PodSucceeded, Status(p, o, d, Facts{Start: now}, now).Phase)
}

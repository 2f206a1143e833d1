package pod

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coracle-dev/coracle/pkg/agent/runtime"
)

// TestPodLevelLimits: a container without a limit of its own gets the pod's, which it could exceed alone otherwise.
func TestPodLevelLimits(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("64Mi")}}}}
	free := &corev1.Container{}
	own := &corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("32Mi")}}}
	for _, tt := range []struct {
		pod           *corev1.Pod
		container     *corev1.Container
		memory, quota int64
	}{
		{p, free, 64 << 20, 20000},
		{p, own, 32 << 20, 10000},
		{&corev1.Pod{}, free, 0, 0},
		{&corev1.Pod{}, own, 32 << 20, 10000},
	} {
		r := resources(tt.pod, tt.container, 1<<30)
		require.Equal(t, tt.memory, r.MemoryBytes)
		require.EqualValues(t, tt.quota, r.CPUQuota)
		if tt.pod == p {
			require.Equal(t, runtime.PodLimits{MemoryBytes: 64 << 20, CPUQuota: 20000}, r.Pod)
		} else {
			require.Zero(t, r.Pod)
		}
	}
}

package pod

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// amountOf returns a ResourceList of CPU and memory; "" omits one.
func amountOf(cpu, memory string) corev1.ResourceList {
	l := corev1.ResourceList{}
	if cpu != "" {
		l[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		l[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return l
}

func TestPodLevelLimits(t *testing.T) {
	p := &corev1.Pod{
		Spec: corev1.PodSpec{
			Resources: &corev1.ResourceRequirements{Requests: amountOf("150m", "32Mi"), Limits: amountOf("200m", "64Mi")},
		},
	}
	free := &corev1.Container{}
	own := &corev1.Container{Resources: corev1.ResourceRequirements{Limits: amountOf("100m", "32Mi")}}
	asks := &corev1.Container{Resources: corev1.ResourceRequirements{Requests: amountOf("50m", "")}}
	for _, tt := range []struct {
		pod           *corev1.Pod
		container     *corev1.Container
		memory, quota int64
		shares        uint64
	}{
		{p, free, 64 << 20, 20000, 204},
		{p, own, 32 << 20, 10000, 102},
		{p, asks, 64 << 20, 20000, 51},
		{&corev1.Pod{}, free, 0, 0, 2},
		{&corev1.Pod{}, own, 32 << 20, 10000, 102},
	} {
		r := resources(tt.pod, tt.container, amountsOf(tt.pod, tt.container), 1<<30)
		require.Equal(t, tt.memory, r.MemoryBytes)
		require.EqualValues(t, tt.quota, r.CPUQuota)
		require.Equal(t, tt.shares, r.CPUShares)
	}
	require.Equal(t, runtime.PodLimits{CPUShares: 153, MemoryBytes: 64 << 20, CPUQuota: 20000}, podLimits(p))
	require.Equal(t, runtime.PodLimits{CPUShares: 51},
		podLimits(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{*free, *asks}}}))
}

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

// TestSwap checks which containers get swap with LimitedSwap, by the kubelet's table.
func TestSwap(t *testing.T) {
	node := capacity{memory: 1 << 30, swap: 512 << 20}
	ask := corev1.ResourceRequirements{Requests: amountOf("", "256Mi")}
	for name, tt := range map[string]struct {
		class    corev1.PodQOSClass
		priority int32
		ask      corev1.ResourceRequirements
		node     capacity
		want     int64
	}{
		"a quarter of the memory": {class: corev1.PodQOSBurstable, ask: ask, node: node, want: 128 << 20},
		"no swap for pods":        {class: corev1.PodQOSBurstable, ask: ask, node: capacity{memory: 1 << 30}},
		"no request":              {class: corev1.PodQOSBurstable, node: node},
		"more than the node has":  {class: corev1.PodQOSBurstable, ask: ask, node: capacity{memory: 1 << 20, swap: 1 << 30}},
		"a request equal to limits": {class: corev1.PodQOSBurstable, node: node,
			ask: corev1.ResourceRequirements{Requests: amountOf("", "256Mi"), Limits: amountOf("", "256Mi")}},
		"critical":   {class: corev1.PodQOSBurstable, priority: 2_000_000_000, ask: ask, node: node},
		"guaranteed": {class: corev1.PodQOSGuaranteed, ask: ask, node: node},
		"BestEffort": {class: corev1.PodQOSBestEffort, node: node},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Priority: &tt.priority}, Status: corev1.PodStatus{QOSClass: tt.class}}
		c := &corev1.Container{Resources: tt.ask}
		require.Equal(t, tt.want, resources(p, c, amountsOf(p, c), tt.node).SwapBytes, name)
	}
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
		r := resources(tt.pod, tt.container, amountsOf(tt.pod, tt.container), capacity{memory: 1 << 30})
		require.Equal(t, tt.memory, r.MemoryBytes)
		require.EqualValues(t, tt.quota, r.CPUQuota)
		require.Equal(t, tt.shares, r.CPUShares)
	}
	require.Equal(t, runtime.PodLimits{CPUShares: 153, MemoryBytes: 64 << 20, CPUQuota: 20000}, podLimits(p))
	require.Equal(t, runtime.PodLimits{CPUShares: 51},
		podLimits(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{*free, *asks}}}))
}

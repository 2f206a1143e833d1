package agent

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	kubelet "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
)

// TestKubeletConfiguration checks that upstream's type has all fields, under the same names.
func TestKubeletConfiguration(t *testing.T) {
	reserved, err := config.ParseReserved([]string{"cpu=100m", "memory=1Gi", "pid=100"})
	require.NoError(t, err)
	a := &Agent{port: 10250, machine: machine{memory: 8 << 30}, c: Config{
		Environment: pod.Environment{
			ClusterDNS: []netip.Addr{netip.MustParseAddr("10.43.0.10")},
		},
		ListenAddress: ":10250",
		MaxPods:       50,
		Taints:        []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}},
		Shutdown:      []config.ShutdownPeriod{{Priority: 7, Period: time.Minute}},
		Reserved:      reserved,
		Eviction:      eviction.Policy{Thresholds: config.DefaultThresholds(), Transition: 5 * time.Minute},
	}}
	text, err := json.Marshal(a.kubeletConfiguration())
	require.NoError(t, err)
	var k kubelet.KubeletConfiguration
	require.NoError(t, yaml.UnmarshalStrict(text, &k))
	require.Equal(t, "KubeletConfiguration", k.Kind)
	require.EqualValues(t, 10250, k.Port)
	require.EqualValues(t, 50, k.MaxPods)
	require.Equal(t, []string{"10.43.0.10"}, k.ClusterDNS)
	require.Equal(t, map[string]string{"cpu": "100m", "memory": "1Gi", "pid": "100"}, k.KubeReserved)
	require.Equal(t, "100Mi", k.EvictionHard["memory.available"])
	require.Equal(t, "5%", k.EvictionHard["nodefs.available"])
	require.Equal(t, 5*time.Minute, k.EvictionPressureTransitionPeriod.Duration)
	require.Equal(t, a.c.Taints, k.RegisterWithTaints)
	require.Equal(t, []kubelet.ShutdownGracePeriodByPodPriority{{Priority: 7, ShutdownGracePeriodSeconds: 60}},
		k.ShutdownGracePeriodByPodPriority)
}

package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDevicesThatEvictAtOnce are not offered to pods whose toleration is over, and to all others as they are.
func TestDevicesThatEvictAtOnce(t *testing.T) {
	at := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	added := metav1.NewTime(at.Add(-10 * time.Second))
	slice := &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Devices: []resourcev1.Device{{Name: "good"},
		{Name: "broken", Taints: []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: &added}}},
		{Name: "busy", Taints: []resourcev1.DeviceTaint{{Key: "busy", Effect: resourcev1.DeviceTaintEffectNoSchedule, TimeAdded: &added}}}}}}
	seconds := func(n int64) *int64 { return &n }
	toleration := resourcev1.DeviceToleration{Operator: resourcev1.DeviceTolerationOpExists, Effect: resourcev1.DeviceTaintEffectNoExecute}
	for _, c := range []struct {
		seconds []*int64 // of the tolerations
		offered int
	}{{nil, 3}, {[]*int64{nil}, 3}, {[]*int64{seconds(11)}, 3}, {[]*int64{seconds(10)}, 2}, {[]*int64{seconds(-1)}, 2}, {[]*int64{seconds(0), seconds(60)}, 2}, {[]*int64{seconds(0), nil}, 3}, {[]*int64{seconds(1 << 62)}, 3}} {
		var list []resourcev1.DeviceToleration
		for _, s := range c.seconds {
			one := toleration
			one.TolerationSeconds = s
			list = append(list, one)
		}
		for _, r := range []resourcev1.DeviceRequest{{Exactly: &resourcev1.ExactDeviceRequest{Tolerations: list}}, {FirstAvailable: []resourcev1.DeviceSubRequest{{}, {Tolerations: list}}}} {
			claim := &resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{r}}}}
			require.Len(t, lasting(slice, []*resourcev1.ResourceClaim{claim}, at).Spec.Devices, c.offered)
		}
	}
	require.Len(t, slice.Spec.Devices, 3, "the cache's slice is as it was")
}

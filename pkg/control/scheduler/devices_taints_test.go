package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A device from which the pod would be evicted at once is offered only to other pods.
func TestDevicesThatEvictAtOnce(t *testing.T) {
	at := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	added := metav1.NewTime(at.Add(-10 * time.Second))
	slice := &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Devices: []resourcev1.Device{{Name: "good"},
		{
			Name:   "broken",
			Taints: []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: &added}},
		},
		{
			Name:   "busy",
			Taints: []resourcev1.DeviceTaint{{Key: "busy", Effect: resourcev1.DeviceTaintEffectNoSchedule, TimeAdded: &added}},
		}}}}
	seconds := func(n int64) *int64 { return &n }
	toleration := resourcev1.DeviceToleration{
		Operator: resourcev1.DeviceTolerationOpExists, Effect: resourcev1.DeviceTaintEffectNoExecute,
	}
	for _, c := range []struct {
		seconds []*int64 // tolerationSeconds
		offered int
	}{{
		nil, 3,
	}, {[]*int64{nil}, 3}, {[]*int64{seconds(11)}, 3}, {[]*int64{seconds(10)}, 2}, {[]*int64{seconds(-1)}, 2},
		{[]*int64{seconds(0), seconds(60)}, 2}, {[]*int64{seconds(0), nil}, 3}, {[]*int64{seconds(1 << 62)}, 3}} {
		var list []resourcev1.DeviceToleration
		for _, s := range c.seconds {
			one := toleration
			one.TolerationSeconds = s
			list = append(list, one)
		}
		for _, r := range []resourcev1.DeviceRequest{
			{Exactly: &resourcev1.ExactDeviceRequest{Tolerations: list}},
			{FirstAvailable: []resourcev1.DeviceSubRequest{{}, {Tolerations: list}}},
		} {
			claim := &resourcev1.ResourceClaim{
				Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{r}}},
			}
			e := evictions{}
			e.add(slice)
			claims := []*resourcev1.ResourceClaim{claim}
			require.Len(t, e.spare(slice, claims, nil, at).Spec.Devices, c.offered)
			broken := deviceID{device: "broken"}
			require.Len(t, e.spare(slice, claims, map[deviceID]bool{broken: true}, at).Spec.Devices, 3,
				"what is in use consumes what others share with it")
			result := []resourcev1.AllocationResult{
				{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
					{Device: "good", Tolerations: list}, {Device: "busy", Tolerations: list}}}},
			}
			require.False(t, e.atOnce(result, at))
			result[0].Devices.Results = append(result[0].Devices.Results, resourcev1.DeviceRequestAllocationResult{
				Device: "broken", Tolerations: list,
			})
			require.Equal(t, c.offered < 3, e.atOnce(result, at))
			if r.Exactly != nil {
				r.Exactly.AllocationMode = resourcev1.DeviceAllocationModeAll
			} else {
				r.FirstAvailable[1].AllocationMode = resourcev1.DeviceAllocationModeAll
			}
			require.Len(t, e.spare(slice, claims, nil, at).Spec.Devices, 3, "all devices cannot be fewer")
		}
	}
	require.Len(t, slice.Spec.Devices, 3, "the cache's slice is as it was")
}

package scheduler

import (
	"testing"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
)

// Early alternatives give a higher score, for claims that have devices and for those that get them.
func TestEarlyAlternatives(t *testing.T) {
	claim := func() *resourcev1.ResourceClaim {
		return &resourcev1.ResourceClaim{
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
				{Name: "plain", Exactly: &resourcev1.ExactDeviceRequest{}},
				{Name: "r", FirstAvailable: []resourcev1.DeviceSubRequest{{Name: "best"}, {Name: "good"}}}}}},
		}
	}
	allocated := func(request string) resourcev1.AllocationResult {
		return resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{{Request: "plain"}, {Request: request}, {Request: request}},
			},
		}
	}
	c := &cycle{devices: &deviceCycle{wanted: []*resourcev1.ResourceClaim{claim()}, found: map[string]deviceResult{
		"a": {allocations: []resourcev1.AllocationResult{allocated("r/best")}},
		"b": {allocations: []resourcev1.AllocationResult{allocated("r/good")}}}}}
	require.True(t, prepareAlternatives(c))
	score := func(node string) int64 { return earlyAlternatives(c, newNodeInfo(node)) }
	require.EqualValues(t, 100, score("a"))
	require.EqualValues(t, 87, score("b"))
	require.EqualValues(t, 0, score("unknown"))
	held := heldClaim{ResourceClaim: claim()}
	a := allocated("r/good")
	held.Status.Allocation = &a
	c.devices.held = []heldClaim{held}
	require.EqualValues(t, 93, score("a"))
	require.EqualValues(t, 87, score("b"))
	require.False(t, prepareAlternatives(&cycle{}))
	require.False(t, prepareAlternatives(&cycle{devices: &deviceCycle{wanted: []*resourcev1.ResourceClaim{{}}}}))
}

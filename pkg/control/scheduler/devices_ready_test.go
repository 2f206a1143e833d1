package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Devices are ready if all conditions of all devices are true. One failure condition or the timeout ends the wait.
func TestReadiness(t *testing.T) {
	at := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	claim := func(age time.Duration, said ...[]string) *resourcev1.ResourceClaim {
		c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
		a := &resourcev1.AllocationResult{AllocationTimestamp: new(metav1.NewTime(at.Add(-age)))}
		for _, name := range []string{"x", "y"} {
			a.Devices.Results = append(a.Devices.Results, resourcev1.DeviceRequestAllocationResult{
				Driver: "d", Pool: "p", Device: name,
				BindingConditions: []string{"attached", "configured"}, BindingFailureConditions: []string{"broken"},
			})
		}
		a.Devices.Results = append(a.Devices.Results, resourcev1.DeviceRequestAllocationResult{
			Driver: "d", Pool: "p", Device: "plain",
		})
		c.Status.Allocation = a
		for i, conditions := range said {
			s := resourcev1.AllocatedDeviceStatus{
				Driver:     "d",
				Pool:       "p",
				Device:     []string{"x", "y", "z"}[i],
				Conditions: []metav1.Condition{{Type: "attached", Status: metav1.ConditionFalse}},
			}
			for _, name := range conditions {
				s.Conditions = append(s.Conditions, metav1.Condition{Type: name, Status: metav1.ConditionTrue, Reason: "R"})
			}
			c.Status.Devices = append(c.Status.Devices, s)
		}
		return c
	}
	both := []string{"configured"}
	for _, c := range []struct {
		name  string
		claim *resourcev1.ResourceClaim
		ready bool
		err   string
	}{
		{"nothing said", claim(time.Second), false, ""},
		{"one said", claim(time.Second, both), false, ""},
		{"one condition is false", claim(time.Second, both, both), false, ""},
		{"of another device", claim(time.Second, nil, nil, both), false, ""},
		{"failed", claim(time.Second, both, []string{"broken"}), false, "device binding failed: claim=c, reason=R"},
		{"late", claim(time.Minute, both), false, "device binding timeout: claim=c"},
		{"failed and late", claim(time.Minute, []string{"broken"}), false, "device binding failed"},
	} {
		ready, deadline, err := readiness(c.claim, time.Minute, at)
		require.Equal(t, c.ready, ready, c.name)
		if c.err != "" {
			require.ErrorContains(t, err, c.err, c.name)
			continue
		}
		require.NoError(t, err, c.name)
		require.Equal(t, at.Add(59*time.Second), deadline, c.name)
	}
	done := claim(time.Hour, both, both)
	for i := range done.Status.Devices {
		done.Status.Devices[i].Conditions[0].Status = metav1.ConditionTrue
	}
	ready, _, err := readiness(done, time.Minute, at)
	require.NoError(t, err)
	require.True(t, ready, "however late")
	done.Status.Allocation.Devices.Results = done.Status.Allocation.Devices.Results[2:]
	ready, _, err = readiness(done, time.Minute, at)
	require.NoError(t, err)
	require.True(t, ready, "without conditions")
}

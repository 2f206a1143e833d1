package dra

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"
)

func said(health drahealth.HealthStatus, message string, timeout int64) *drahealth.NodeWatchResourcesResponse {
	return &drahealth.NodeWatchResourcesResponse{
		Devices: []*drahealth.DeviceHealth{
			{Device: &drahealth.DeviceIdentifier{PoolName: "n", DeviceName: "gpu-0"}, Health: health, Message: message,
				HealthCheckTimeoutSeconds: timeout},
		},
	}
}

// tell sends a report and waits until it has been processed.
func (b *bench) tell(r *drahealth.NodeWatchResourcesResponse) {
	b.Helper()
	select {
	case b.says <- r:
	case <-time.After(patience):
		b.Fatal("the driver is not asked for health")
	}
	b.hears()
}

func (b *bench) hears() {
	b.Helper()
	select {
	case pods := <-b.changed:
		require.Equal(b, []types.UID{"a"}, pods)
	case <-time.After(patience):
		b.Fatal("no pod was notified")
	}
}

func (b *bench) health(want corev1.ResourceHealthStatus, message string) {
	b.Helper()
	p := user("a")
	h := corev1.ResourceHealth{ResourceID: "example.com/gpu=0", Health: want}
	if message != "" {
		h.Message = &message
	}
	require.Equal(b, []corev1.ResourceStatus{{Name: "claim:mine/gpu", Resources: []corev1.ResourceHealth{h}}},
		b.claims.Health(p, &p.Spec.Containers[0]))
}

// Reported health reaches the pods that use the devices, and is unknown when the driver stops reporting it.
func TestHealth(t *testing.T) {
	b := start(t, claimFor("a"))
	stranger := user("stranger")
	require.Empty(t, b.claims.Health(stranger, &stranger.Spec.Containers[0]))
	_, err := b.given(user("a"))
	require.NoError(t, err)
	b.health(corev1.ResourceHealthStatusUnknown, "")
	b.tell(said(drahealth.HealthStatus_HEALTHY, "", 0))
	b.health(corev1.ResourceHealthStatusHealthy, "")
	b.tell(said(drahealth.HealthStatus_UNHEALTHY, "too hot", 600))
	b.health(corev1.ResourceHealthStatusUnhealthy, "too hot")

	// A repeated report, or one of other devices, changes nothing.
	b.says <- said(drahealth.HealthStatus_UNHEALTHY, "too hot", 600)
	b.says <- &drahealth.NodeWatchResourcesResponse{
		Devices: []*drahealth.DeviceHealth{
			{Device: &drahealth.DeviceIdentifier{PoolName: "n", DeviceName: "gpu-1"}, Health: drahealth.HealthStatus_HEALTHY},
			{},
		},
	}
	b.health(corev1.ResourceHealthStatusUnhealthy, "too hot")

	// Health is unknown if not confirmed in time, and after the stream breaks, until the driver reports it.
	b.tell(said(drahealth.HealthStatus_HEALTHY, "", 1))
	b.hears()
	b.health(corev1.ResourceHealthStatusUnknown, "")
	b.tell(said(drahealth.HealthStatus_HEALTHY, "", 600))
	b.tell(nil)
	b.health(corev1.ResourceHealthStatusUnknown, "")
	b.tell(said(drahealth.HealthStatus_HEALTHY, "", -1))
	b.health(corev1.ResourceHealthStatusHealthy, "")

	// It is also unknown after the driver has gone, and after a restart of the agent, which remembers the devices.
	b.driver.Stop()
	b.hears()
	b.health(corev1.ResourceHealthStatusUnknown, "")
	b.stop()
	b.begin()
	b.health(corev1.ResourceHealthStatusUnknown, "")
}

// Reports are bounded.
func TestHealthOfHostileDrivers(t *testing.T) {
	now := time.Now()
	_, err := healths(&drahealth.NodeWatchResourcesResponse{Devices: make([]*drahealth.DeviceHealth, maxHealths+1)}, now)
	require.ErrorContains(t, err, "at most 16384")
	list, err := healths(said(drahealth.HealthStatus(77), strings.Repeat("é", 1<<20)+"\xff", 1<<62), now)
	require.NoError(t, err)
	h := list["n/gpu-0"]
	require.Equal(t, corev1.ResourceHealthStatusUnknown, h.health)
	require.LessOrEqual(t, len(h.message), corev1.ResourceHealthMessageMaxLength)
	require.True(t, strings.HasSuffix(h.message, "é..."))
	require.Equal(t, now.Add(maxTimeout), h.until)

	long := said(drahealth.HealthStatus_HEALTHY, "", 0)
	long.Devices[0].Device.DeviceName = strings.Repeat("x", 4<<20)
	list, err = healths(long, now)
	require.NoError(t, err)
	require.Empty(t, list)

	// Devices that are no longer mentioned do not accumulate, and their pods are notified when they are dropped.
	var notified []types.UID
	m := &Manager{c: Config{HealthChanged: func(pods []types.UID) { notified = append(notified, pods...) }}}
	d := &driver{}
	for range 3 {
		said := map[string]deviceHealth{}
		for i := range maxHealths {
			said[strings.Repeat("x", len(d.health)%7)+string(rune(i))] = deviceHealth{until: time.Now().Add(time.Hour)}
		}
		m.said(d, said)
		require.LessOrEqual(t, len(d.health), maxHealths)
	}
	d.health = map[string]deviceHealth{
		healthKey("n", "gpu-0"): {health: corev1.ResourceHealthStatusHealthy, until: time.Now().Add(time.Hour)},
	}
	m.claims = map[types.UID]*claim{"c": {Pods: []types.UID{"a"}, Devices: []device{{Pool: "n", Name: "gpu-0"}}}}
	others := map[string]deviceHealth{}
	for i := range maxHealths {
		others[string(rune(i))] = deviceHealth{until: time.Now().Add(time.Hour)}
	}
	m.said(d, others)
	require.Equal(t, []types.UID{"a"}, notified)
}

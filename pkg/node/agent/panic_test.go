package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	fakeruntime "github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// TestAPodThatPanics checks that a pod whose sync or action panics backs off and recovers, and does not affect others.
func TestAPodThatPanics(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		b.network.mu.Lock()
		b.network.panics = "action"
		b.network.mu.Unlock()
		b.events.mu.Lock()
		b.events.panics = "BackOff"
		b.events.mu.Unlock()
		b.create(simple("action", "sleep", "1000000"))
		b.create(simple("step", "sleep", "1")) // it restarts repeatedly, which causes events
		b.create(simple("good", "sleep", "1000000"))
		b.pass(time.Minute)
		require.Equal(t, corev1.PodRunning, b.pod("good").Status.Phase)
		require.Equal(t, corev1.PodPending, b.pod("action").Status.Phase)
		require.Contains(t, b.events.list(), "InternalError: internal error of the node agent: panic: injected")
		b.events.mu.Lock()
		require.Greater(t, b.events.tried, 2, "it is tried again")
		require.Less(t, b.events.tried, 15, "but not all the time")
		b.events.panics = ""
		b.events.mu.Unlock()
		b.network.mu.Lock()
		b.network.panics = ""
		b.network.mu.Unlock()
		b.pass(10 * time.Minute)
		require.Equal(t, corev1.PodRunning, b.pod("action").Status.Phase)
		require.Greater(t, b.pod("step").Status.ContainerStatuses[0].RestartCount, int32(2))
	})
}

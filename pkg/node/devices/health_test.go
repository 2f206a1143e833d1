package devices

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Health is reported to the pods that use the devices, and unknown after a restart until the plugin reports it.
func TestHealth(t *testing.T) {
	b := open(t)
	stop := b.run()
	g := &gadgets{}
	b.serve(g, "g.sock")
	require.NoError(t,
		b.register(&deviceplugin.RegisterRequest{Version: "v1beta1", Endpoint: "g.sock", ResourceName: name}))
	g.lists <- list("d1", "d2", "d3")
	b.wait()
	_, err := b.give(pod("one", 2))
	require.NoError(t, err)
	told := func() {
		t.Helper()
		select {
		case pods := <-b.pods:
			require.Equal(t, []types.UID{"one"}, pods)
		case <-time.After(patience):
			t.Fatal("no pod was told")
		}
	}
	health := func(first, second corev1.ResourceHealthStatus) {
		t.Helper()
		require.Equal(t,
			[]corev1.ResourceStatus{
				{
					Name:      name,
					Resources: []corev1.ResourceHealth{{ResourceID: "d1", Health: first}, {ResourceID: "d2", Health: second}},
				},
			}, b.Health("one", "c"))
	}
	const good, bad, unknown = corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy,
		corev1.ResourceHealthStatusUnknown
	health(good, good)
	g.lists <- list("d1", "d2", "-d3") // d3 is not assigned
	b.wait()
	require.Empty(t, b.pods)
	g.lists <- list("-d1", "d2", "d3")
	told()
	health(bad, good)
	g.lists <- list("-d1", "d3")
	told()
	health(bad, unknown)
	g.lists <- list("d1", "d2", "d3")
	told()
	close(g.lists) // the plugin ends
	told()
	health(bad, bad)
	require.Empty(t, b.Health("one", "other"))
	stop()
	b.restart()
	health(unknown, unknown)
	require.NoError(t, b.Forget("one"))
	require.Empty(t, b.Health("one", "c"))
}

package pod

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// A container that restarts with another image is reported once the new instance runs: the pod stays ready.
func TestAChangedContainerIsReportedOnceItRuns(t *testing.T) {
	j := &journal{}
	with(t, fake.Config{Programs: j.programs()}, func(r *rig) {
		p := podOf("web")
		p.Spec.Containers = []corev1.Container{containerNamed("c", "server", "web")}
		r.create(p)
		r.pass(time.Second)
		ready := func() bool {
			return slices.ContainsFunc(r.pod("web").Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
		}
		require.True(t, ready())
		unready := false
		r.api.refusing(func(string) error { unready = unready || !ready(); return nil }) // as before
		r.change("web", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "elsewhere" })
		r.pass(10 * time.Second)
		require.EqualValues(t, 1, r.status("web", "c").RestartCount)
		require.Contains(t, r.status("web", "c").Image, "elsewhere")
		require.True(t, ready())
		require.False(t, unready)
	})
}

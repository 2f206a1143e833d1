package pod

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

func TestDrainStopsWhatServesPluginsLast(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.m.c.Serves = func(p *corev1.Pod) bool { return p.Name == "driver" }
		r.create(podOf("driver", "sleep", "1000000"))
		r.create(podOf("user", "sleep", "1000000"))
		r.pass(time.Second)
		var running [][]string // at each release of a network
		r.network.refusing(func(call string) error {
			if call != "teardown" {
				return nil
			}
			running = append(running, r.running())
			if len(running) < 3 {
				return errors.New("not yet")
			}
			return nil
		})
		var stopped []string
		require.NoError(t, r.m.Drain(r.Context(), func(p *corev1.Pod) { stopped = append(stopped, p.Name) }))
		require.Equal(t, []string{"user", "driver"}, stopped)
		require.Equal(t, [][]string{{"main"}, {"main"}, {"main"}, {}}, running)
	})
}

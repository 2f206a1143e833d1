package pod

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

type namespaces struct {
	runtime.Runtime
	pid map[string]string
}

func (n *namespaces) Create(ctx context.Context, s runtime.Spec) error {
	n.pid[s.Labels[labelName]] = s.PIDNS
	return n.Runtime.Create(ctx, s)
}

func TestEphemeralContainersJoinTheirTarget(t *testing.T) {
	j, made := &journal{}, &namespaces{pid: map[string]string{}}
	with(t, fake.Config{Programs: j.programs()}, func(r *rig) {
		r.wrapRuntime = func(inner runtime.Runtime) runtime.Runtime {
			made.Runtime = inner
			return made
		}
		r.restart()
		r.create(podOf("p", "server", "p"))
		debug := func(name, target string) {
			r.change("p", func(p *corev1.Pod) {
				p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{
					TargetContainerName: target,
					EphemeralContainerCommon: corev1.EphemeralContainerCommon{
						Name:            name,
						Image:           "busybox",
						ImagePullPolicy: corev1.PullIfNotPresent,
						Command:         []string{"server", name},
					},
				})
			})
			r.pass(time.Minute)
		}
		main := r.pod("p").Spec.Containers[0].Name
		debug("with", main)
		debug("without", "")
		debug("lost", "with-a-typo")
		require.Empty(t, made.pid[main])
		require.Contains(t, made.pid, "without")
		require.Empty(t, made.pid["without"])
		require.Regexp(t, `^/fake/.+/pid$`, made.pid["with"])
		require.NotContains(t, made.pid, "lost")
		for _, s := range r.pod("p").Status.EphemeralContainerStatuses {
			if s.Name == "lost" {
				require.NotNil(t, s.State.Waiting)
				require.Contains(t, s.State.Waiting.Message, "unable to find target container with-a-typo")
			}
		}
	})
}

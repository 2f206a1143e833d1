package registry

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/kubernetes/pkg/apis/core"
)

func TestShareSpec(t *testing.T) {
	pod := func(image string) *core.Pod {
		return &core.Pod{
			Spec: core.PodSpec{
				Containers: []core.Container{{Name: "c", Image: image}}, SecurityContext: &core.PodSecurityContext{},
			},
		}
	}
	now, was := pod("a"), pod("a")
	now.Finalizers = []string{"example.com/a"}
	shareSpec(now, was)
	require.Same(t, &was.Spec.Containers[0], &now.Spec.Containers[0])
	require.Same(t, was.Spec.SecurityContext, now.Spec.SecurityContext)
	require.Equal(t, []string{"example.com/a"}, now.Finalizers)
	require.Empty(t, was.Finalizers)

	now = pod("b")
	shareSpec(now, was)
	require.Equal(t, pod("b"), now)
	require.Equal(t, pod("a"), was)

	shareSpec(&core.Service{}, &core.Service{})
}

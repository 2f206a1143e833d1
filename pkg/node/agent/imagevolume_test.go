package agent

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	fakeruntime "github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

func withImage(name, ref string, policy corev1.PullPolicy) *corev1.Pod {
	p := simple(name, "sleep", "1000000")
	p.Spec.Volumes = []corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: ref, PullPolicy: policy}}},
	}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	return p
}

// A container reports why an image volume is missing, and starts when the image can be pulled.
func TestImageVolumes(t *testing.T) {
	var there atomic.Bool
	pull := func(context.Context, string) error {
		if !there.Load() {
			return errors.New("no such image in the registry")
		}
		return nil
	}
	node(t, fakeruntime.Config{Pull: pull}, func(b *bench) {
		waiting := func(name string) *corev1.ContainerStateWaiting {
			return b.pod(name).Status.ContainerStatuses[0].State.Waiting
		}
		b.create(withImage("never", "registry.test/none", corev1.PullNever))
		b.settle()
		require.Equal(t, "ErrImageNeverPull", waiting("never").Reason)
		require.Equal(t, `Container image "registry.test/none" is not present with pull policy of Never`,
			waiting("never").Message)

		b.create(withImage("late", "registry.test/files", ""))
		b.settle()
		require.Equal(t, "ErrImagePull", waiting("late").Reason)
		require.Equal(t, `Failed to pull image "registry.test/files": no such image in the registry`, waiting("late").Message)
		b.pass(2 * time.Second)
		require.Equal(t, "ImagePullBackOff", waiting("late").Reason)
		require.Empty(t, b.containers())

		there.Store(true)
		b.pass(time.Minute)
		require.Equal(t, corev1.PodRunning, b.pod("late").Status.Phase)
		require.Contains(t, strings.Join(b.events.list(), "\n"), `Pulled: Successfully pulled image "registry.test/files"`)
		require.Len(t, b.containers(), 1)
	})
}

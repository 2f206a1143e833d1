package pod

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/host/userns"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

type created struct {
	runtime.Runtime
	specs []runtime.Spec
}

func (c *created) Create(ctx context.Context, s runtime.Spec) error {
	err := c.Runtime.Create(ctx, s)
	if err == nil {
		c.specs = append(c.specs, s)
	}
	return err
}

func (r *rig) recorded() *created {
	c := &created{}
	r.wrapRuntime = func(inner runtime.Runtime) runtime.Runtime {
		c.Runtime = inner
		return c
	}
	r.restart()
	return c
}

// Containers join the pod's user namespace, and the owners of all their files are mapped accordingly.
func TestContainersHaveThePodsUsers(t *testing.T) {
	j := &journal{}
	with(t, fake.Config{Programs: j.programs()}, func(r *rig) {
		made := r.recorded()
		p := podOf("own", "server", "own")
		p.Spec.HostUsers = new(false)
		p.Spec.Volumes = []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
			{Name: "v", MountPath: "/v"}, {Name: "v", MountPath: "/sub", SubPath: "s"},
		}
		p.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
		r.create(p)
		r.create(podOf("plain", "server", "plain"))
		require.Len(t, made.specs, 2)
		s := made.specs[0]
		require.Equal(t, &runtime.Users{Path: "/fake/users-of-uid-own", First: userns.Unit, Count: userns.Unit}, s.Users)
		require.Len(t, s.Mounts, 6)
		for _, m := range s.Mounts {
			require.True(t, m.MapIDs, m.Target)
		}
		plain := made.specs[1]
		require.Nil(t, plain.Users)
		for _, m := range plain.Mounts {
			require.False(t, m.MapIDs, m.Target)
		}
		r.delete("own", 0)
		r.pass(time.Minute)
	})
}

// A volume whose plugin has mapped the owners is not mapped again.
func TestMappedVolumes(t *testing.T) {
	m := &Manager{volumes: volume.New(volume.Config{Dir: t.TempDir()})}
	p := podOf("p", "true")
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
		{Name: "image", MountPath: "/image"}, {Name: "v", MountPath: "/v"},
	}
	b := build{
		pod:     p,
		c:       &p.Spec.Containers[0],
		volumes: map[string]volume.Mounted{"image": {Path: "/i", Mapped: true}, "v": {Path: "/v"}},
	}
	s := runtime.Spec{ID: "0123456789abcdef", Users: &runtime.Users{}}
	require.NoError(t, m.mounts(&s, b, nil))
	require.False(t, s.Mounts[0].MapIDs)
	require.True(t, s.Mounts[1].MapIDs)

	p.Spec.Containers[0].VolumeMounts[1].MountPropagation = new(corev1.MountPropagationBidirectional)
	require.ErrorContains(t, m.mounts(&s, b, nil),
		"mountPropagation Bidirectional of mount /v is not possible with hostUsers: false")
}

// A pod that cannot have a user namespace here waits, and an event has the kubelet's message and the cause.
func TestNoUserNamespaces(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.noUsers.Store(true)
		p := podOf("p", "sleep", "1000")
		p.Spec.HostUsers = new(false)
		r.create(p)
		r.pass(time.Minute)
		require.Equal(t, corev1.PodPending, r.pod("p").Status.Phase)
		require.Contains(t, r.events.text(),
			"FailedCreatePodSandBox: Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not "+
				"support user namespaces: mount proc: operation not permitted")
		require.EqualError(t, r.m.checkUsers("runc"),
			"can't set `spec.hostUsers: false`, RuntimeClass handler \"runc\" does not support user namespaces: mount proc: "+
				"operation not permitted")
		require.Empty(t, r.network.sandboxes)
		r.noUsers.Store(false)
		r.pass(3 * time.Minute)
		require.Equal(t, corev1.PodRunning, r.pod("p").Status.Phase)
	})
}

// A container that an earlier process created but did not start is recreated, since the pod's IDs may have changed.
func TestContainersOfEarlierUsers(t *testing.T) {
	j := &journal{}
	with(t, fake.Config{Programs: j.programs()}, func(r *rig) {
		made := r.recorded()
		p := podOf("p", "server", "p")
		p.Spec.HostUsers = new(false)
		id := containerID("uid-p", "main", 0)
		require.NoError(t,
			r.runtime.Create(context.Background(), runtime.Spec{
				ID: id, PodUID: "uid-p", Image: "busybox", Command: []string{"server", "p"},
				Labels: map[string]string{labelName: "main", labelAttempt: "0"}, Users: &runtime.Users{First: 7 * userns.Unit},
				LogPath: filepath.Join(t.TempDir(), "log"),
			}))
		r.restart()
		r.create(p)
		require.Equal(t, []string{"main"}, r.running())
		require.Len(t, made.specs, 1)
		require.Equal(t, id, made.specs[0].ID)
		require.EqualValues(t, userns.Unit, made.specs[0].Users.First)
	})
}

// While a container cannot be removed, its pod keeps its IDs and its address, so that no other pod gets them.
func TestIDsAreKeptWhileAContainerIsLeft(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		stuck := &cannotRemove{}
		r.wrapRuntime = func(inner runtime.Runtime) runtime.Runtime {
			stuck.Runtime = inner
			return stuck
		}
		r.restart()
		p := podOf("p", "sleep", "1000")
		p.Spec.HostUsers = new(false)
		r.create(p)
		stuck.on.Store(true)
		r.delete("p", 0)
		r.pass(10 * time.Second)
		require.NotEmpty(t, r.network.sandboxes)
		stuck.on.Store(false)
		r.pass(5 * time.Minute)
		r.requireNothingLeft()
	})
}

type cannotRemove struct {
	runtime.Runtime
	on atomic.Bool
}

func (c *cannotRemove) Remove(ctx context.Context, id string) error {
	if c.on.Load() {
		return errors.New("it cannot be removed")
	}
	return c.Runtime.Remove(ctx, id)
}

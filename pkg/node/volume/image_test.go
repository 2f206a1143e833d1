package volume

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/host/userns"
	"github.com/coracle-dev/coracle/pkg/node/host/userns/usernstest"
)

// heldLayers implements Images: layers by image ID, and the names that hold them.
type heldLayers struct {
	layers map[string][]string

	mu   sync.Mutex
	held map[string]string
}

// testImages returns an image with two layers and one with a single layer, with a program in it.
func testImages(t *testing.T) *heldLayers {
	dir := t.TempDir()
	for path, text := range map[string]string{
		"upper/dir/file": "upper",
		"lower/dir/file": "lower",
		"lower/other":    "lower",
		"upper/run":      "#!/bin/sh\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o755))
	}
	upper, lower := filepath.Join(dir, "upper"), filepath.Join(dir, "lower")
	return &heldLayers{layers: map[string][]string{"two": {upper, lower}, "one": {upper}}, held: map[string]string{}}
}

func (h *heldLayers) View(_ context.Context, name, id string) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.layers[id] == nil {
		return nil, fmt.Errorf("no image %s", id)
	}
	h.held[name] = id
	return h.layers[id], nil
}

func (h *heldLayers) Unview(_ context.Context, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, name)
	return nil
}

func TestImageVolume(t *testing.T) {
	for image, files := range map[string]map[string]string{
		"one": {"dir/file": "upper", "run": "#!/bin/sh\n"},
		"two": {"dir/file": "upper", "other": "lower"},
	} {
		t.Run(image, func(t *testing.T) {
			m, _ := manager(t)
			p := podWith(corev1.Volume{
				Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: image}},
			})
			r, err := m.Setup(t.Context(), p, "")
			require.NoError(t, err)
			v := r.Volumes["v"]
			require.True(t, v.ReadOnly)
			require.True(t, v.NoExec)
			mounted, err := m.ImageMounted("u", "v")
			require.NoError(t, err)
			require.False(t, mounted, "it waits for a container")
			require.NoError(t, m.MountImage(t.Context(), "u", "v", image, ""))
			for path, text := range files {
				require.Equal(t, text, read(t, v.Path, path))
			}
			require.ErrorIs(t, os.WriteFile(filepath.Join(v.Path, "new"), nil, 0o600), unix.EROFS)
			require.ErrorIs(t, exec.Command(filepath.Join(v.Path, "run")).Run(), unix.EACCES, "nothing in it can be run")
			require.Equal(t, []string{image}, m.ImagesInUse())

			at, err := m.SubPath("u", "v", v.Path, "dir", "c", 0, true)
			require.NoError(t, err)
			require.Equal(t, "upper", read(t, at, "file"))
			_, err = m.SubPath("u", "v", v.Path, "none", "c", 1, true)
			require.ErrorContains(t, err, `subPath "none" does not exist in volume v`)

			next := New(m.c) // simulates a restart of the agent
			_, err = next.Setup(t.Context(), p, "")
			require.NoError(t, err)
			mounted, err = next.ImageMounted("u", "v")
			require.NoError(t, err)
			require.True(t, mounted)
			require.NoError(t, next.MountImage(t.Context(), "u", "v", "another", ""), "it keeps its image")
			require.NoError(t, next.Teardown(t.Context(), "u", true))
			require.Empty(t, mountsBelow(t, m.c.Dir))
			require.Empty(t, m.c.Images.(*heldLayers).held)
		})
	}
}

// The owners of an image's files are mapped by the pod's user namespace, with one layer and with several.
func TestImageVolumeOfOwnUsers(t *testing.T) {
	const first = 5 * userns.Unit
	pid, end, err := usernstest.Start(userns.Range{First: first, Count: userns.Unit})
	require.NoError(t, err)
	defer end()
	users := fmt.Sprintf("/proc/%d/ns/user", pid)
	for _, image := range []string{"one", "two"} {
		m, _ := manager(t)
		p := podWith(corev1.Volume{
			Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "x"}},
		})
		r, err := m.Setup(t.Context(), p, "")
		require.NoError(t, err)
		require.True(t, r.Volumes["v"].Mapped)
		require.NoError(t, m.MountImage(t.Context(), "u", "v", image, users))
		entries, err := os.ReadDir(r.Volumes["v"].Path)
		require.NoError(t, err)
		require.NotEmpty(t, entries)
		for _, e := range entries {
			info, err := e.Info()
			require.NoError(t, err)
			require.EqualValues(t, first, info.Sys().(*syscall.Stat_t).Uid, e.Name())
		}
		require.NoError(t, m.Teardown(t.Context(), "u", true))
		require.Empty(t, mountsBelow(t, m.c.Dir))
	}
}

// A reboot removes mounts. The tag may name another image afterwards.
func TestImageVolumeAfterAReboot(t *testing.T) {
	m, _ := manager(t)
	p := podWith(corev1.Volume{
		Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "x"}},
	})
	r, err := m.Setup(t.Context(), p, "")
	require.NoError(t, err)
	require.NoError(t, m.MountImage(t.Context(), "u", "v", "two", ""))
	require.NoError(t, unix.Unmount(r.Volumes["v"].Path, unix.MNT_DETACH))
	next := New(m.c)
	require.NoError(t, next.MountImage(t.Context(), "u", "v", "one", ""))
	require.FileExists(t, filepath.Join(r.Volumes["v"].Path, "run"))
	require.NoFileExists(t, filepath.Join(r.Volumes["v"].Path, "other"))
	require.Len(t, m.c.Images.(*heldLayers).held, 1)
	require.NoError(t, next.Teardown(t.Context(), "u", true))
	require.Empty(t, m.c.Images.(*heldLayers).held)
}

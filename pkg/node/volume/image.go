package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/node/host/disk"
	"github.com/coracle-dev/coracle/pkg/node/host/mount"
)

const imageName = "kubernetes.io/image"

// Images provides the layers of images; runtime.Images implements it.
type Images interface {
	// View keeps the layers of an image under a name until Unview, and returns their directories, uppermost first.
	View(ctx context.Context, name, id string) ([]string, error)
	Unview(ctx context.Context, name string) error
}

// images is the plugin for image volumes (KEP-4639). As in the kubelet, Setup acquires nothing: the image is pulled
// when a container that mounts the volume starts, so that this container's status reports a missing image. MountImage
// mounts it then.
type images struct {
	views Images
	fail  failpoint.Hook
}

type imageState struct {
	Image string  `json:"image"` // its ID
	Mount mountID `json:"mount"`
}

func (images) Name() string { return imageName }

func (images) CanSupport(s *corev1.VolumeSource) bool { return s.Image != nil }

func (images) Setup(_ context.Context, _ Pod, v *Volume) (Mounted, error) {
	return Mounted{Path: v.Dir, ReadOnly: true, NoExec: true, Mapped: true}, nil
}

func (i images) Teardown(ctx context.Context, v *Volume) error {
	state, err := imageStateOf(v.State)
	if err != nil {
		return err
	}
	if err := detach(v.Dir, state.Mount); err != nil {
		return err
	}
	if err := i.fail.At("image.unmounted"); err != nil {
		return err
	}
	if state.Image != "" {
		if err := i.views.Unview(ctx, viewName(v)); err != nil {
			return err
		}
	}
	return disk.RemoveAll(ctx, v.Dir)
}

// mount mounts the image's files at the volume's directory. If users is not empty, it maps their owners by that user
// namespace. It records the view of the layers and then the mount, each before it acquires it.
func (i images) mount(ctx context.Context, v *Volume, id, users string) error {
	if err := os.Mkdir(v.Dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := v.Save(imageState{Image: id}); err != nil {
		return err
	}
	layers, err := i.views.View(ctx, viewName(v), id)
	if err != nil {
		return err
	}
	if err := i.fail.At("image.view"); err != nil {
		return err
	}
	fd, files, err := newReadOnly(layers, users, v.Dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := v.Save(imageState{Image: id, Mount: files}); err != nil {
		return err
	}
	if err := i.fail.At("image.mount"); err != nil {
		return err
	}
	if err := mount.Attach(fd, v.Dir); err != nil {
		return err
	}
	return i.fail.At("image.mounted")
}

func viewName(v *Volume) string { return string(v.UID) + "-" + v.Name }

func imageStateOf(data json.RawMessage) (imageState, error) {
	var s imageState
	if data == nil {
		return s, nil
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("recorded state of an image volume: %w", err)
	}
	return s, nil
}

// ImageMounted reports whether the volume's image is mounted.
func (m *Manager) ImageMounted(uid types.UID, name string) (bool, error) {
	r, err := m.record(uid)
	if err != nil {
		return false, err
	}
	return imageMounted(m.volume(uid, name, r))
}

func imageMounted(v *Volume) (bool, error) {
	state, err := imageStateOf(v.State)
	if err != nil || state.Image == "" {
		return false, err
	}
	at, mounted, err := mountAt(v.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil && mounted && !at.same(state.Mount) {
		err = fmt.Errorf("%s has a mount that is not the volume's: unmount it", v.Dir)
	}
	return mounted, err
}

// MountImage mounts the image with this ID as a volume, after Setup. users is the path of the pod's user namespace,
// empty if it has none. A volume that is mounted already keeps its image. It is safe for concurrent use, also for one
// pod.
func (m *Manager) MountImage(ctx context.Context, uid types.UID, name, id, users string) error {
	r, err := m.record(uid)
	if err != nil {
		return err
	}
	r.images.Lock()
	defer r.images.Unlock()
	v := m.volume(uid, name, r)
	if mounted, err := imageMounted(v); err != nil || mounted {
		return err
	}
	plugin := images{views: m.c.Images, fail: m.c.Failpoints}
	if state, err := imageStateOf(v.State); err != nil {
		return err
	} else if state.Image != "" && state.Image != id { // a reboot removed its mount
		if err := m.c.Images.Unview(ctx, viewName(v)); err != nil {
			return err
		}
	}
	return plugin.mount(ctx, v, id, users)
}

// ImagesInUse returns the IDs of the images that are mounted as volumes.
func (m *Manager) ImagesInUse() []string {
	m.mu.Lock()
	records := slices.Collect(maps.Values(m.records))
	m.mu.Unlock()
	var ids []string
	for _, r := range records {
		for _, v := range r.content().Volumes {
			if v.Plugin != imageName {
				continue
			}
			if s, err := imageStateOf(v.State); err == nil && s.Image != "" {
				ids = append(ids, s.Image)
			}
		}
	}
	return ids
}

// newReadOnly makes a detached, read-only and noexec mount of layers, uppermost first. The caller closes the file
// descriptor, which releases the mount unless it was attached. If users is not empty, file owners are mapped by that
// user namespace. scratch is a directory that is not a mount point.
func newReadOnly(layers []string, users, scratch string) (fd int, id mountID, err error) {
	switch {
	case users != "":
		fd, err = newMapped(layers, users, scratch)
	case len(layers) == 1:
		fd, err = mount.BindPath(layers[0], true)
	default:
		fd, err = mount.Overlay{Lower: layers}.New()
	}
	if err != nil {
		return -1, id, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	attributes := &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attributes); err != nil {
		return -1, id, fmt.Errorf("make an image's files read-only: %w", err)
	}
	id, _, err = identify(fd)
	return fd, id, err
}

func newMapped(layers []string, users, scratch string) (fd int, err error) {
	namespace, err := os.Open(users)
	if err != nil {
		return -1, fmt.Errorf("the pod's user namespace: %w", err)
	}
	defer namespace.Close()
	if len(layers) == 1 {
		if fd, err = mount.BindPath(layers[0], false); err != nil {
			return -1, err
		}
		if err := mount.MapIDs(fd, int(namespace.Fd())); err != nil {
			unix.Close(fd)
			return -1, err
		}
		return fd, nil
	}
	err = mount.Alone(func() error {
		floor, err := mount.Tmpfs(nil)
		if err != nil {
			return err
		}
		defer unix.Close(floor)
		if err := mount.Attach(floor, scratch); err != nil {
			return err
		}
		fd, err = mount.Overlay{Lower: layers}.Mapped(int(namespace.Fd()), scratch)
		return err
	})
	return fd, err
}

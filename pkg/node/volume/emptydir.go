package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/node/host/disk"
	"github.com/coracle-dev/coracle/pkg/node/host/mount"
)

const emptyDirName = "kubernetes.io/empty-dir"

type emptyDir struct {
	allocatable func() corev1.ResourceList
	fail        failpoint.Hook
}

type emptyDirState struct {
	Tmpfs mountID `json:"tmpfs"`
}

func (emptyDir) Name() string { return emptyDirName }

func (emptyDir) CanSupport(s *corev1.VolumeSource) bool { return s.EmptyDir != nil }

func (e emptyDir) Setup(_ context.Context, p Pod, v *Volume) (Mounted, error) {
	out := Mounted{Path: v.Dir}
	switch p.Source.EmptyDir.Medium {
	case corev1.StorageMediumDefault:
		return out, e.setupDisk(p, v)
	case corev1.StorageMediumMemory:
		return out, e.setupMemory(p, v)
	}
	return out, fmt.Errorf("emptyDir medium %q is not supported on this node", p.Source.EmptyDir.Medium)
}

// unfinished returns the path at which a directory is prepared. Names of volumes contain no dots.
func unfinished(dir string) string { return dir + ".new" }

// setupDisk creates the directory with its owner and mode atomically. So an existing directory is complete.
func (e emptyDir) setupDisk(p Pod, v *Volume) error {
	if info, err := os.Lstat(v.Dir); err == nil && info.IsDir() {
		return nil
	} else if err == nil {
		return &os.PathError{Op: "use", Path: v.Dir, Err: unix.ENOTDIR}
	}
	next := unfinished(v.Dir)
	if err := os.Mkdir(next, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := e.fail.At("emptydir.mkdir"); err != nil {
		return err
	}
	mode := fs.FileMode(0o777)
	if g := fsGroup(p.Pod); g != nil {
		if err := os.Chown(next, -1, int(*g)); err != nil {
			return err
		}
		mode |= os.ModeSetgid
	}
	if err := os.Chmod(next, mode); err != nil {
		return err
	}
	if err := e.fail.At("emptydir.rename"); err != nil {
		return err
	}
	if err := os.Rename(next, v.Dir); err != nil {
		return err
	}
	return e.fail.At("emptydir.done")
}

// setupMemory records the tmpfs before it attaches the mount.
func (e emptyDir) setupMemory(p Pod, v *Volume) error {
	if err := os.Mkdir(v.Dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	at, mounted, err := mountAt(v.Dir)
	if err != nil {
		return err
	}
	var state emptyDirState
	if v.State != nil {
		if err := json.Unmarshal(v.State, &state); err != nil {
			return fmt.Errorf("recorded state of an emptyDir: %w", err)
		}
	}
	switch {
	case mounted && at.same(state.Tmpfs):
		return nil
	case mounted:
		return fmt.Errorf("%s has a mount that is not the volume's: unmount it", v.Dir)
	}
	options := map[string]string{"mode": "0777"}
	if g := fsGroup(p.Pod); g != nil {
		options["mode"], options["gid"] = "2777", strconv.FormatInt(*g, 10)
	}
	if size := e.memorySize(p.Pod, p.Source.EmptyDir); size > 0 {
		options["size"] = strconv.FormatInt(size, 10)
	}
	fd, err := mount.Tmpfs(options)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	id, _, err := identify(fd)
	if err != nil {
		return err
	}
	if err := v.Save(emptyDirState{Tmpfs: id}); err != nil {
		return err
	}
	if err := e.fail.At("emptydir.mount"); err != nil {
		return err
	}
	if err := mount.Attach(fd, v.Dir); err != nil {
		return err
	}
	return e.fail.At("emptydir.mounted")
}

func (e emptyDir) Teardown(ctx context.Context, v *Volume) error {
	var state emptyDirState
	if v.State != nil {
		if err := json.Unmarshal(v.State, &state); err != nil {
			return fmt.Errorf("recorded state of an emptyDir: %w", err)
		}
	}
	if err := detach(v.Dir, state.Tmpfs); err != nil {
		return err
	}
	if err := e.fail.At("emptydir.unmounted"); err != nil {
		return err
	}
	return errors.Join(disk.RemoveAll(ctx, unfinished(v.Dir)), disk.RemoveAll(ctx, v.Dir))
}

// VolumeDir returns the directory of an emptyDir on disk, whether it exists or not.
func (m *Manager) VolumeDir(uid types.UID, name string) string { return m.volumeDir(uid, name) }

func (m *Manager) volumeDir(uid types.UID, name string) string {
	return filepath.Join(m.PodDir(uid), volumesDir, name)
}

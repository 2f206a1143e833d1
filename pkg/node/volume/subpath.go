package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/host/mount"
)

// SubPath returns a host path for a path inside a volume, such that symbolic links cannot lead out of the volume: it
// opens the target strictly beneath root and bind-mounts it in the pod's directory. A missing target is created as a
// directory unless readOnly is set. index is the index of the volume mount in the container. Teardown detaches the
// mount.
func (m *Manager) SubPath(uid types.UID, volumeName, root, sub, container string, index int,
	readOnly bool) (string, error) {
	target, err := openSubPath(volumeName, root, sub, readOnly)
	if err != nil {
		return "", err
	}
	defer unix.Close(target)
	r, err := m.record(uid)
	if err != nil {
		return "", err
	}
	name := filepath.Join(volumeName, container, fmt.Sprint(index))
	at := filepath.Join(m.PodDir(uid), subPathsDir, name)
	if earlier, has := r.subPath(name); has { // from an earlier start of this container
		if err := detach(at, earlier); err != nil {
			return "", err
		}
	}
	if err := makeMountPoint(at, target); err != nil {
		return "", err
	}
	tree, err := mount.Bind(target, true)
	if err != nil {
		return "", fmt.Errorf("bind subPath %q of volume %s: %w", sub, volumeName, err)
	}
	defer unix.Close(tree)
	id, _, err := identify(tree)
	if err != nil {
		return "", err
	}
	if err := r.setSubPath(name, id); err != nil {
		return "", err
	}
	if err := m.c.Failpoints.At("subpath.mount"); err != nil {
		return "", err
	}
	if err := mount.Attach(tree, at); err != nil {
		return "", fmt.Errorf("bind subPath %q of volume %s: %w", sub, volumeName, err)
	}
	return at, m.c.Failpoints.At("subpath.mounted")
}

func (m *Manager) tearDownSubPaths(uid types.UID, mounts map[string]mountID) error {
	var errs []error
	for name, id := range mounts {
		if !filepath.IsLocal(name) {
			errs = append(errs, fmt.Errorf("invalid recorded subPath %q", name))
			continue
		}
		errs = append(errs, detach(filepath.Join(m.PodDir(uid), subPathsDir, name), id))
	}
	return errors.Join(errs...)
}

// openSubPath opens a path beneath root, and creates it if it is missing and readOnly is not set.
func openSubPath(volumeName, root, sub string, readOnly bool) (int, error) {
	if filepath.IsAbs(sub) {
		return -1, fmt.Errorf("subPath %q must be a relative path", sub)
	}
	for _, part := range strings.Split(sub, "/") {
		if part == ".." {
			return -1, fmt.Errorf("subPath %q must not contain \"..\"", sub)
		}
	}
	base, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open volume %s: %w", volumeName, err)
	}
	defer unix.Close(base)
	fd, err := beneath(base, sub)
	if errors.Is(err, unix.ENOENT) {
		if fd, err = makeBeneath(base, sub); errors.Is(err, unix.EROFS) || readOnly && err != nil {
			return -1, fmt.Errorf("subPath %q does not exist in volume %s", sub, volumeName)
		}
	}
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ELOOP) {
		return -1, fmt.Errorf("subpath %q not within volume path %q", sub, root)
	}
	if err != nil {
		return -1, fmt.Errorf("failed to prepare subPath %q of volume %s: %w", sub, volumeName, err)
	}
	return fd, nil
}

func makeMountPoint(at string, target int) error {
	var st unix.Stat_t
	if err := unix.Fstat(target, &st); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o750); err != nil {
		return err
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.Mkdir(at, 0o750)
	}
	f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

func beneath(base int, sub string) (int, error) {
	return unix.Openat2(base, sub, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// makeBeneath creates the directories of sub one by one, and never follows a link out of base.
func makeBeneath(base int, sub string) (int, error) {
	at, err := unix.Dup(base)
	if err != nil {
		return -1, err
	}
	done := ""
	var st unix.Stat_t
	if err := unix.Fstat(base, &st); err != nil {
		unix.Close(at)
		return -1, err
	}
	for _, part := range strings.Split(filepath.Clean(sub), "/") {
		done = filepath.Join(done, part)
		next, err := beneath(base, done)
		if errors.Is(err, unix.ENOENT) {
			// mkdirat(2) does not follow a link in the last component, and at was opened beneath base.
			if err = unix.Mkdirat(at, part, 0o750); err == nil {
				if next, err = beneath(base, done); err == nil {
					name := fmt.Sprintf("/proc/self/fd/%d", next)
					err = errors.Join(os.Chown(name, -1, int(st.Gid)), unix.Chmod(name, st.Mode&0o7777|0o750))
				}
			}
		}
		unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

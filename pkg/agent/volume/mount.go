package volume

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

func isMountPoint(path string) (bool, error) {
	var self, parent unix.Stat_t
	if err := unix.Lstat(path, &self); err != nil {
		return false, err
	}
	if err := unix.Lstat(filepath.Dir(path), &parent); err != nil {
		return false, err
	}
	return self.Dev != parent.Dev, nil
}

// mountsBelow lists the mount points at or below dir, deepest first.
func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var out []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		if at := unescape.Replace(fields[4]); at == dir || strings.HasPrefix(at, dir+"/") {
			out = append(out, at)
		}
	}
	sort.Slice(out, func(i, j int) bool { return len(out[i]) > len(out[j]) })
	return out, lines.Err()
}

// unmountBelow frees every mount at or below dir. It fails if one is left: nothing below may then be removed.
func unmountBelow(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	mounts, err := mountsBelow(real)
	if err != nil || len(mounts) == 0 {
		return err
	}
	for _, at := range mounts {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	if left, err := mountsBelow(real); err != nil || len(left) > 0 {
		return errors.Join(err, fmt.Errorf("still mounted: %s", strings.Join(left, ", ")))
	}
	return nil
}

// SubPath gives a host path for a path inside a volume that no symbolic link can lead out of: the
// target is opened strictly beneath the volume and bound to a place of the agent's own. A missing
// target is made as a directory unless readOnly. index is the mount's place in the container.
func (m *Manager) SubPath(uid types.UID, volumeName, root, sub, container string, index int, readOnly bool) (string, error) {
	if filepath.IsAbs(sub) {
		return "", fmt.Errorf("subPath %q must be a relative path", sub)
	}
	for _, part := range strings.Split(sub, "/") {
		if part == ".." {
			return "", fmt.Errorf("subPath %q must not contain \"..\"", sub)
		}
	}
	base, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open volume %s: %w", volumeName, err)
	}
	defer unix.Close(base)
	fd, err := beneath(base, sub)
	if errors.Is(err, unix.ENOENT) {
		if fd, err = makeBeneath(base, sub); errors.Is(err, unix.EROFS) || readOnly && err != nil {
			return "", fmt.Errorf("subPath %q does not exist in volume %s", sub, volumeName)
		}
	}
	if err != nil {
		if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ELOOP) {
			return "", fmt.Errorf("subpath %q not within volume path %q", sub, root)
		}
		return "", fmt.Errorf("failed to prepare subPath %q of volume %s: %w", sub, volumeName, err)
	}
	defer unix.Close(fd)
	at := filepath.Join(m.PodDir(uid), "subpaths", volumeName, container, fmt.Sprint(index))
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	if err := unmountBelow(at); err != nil { // of an earlier start of this container
		return "", err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		_ = os.Remove(at)
		err = os.MkdirAll(at, 0o750)
	} else if err = os.MkdirAll(filepath.Dir(at), 0o750); err == nil {
		_ = os.Remove(at)
		var f *os.File
		if f, err = os.OpenFile(at, os.O_CREATE|os.O_WRONLY, 0o640); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		return "", err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return "", fmt.Errorf("bind subPath %q of volume %s: %w", sub, volumeName, err)
	}
	return at, nil
}

func beneath(base int, sub string) (int, error) {
	return unix.Openat2(base, sub, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// makeBeneath makes the directories of sub one by one, never through a link that leads out.
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
			// mkdirat does not follow a link in the last part, and at was opened beneath.
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

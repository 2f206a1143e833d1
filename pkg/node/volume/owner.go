package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// The permissions that fsGroup gets on files and, in addition, on directories, as in the kubelet.
const (
	groupFile      = 0o660
	groupDirectory = 0o110 | unix.S_ISGID
)

// Limits of a walk through a volume: the depth of directories, and the names that are read at once.
const (
	maxDepth  = 256
	nameBatch = 1024
)

// setOwner changes the group of a volume's files to the pod's fsGroup, as the kubelet does: always, or with
// fsGroupChangePolicy OnRootMismatch only if the root's group or mode differs. It neither follows symbolic links nor
// crosses into another file system. The root is changed last, so that an interrupted walk is repeated.
func setOwner(ctx context.Context, p *corev1.Pod, m Mounted) error {
	group := fsGroup(p)
	if group == nil || m.ReadOnly {
		return nil
	}
	fd, err := unix.Open(m.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: m.Path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return err
	}
	const full = groupFile | groupDirectory
	if c := p.Spec.SecurityContext.FSGroupChangePolicy; c != nil && *c == corev1.FSGroupChangeOnRootMismatch &&
		int64(st.Gid) == *group && st.Mode&full == full {
		return unix.Close(fd)
	}
	o := owner{ctx: ctx, group: int(*group), device: st.Dev}
	if err := o.directory(fd, st.Mode, 0); err != nil {
		return fmt.Errorf("applyFSGroup failed for vol %s: %w", m.Path, err)
	}
	return nil
}

// SetOwner changes the group of a mounted volume's files to the pod's fsGroup, as its fsGroupChangePolicy says.
func SetOwner(ctx context.Context, p *corev1.Pod, path string) error {
	return setOwner(ctx, p, Mounted{Path: path})
}

type owner struct {
	ctx    context.Context
	group  int
	device uint64
}

// directory changes the contents of an open directory, then the directory, and closes it.
func (o *owner) directory(fd int, mode uint32, depth int) error {
	f := os.NewFile(uintptr(fd), "directory")
	defer f.Close()
	if depth > maxDepth {
		return fmt.Errorf("directories are nested more than %d deep", maxDepth)
	}
	for {
		names, err := f.Readdirnames(nameBatch)
		for _, name := range names {
			if err := o.entry(fd, name, depth); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("%q: %w", name, err)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := o.ctx.Err(); err != nil {
			return err
		}
	}
	if err := unix.Fchown(fd, -1, o.group); err != nil {
		return err
	}
	return unix.Fchmod(fd, mode&0o7777|groupFile|groupDirectory)
}

func (o *owner) entry(at int, name string, depth int) error {
	// O_PATH neither follows a link nor opens a device or a pipe.
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Dev != o.device {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return unix.Fchownat(fd, "", -1, o.group, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW)
	case unix.S_IFDIR:
		sub, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return o.directory(sub, st.Mode, depth+1)
	}
	if err := unix.Fchownat(fd, "", -1, o.group, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), st.Mode&0o7777|groupFile)
}

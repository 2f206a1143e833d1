// Package mount creates detached mounts (fsopen(2), open_tree(2)), so that they can be changed, and their identity
// recorded, before they are visible. A mount that is never attached ends with its file descriptor.
//
// Its invariant: only callers attach the mounts, except within Alone, where no other process sees them.
package mount

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/thread"
)

// Tmpfs creates a tmpfs. The caller must close the file descriptor.
func Tmpfs(options map[string]string) (fd int, err error) {
	fsfd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make a tmpfs: %w", err)
	}
	defer unix.Close(fsfd)
	err = unix.FsconfigSetString(fsfd, "source", "tmpfs")
	for key, value := range options {
		if err == nil {
			err = unix.FsconfigSetString(fsfd, key, value)
		}
	}
	if err == nil {
		err = unix.FsconfigCreate(fsfd)
	}
	if err != nil {
		return -1, fmt.Errorf("make a tmpfs with the options %v: %w", options, err)
	}
	if fd, err = unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("make a tmpfs: %w", err)
	}
	return fd, nil
}

// Bind clones the mount of an open file, with that file as its root, and with recursive also the mounts below it.
// The caller must close the file descriptor.
func Bind(of int, recursive bool) (fd int, err error) {
	return unix.OpenTree(of, "", unix.AT_EMPTY_PATH|bindFlags(recursive))
}

// BindPath is Bind for the file at a path.
func BindPath(path string, recursive bool) (fd int, err error) {
	if fd, err = unix.OpenTree(unix.AT_FDCWD, path, bindFlags(recursive)); err != nil {
		return -1, &os.PathError{Op: "open_tree", Path: path, Err: err}
	}
	return fd, nil
}

func bindFlags(recursive bool) uint {
	if recursive {
		return unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE
	}
	return unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
}

// Attach attaches a mount at a path.
func Attach(fd int, path string) error {
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "mount", Path: path, Err: err}
	}
	return nil
}

// AttachNew is Attach at a path that it creates first, as a directory or as a file, with its parent directories. All
// users may traverse the directories.
func AttachNew(fd int, path string) error {
	if err := makePoint(fd, path); err != nil {
		return err
	}
	return Attach(fd, path)
}

// MapIDs maps the owners of a mount's files through a user namespace: files of ID n on disk belong to ID n of the
// namespace. The mount must never have been attached; mounts below it are not mapped. The error wraps
// errors.ErrUnsupported if the file system does not support it.
func MapIDs(fd, users int) error {
	err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users),
	})
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPERM): // EPERM: the mount already has a mapping
		return fmt.Errorf("%s has no ID-mapped mounts: %w", fileSystem(fd), errors.ErrUnsupported)
	case err != nil:
		return fmt.Errorf("map the IDs of a mount: %w", err)
	}
	return nil
}

// Alone runs f on a thread of its own in a new mount namespace, which has all mounts of the machine and follows
// their changes. The machine does not see mounts by f, which end with the thread. A mount that f creates but does
// not attach can be attached elsewhere.
func Alone(f func() error) error {
	return thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("make a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fmt.Errorf("keep mounts from the machine: %w", err)
		}
		return f()
	})
}

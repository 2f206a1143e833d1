package volume

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mountID identifies a mount. All fields are known before the mount is attached, so that they can be recorded first.
type mountID struct {
	// ID is the kernel's mount ID (statx(2)); it is never reused if the kernel has STATX_MNT_ID_UNIQUE.
	ID uint64 `json:"id"`
	// Dev and Ino identify the mount's root. Copies in other mount namespaces have other IDs, but the same root.
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

func (a mountID) same(b mountID) bool {
	return a.ID == b.ID && a.ID != 0 || a.Dev == b.Dev && a.Ino == b.Ino && a.Ino != 0
}

// identify returns the mount to which an open file belongs, and whether the file is its root.
func identify(fd int) (id mountID, root bool, err error) {
	var sx unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW,
		unix.STATX_BASIC_STATS|unix.STATX_MNT_ID_UNIQUE, &sx); err != nil {
		return id, false, err
	}
	if sx.Mask&unix.STATX_MNT_ID_UNIQUE == 0 { // Linux before 6.8
		if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID,
			&sx); err != nil {
			return id, false, err
		}
	}
	if sx.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return id, false, errors.New("the kernel does not distinguish mount points from other directories: Linux 5.8 or " +
			"newer is needed")
	}
	id = mountID{ID: sx.Mnt_id, Dev: unix.Mkdev(sx.Dev_major, sx.Dev_minor), Ino: sx.Ino}
	return id, sx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// mountAt returns the topmost mount at path, and whether there is one. It does not follow a symbolic link.
func mountAt(path string) (mountID, bool, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return mountID{}, false, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return identify(fd)
}

const maxStacked = 8

// detach detaches the mount want, and all mounts below it, from path. It succeeds if nothing is mounted there. It
// fails, and detaches nothing, if the mount there is another one.
func detach(path string, want mountID) error {
	for range maxStacked {
		more, err := detachOne(path, want)
		if err != nil || !more {
			return err
		}
	}
	return fmt.Errorf("more than %d mounts at %s", maxStacked, path)
}

func detachOne(path string, want mountID) (more bool, err error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	id, mounted, err := identify(fd)
	if err != nil || !mounted {
		return false, err
	}
	if !id.same(want) {
		return false, fmt.Errorf("%s has a mount that is not the volume's: unmount it", path)
	}
	// Use the file descriptor: the path may name something else by now.
	open := fmt.Sprintf("/proc/self/fd/%d", fd)
	// With shared propagation, detaching this copy would also detach the mounts below the original.
	if err := unix.Mount("", open, "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return false, &os.PathError{Op: "make private", Path: path, Err: err}
	}
	if err := unix.Unmount(open, unix.MNT_DETACH); err != nil {
		return false, &os.PathError{Op: "unmount", Path: path, Err: err}
	}
	return true, nil
}

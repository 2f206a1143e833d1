package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RemoveAll removes dir and its contents like os.RemoveAll, but never has more than maxOpen directories open: it
// moves deeper ones to the top first. It also removes immutable and append-only files (chattr(1)). No other process
// may write below dir. It returns nil if dir does not exist. It returns EBUSY if dir or something below it is a
// mount point, whose contents it does not touch.
func RemoveAll(ctx context.Context, dir string) error {
	top, err := unix.Open(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return &os.PathError{Op: "remove", Path: dir, Err: err}
	}
	defer unix.Close(top)
	r := &remover{ctx: ctx}
	if err := r.remove(top, filepath.Base(dir), 0); err != nil {
		return &os.PathError{Op: "remove", Path: dir, Err: err}
	}
	return nil
}

// Attributes from ioctl_iflags(2) that prevent removal.
const (
	appendOnly = 0x20 // FS_APPEND_FL
	immutable  = 0x10 // FS_IMMUTABLE_FL
)

type remover struct {
	ctx   context.Context
	root  int // file descriptor of the directory being removed
	moved int // number of directories moved to root
}

func (r *remover) remove(fd int, name string, depth int) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	err := unlink(fd, name, 0, depth)
	if errors.Is(err, unix.EBUSY) {
		return busy(name)
	}
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) { // POSIX allows both errors for a directory
		return err
	}
	if err = unlink(fd, name, unix.AT_REMOVEDIR, depth); errors.Is(err, unix.EBUSY) {
		return busy(name)
	}
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if depth >= maxOpen {
		r.moved++
		return changing(fd, name, depth, func() error {
			return unix.Renameat(fd, name, r.root, fmt.Sprintf(".removed-%d-%d", os.Getpid(), r.moved))
		})
	}
	below, err := openDir(fd, name)
	if errors.Is(err, unix.EXDEV) { // mounted in the meantime
		return busy(name)
	}
	if err != nil {
		return err
	}
	if depth == 0 {
		r.root = below
	}
	dir := os.NewFile(uintptr(below), name)
	defer dir.Close()
	for {
		if err := r.empty(dir, depth); err != nil {
			return err
		}
		// Read the directory again: entries may have been moved here, or skipped because it changed while it was
		// read.
		if err = unlink(fd, name, unix.AT_REMOVEDIR, depth); !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

func busy(name string) error { return fmt.Errorf("%q is a mount point: %w", name, unix.EBUSY) }

func unlink(fd int, name string, flags, depth int) error {
	return changing(fd, name, depth, func() error { return unix.Unlinkat(fd, name, flags) })
}

// changing calls change, which modifies the entry name of the directory fd. If attributes of either forbid the
// change, it clears them and calls change again. It keeps the attributes of the directory above the one being
// removed.
func changing(fd int, name string, depth int, change func() error) error {
	err := change()
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	cleared := depth > 0 && clearAttributes(fd)
	var st unix.Stat_t
	if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		(st.Mode&unix.S_IFMT == unix.S_IFREG || st.Mode&unix.S_IFMT == unix.S_IFDIR) {
		entry, err := unix.Openat2(fd, name, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
		})
		if err == nil {
			cleared = clearAttributes(entry) || cleared
			unix.Close(entry)
		}
	}
	if !cleared {
		return err
	}
	return change()
}

// clearAttributes reports whether there were attributes to clear.
func clearAttributes(fd int) bool {
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	return err == nil && flags&(immutable|appendOnly) != 0 &&
		unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags&^(immutable|appendOnly)) == nil
}

// empty reads the directory once and removes the entries it finds.
func (r *remover) empty(dir *os.File, depth int) error {
	for {
		names, err := dir.Readdirnames(batch)
		for _, name := range names {
			if err := r.remove(int(dir.Fd()), name, depth+1); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

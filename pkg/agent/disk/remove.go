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

// RemoveAll removes dir and its contents like os.RemoveAll, but never has more than maxOpen directories open: deeper ones are moved
// to the top first. No other process may write below dir. It returns nil if dir does not exist, and EBUSY if dir or something below it is a
// mount point, whose contents it leaves alone.
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

type remover struct {
	ctx   context.Context
	root  int // of the directory that is removed
	moved int // how many directories were moved to it
}

// remove removes the entry name of the directory fd.
func (r *remover) remove(fd int, name string, depth int) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	err := unix.Unlinkat(fd, name, 0)
	if errors.Is(err, unix.EBUSY) {
		return busy(name)
	}
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) { // POSIX allows both for a directory
		return err
	}
	if err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); errors.Is(err, unix.EBUSY) {
		return busy(name)
	}
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if depth >= maxOpen {
		r.moved++
		return unix.Renameat(fd, name, r.root, fmt.Sprintf(".removed-%d-%d", os.Getpid(), r.moved))
	}
	below, err := openDir(fd, name)
	if errors.Is(err, unix.EXDEV) { // mounted since
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
		// Entries may have been moved here, or skipped because the directory changed while it was read: read it again.
		if err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

func busy(name string) error { return fmt.Errorf("%q is a mount point: %w", name, unix.EBUSY) }

// empty reads the directory once and removes the entries found.
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

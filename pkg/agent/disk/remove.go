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

// RemoveAll removes dir and all in it, as os.RemoveAll does, but a directory of any depth takes no more than maxOpen file descriptors:
// what lies deeper is moved to the top first. Nobody else may write below dir. One that does not exist is no error.
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

// remove removes what fd has under the name.
func (r *remover) remove(fd int, name string, depth int) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	err := unix.Unlinkat(fd, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) { // POSIX allows both for a directory
		return err
	}
	if err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if depth >= maxOpen {
		r.moved++
		return unix.Renameat(fd, name, r.root, fmt.Sprintf(".removed-%d-%d", os.Getpid(), r.moved))
	}
	below, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
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
		// What was moved here meanwhile, or was missed while the directory shrank, needs another look.
		if err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

// empty removes what the directory holds as far as one reading of it tells.
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

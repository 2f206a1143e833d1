// Package disk measures, copies and removes directories that untrusted processes write to.
//
// Its invariants: it never leaves the directory, since it follows neither links nor mounts. Its memory and number of
// file descriptors are bounded, regardless of the directory's depth and number of files.
package disk

import (
	"context"
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// Usage is the disk usage of files.
type Usage struct{ Bytes, Inodes uint64 }

// Plus returns the sum.
func (u Usage) Plus(v Usage) Usage { return Usage{u.Bytes + v.Bytes, u.Inodes + v.Inodes} }

const (
	// maxOpen is the number of nested directories that are open at once.
	maxOpen = 64
	// batch is the number of directory entries read at once.
	batch = 256
	// maxPath limits the length of a path below the directory, and maxDeferred the total length of the queued paths
	// of directories deeper than maxOpen, both in bytes. maxEntries limits the number of files. A directory beyond a
	// limit counts as Endless.
	maxPath     = 64 << 10
	maxDeferred = 16 << 20
	maxEntries  = 1 << 26
	// maxLinked is the number of hard-linked files that are tracked. Beyond it every link is counted.
	maxLinked = 1 << 20
)

// Endless is the reported size, in bytes, of a directory that is too deeply nested or has too many files to be
// measured. It exceeds any limit.
const Endless = 1 << 50

type file struct{ dev, ino uint64 }

type walker struct {
	ctx    context.Context
	root   int
	device uint64
	linked map[file]bool
	later  []string // directories below root
	size   int      // total length of later, in bytes
	usage  Usage
}

// Of returns the usage of dir, like du -x: allocated blocks, with hard-linked files counted once. It ignores files
// that are removed during the walk; the usage of a nonexistent dir is zero. It returns ctx's error when ctx is done.
func Of(ctx context.Context, dir string) (Usage, error) {
	w := &walker{ctx: ctx}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return Usage{}, ignoreGone(err)
	}
	w.device = st.Dev
	w.count(&st)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return w.usage, ctx.Err()
	}
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Usage{}, ignoreGone(err)
	}
	w.root = root
	defer unix.Close(root)
	w.later = []string{"."}
	for len(w.later) > 0 {
		name := w.later[len(w.later)-1]
		w.later = w.later[:len(w.later)-1]
		w.size -= len(name)
		fd, err := w.open(name)
		if err == nil {
			err = w.walk(fd, name, 0)
		}
		if err = ignoreGone(err); err != nil {
			return w.usage, err
		}
	}
	return w.usage, ctx.Err()
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) ||
		errors.Is(err, unix.EXDEV) {
		return nil
	}
	return err
}

// open opens a directory below root in steps of at most PATH_MAX bytes, without following symbolic links.
func (w *walker) open(name string) (int, error) {
	at, err := unix.Dup(w.root)
	for err == nil && name != "" {
		piece := name
		if len(piece) > unix.PathMax-1 {
			piece = piece[:unix.PathMax-1]
			for piece[len(piece)-1] != '/' {
				piece = piece[:len(piece)-1]
			}
		}
		name = name[len(piece):]
		var next int
		next, err = openDir(at, piece)
		unix.Close(at)
		at = next
	}
	return at, err
}

func openDir(at int, name string) (int, error) {
	return unix.Openat2(at, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV})
}

func (w *walker) count(st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		key := file{st.Dev, st.Ino}
		if w.linked[key] {
			return
		}
		if w.linked == nil {
			w.linked = map[file]bool{}
		}
		if len(w.linked) < maxLinked {
			w.linked[key] = true
		}
	}
	w.usage = w.usage.Plus(Usage{uint64(st.Blocks) * 512, 1})
}

// walk counts the contents of the directory fd and closes it.
func (w *walker) walk(fd int, name string, depth int) error {
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	for {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if w.usage.Inodes > maxEntries {
			w.usage.Bytes = max(w.usage.Bytes, Endless)
			return nil
		}
		names, err := dir.Readdirnames(batch)
		for _, n := range names {
			if err := w.entry(fd, name, n, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return ignoreGone(err)
		}
	}
}

func (w *walker) entry(fd int, parent, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return ignoreGone(err)
	}
	if st.Dev != w.device {
		return nil
	}
	w.count(&st)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	full := path.Join(parent, name)
	if depth+1 >= maxOpen {
		if len(full) > maxPath || w.size+len(full) > maxDeferred {
			w.usage.Bytes = max(w.usage.Bytes, Endless)
			return nil
		}
		w.later = append(w.later, full)
		w.size += len(full)
		return nil
	}
	below, err := openDir(fd, name)
	if err != nil {
		return ignoreGone(err)
	}
	return w.walk(below, full, depth+1)
}

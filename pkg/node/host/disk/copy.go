package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

const (
	// maxDepth is the number of nested directories that Copy descends. Each takes two file descriptors.
	maxDepth = 250
	// chunk is the number of bytes copied between checks of free space and the context.
	chunk = 64 << 20
	// KeepPart is a divisor: 1/KeepPart of a file system's bytes, and of its inodes, must stay free during Copy.
	// That is more than the pressure at which pods are evicted.
	KeepPart = 10
	// maxXattrs limits the names, and each value, of a file's extended attributes, in bytes. It is Linux's limit.
	maxXattrs = 64 << 10
	// maxChanges is the number of attempts to copy a file that is replaced while it is copied.
	maxChanges = 10
)

// ErrFull means that a copy would have left too little of the file system free.
var ErrFull = errors.New("the copy was given up: less than a tenth of the file system's bytes or inodes would be " +
	"left free")

// Copy copies the contents of the directory from into the directory to, which must be empty and not used by any
// other process. It preserves owners, modes, times, extended attributes, holes and hard links (of up to a million
// files with several links, with 16 MiB of paths). It shares blocks where the file system can (FICLONE). Other
// processes may write to from: each file is copied in a state it had at some time, and removed files are omitted.
// Mounts, and directories nested deeper than 250, are errors. Copy has two file descriptors open per directory on
// its path. It calls copied, if not nil, with the number of bytes copied so far, at least every 64 MiB, but not for
// shared blocks.
func Copy(ctx context.Context, from, to string, copied func(bytes uint64)) error {
	src, err := unix.Open(from, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "copy", Path: from, Err: err}
	}
	dst, err := unix.Open(to, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(src)
		return &os.PathError{Op: "copy to", Path: to, Err: err}
	}
	defer unix.Close(dst)
	c := &copier{ctx: ctx, root: dst, copied: copied, links: map[link]string{}}
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		unix.Close(src)
		return &os.PathError{Op: "copy", Path: from, Err: err}
	}
	if err := c.directory(src, dst, &st, "", 0); err != nil {
		return &os.PathError{Op: "copy", Path: from, Err: err}
	}
	return nil
}

// CopyFile copies the data of the file from, including holes, to the new file to with mode 0600. Otherwise it is
// like Copy.
func CopyFile(ctx context.Context, from, to string, copied func(bytes uint64)) error {
	src, err := unix.Open(from, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "copy", Path: from, Err: err}
	}
	defer unix.Close(src)
	dst, err := unix.Open(to, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "copy to", Path: to, Err: err}
	}
	defer unix.Close(dst)
	c := &copier{ctx: ctx, root: dst, copied: copied}
	if err := c.whole(src, dst); err != nil {
		return &os.PathError{Op: "copy", Path: from, Err: err}
	}
	return nil
}

func (c *copier) whole(src, dst int) error {
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.New("not a regular file")
	}
	if err := c.mayGoOn(); err != nil {
		return err
	}
	if unix.IoctlFileClone(dst, src) == nil {
		return nil
	}
	return c.data(src, dst, st.Size)
}

type copier struct {
	ctx    context.Context
	root   int
	copied func(uint64)
	bytes  uint64
	links  map[link]string // paths below root of the copies of files with several links
	linked int             // total length of the paths in links, in bytes
}

// link identifies a file with several links. The creation time is needed because a new file may get a removed file's
// inode number.
type link struct {
	file
	born unix.StatxTimestamp // creation time; zero if the file system has none
}

// pathError is an error with the path, below the copied directory, at which it occurred.
type pathError struct {
	path string
	err  error
}

func (e *pathError) Error() string { return e.path + ": " + e.err.Error() }
func (e *pathError) Unwrap() error { return e.err }

// directory copies the contents and then the attributes of the directory src, which it closes, to dst.
func (c *copier) directory(src, dst int, st *unix.Stat_t, name string, depth int) error {
	dir := os.NewFile(uintptr(src), name)
	defer dir.Close()
	if depth > maxDepth {
		return fmt.Errorf("directories are nested deeper than %d", maxDepth)
	}
	for {
		names, err := dir.Readdirnames(batch)
		for _, n := range names {
			if err := c.entry(src, dst, name, n, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) { // all read, or src was removed
			return c.attributes(src, dst, st)
		}
		if err != nil {
			return err
		}
	}
}

// errChanged means that an entry was replaced after its type was determined.
var errChanged = errors.New("the file changed during the copy")

func (c *copier) entry(src, dst int, parent, name string, depth int) error {
	full := path.Join(parent, name)
	for attempt := 1; ; attempt++ {
		if err := c.mayGoOn(); err != nil {
			return err
		}
		var st unix.Stat_t
		err := unix.Fstatat(src, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil {
			err = c.one(src, dst, full, name, &st, depth)
		}
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		// Some file systems list a name again that was removed and created anew. Its copy exists.
		case errors.Is(err, unix.EEXIST):
			return nil
		case errors.Is(err, errChanged) && attempt < maxChanges:
		case errors.As(err, new(*pathError)): // from an entry below this one
			return err
		default:
			return &pathError{full, err}
		}
	}
}

// mayGoOn returns an error if the copy must stop: the context is done, or too little space is free.
func (c *copier) mayGoOn() error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(c.root, &fs); err != nil {
		return err
	}
	if fs.Bavail < fs.Blocks/KeepPart || fs.Ffree < fs.Files/KeepPart {
		return ErrFull
	}
	return nil
}

func (c *copier) one(src, dst int, full, name string, st *unix.Stat_t, depth int) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		below, err := openDir(src, name)
		if err != nil {
			return opened(err)
		}
		if err := unix.Mkdirat(dst, name, 0o700); err != nil {
			unix.Close(below)
			return err
		}
		to, err := openDir(dst, name)
		if err != nil {
			unix.Close(below)
			return err
		}
		defer unix.Close(to)
		return begun(c.directory(below, to, st, full, depth+1))
	case unix.S_IFREG:
		return c.regular(src, dst, full, name)
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(src, name, target)
		if errors.Is(err, unix.EINVAL) {
			return errChanged
		}
		if err == nil {
			err = unix.Symlinkat(string(target[:n]), dst, name)
		}
		if err != nil {
			return err
		}
	default: // pipes, sockets and devices
		if err := unix.Mknodat(dst, name, st.Mode, int(st.Rdev)); err != nil {
			return err
		}
		if err := unix.Fchmodat(dst, name, st.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	if err := unix.Fchownat(dst, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.UtimesNanoAt(dst, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// opened translates an error from opening an entry.
func opened(err error) error {
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return errChanged
	case errors.Is(err, unix.EXDEV):
		return errors.New("is a mount point")
	}
	return err
}

// begun hides ENOENT and errChanged once part of an entry has been copied. Otherwise entry would skip or retry it.
func begun(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, errChanged) {
		return fmt.Errorf("the copy is incomplete: %s", err.Error())
	}
	return err
}

// regular copies a file. For another link to a file that was copied, it creates a link to the copy.
func (c *copier) regular(src, dst int, full, name string) error {
	from, err := unix.Openat2(src, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return opened(err)
	}
	defer unix.Close(from)
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errChanged
	}
	if st.Nlink > 1 {
		var sx unix.Statx_t
		if err := unix.Statx(from, "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &sx); err != nil {
			return err
		}
		key := link{file{st.Dev, st.Ino}, sx.Btime}
		first, known := c.links[key]
		if known && unix.Linkat(c.root, first, dst, name, 0) == nil {
			return nil
		}
		if !known && len(c.links) < maxLinked && len(full) < unix.PathMax && c.linked+len(full) <= maxDeferred {
			c.links[key] = full
			c.linked += len(full)
		}
	}
	to, err := unix.Openat(dst, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return begun(err)
	}
	defer unix.Close(to)
	if unix.IoctlFileClone(to, from) != nil {
		if err := c.data(from, to, st.Size); err != nil {
			return begun(err)
		}
	}
	return begun(c.attributes(from, to, &st))
}

// data copies the first size bytes of a file, except for holes.
func (c *copier) data(from, to int, size int64) error {
	if err := unix.Ftruncate(to, size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		begin, err := unix.Seek(from, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // the rest is a hole, or the file became shorter
			return nil
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(from, begin, unix.SEEK_HOLE)
		if errors.Is(err, unix.ENXIO) { // the file became shorter
			return nil
		}
		if err != nil {
			return err
		}
		if at, err = c.extent(from, to, begin, min(end, size)); err != nil {
			return err
		}
	}
	return nil
}

// extent copies a part of a file and returns where the next part may begin.
func (c *copier) extent(from, to int, at, end int64) (int64, error) {
	for at < end {
		if err := c.mayGoOn(); err != nil {
			return at, err
		}
		in, out := at, at
		n, err := unix.CopyFileRange(from, &in, to, &out, int(min(end-at, chunk)), 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS),
			errors.Is(err, unix.EOPNOTSUPP):
			n, err = through(from, to, at, end) // the file system does not support copy_file_range
		}
		if err != nil {
			return at, err
		}
		if n == 0 { // the file became shorter
			return end, nil
		}
		at += int64(n)
		c.bytes += uint64(n)
		if c.copied != nil {
			c.copied(c.bytes)
		}
	}
	return end, nil
}

// through copies at most 1 MiB by reading and writing.
func through(from, to int, at, end int64) (int, error) {
	buffer := make([]byte, min(end-at, 1<<20))
	n, err := unix.Pread(from, buffer, at)
	for done := 0; err == nil && done < n; {
		var more int
		more, err = unix.Pwrite(to, buffer[done:n], at+int64(done))
		done += more
	}
	return n, err
}

func (c *copier) attributes(from, to int, st *unix.Stat_t) error {
	if err := unix.Fchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := xattrs(from, to); err != nil {
		return fmt.Errorf("extended attributes: %w", err)
	}
	if err := unix.Fchmod(to, st.Mode&0o7777); err != nil {
		return err
	}
	return unix.UtimesNano(fmt.Sprintf("/proc/self/fd/%d", to), []unix.Timespec{st.Atim, st.Mtim})
}

func xattrs(from, to int) error {
	list := make([]byte, maxXattrs)
	n, err := unix.Flistxattr(from, list)
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	value := make([]byte, maxXattrs)
	for begin, i := 0, 0; i < n; i++ {
		if list[i] != 0 {
			continue
		}
		name := string(list[begin:i])
		begin = i + 1
		size, err := unix.Fgetxattr(from, name, value)
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
			continue
		}
		if err == nil {
			err = unix.Fsetxattr(to, name, value[:size], 0)
		}
		if err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

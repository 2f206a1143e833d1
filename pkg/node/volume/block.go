package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/host/disk"
)

// A volume of volumeMode Block is a file where others have a directory, which only the agent and the kernel open, and
// while pods use it a loop device. All of its size is reserved when it is made and when it grows, so that what a pod
// was promised is there, and so that volumes fill the file system only as far as disk.KeepPart of it.

// blockUnit is what sizes of block volumes are rounded up to, in bytes.
const blockUnit = 4 << 10

// ErrNoRoom means that the file system has too little room for what a block volume asks for.
var ErrNoRoom = errors.New("there is too little room")

// attach returns the path of the block device that is a volume, which it makes if it is missing. want is the path in
// the volume's object. The volume has at least least bytes, and is refused if it has more than most. It fails with
// ErrBusy while the volume is copied: copies are of a volume that nobody writes.
func (d *Directories) attach(volume, want string, least, most int64) (string, error) {
	path, err := d.path(volume)
	if err != nil {
		return "", err
	}
	if path != want {
		return "", d.elsewhere(want)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.making[volume] || d.copied[volume] > 0 {
		return "", ErrBusy
	}
	image, err := d.image(volume, path, inUnits(least), inUnits(most))
	if err != nil {
		return "", err
	}
	defer image.Close()
	return d.loop(image)
}

// inUnits rounds a size up, but the largest ones, for which there is no room anyway.
func inUnits(size int64) int64 {
	return (min(max(size, 1), math.MaxInt64-blockUnit+1) + blockUnit - 1) / blockUnit * blockUnit
}

// loop returns the loop device of an image, which it binds first. Called with the lock held.
func (d *Directories) loop(image *os.File) (path string, err error) {
	info, err := image.Stat()
	if err != nil {
		return "", err
	}
	loops, err := loopsOf(image)
	switch {
	case err != nil:
		return "", err
	case len(loops) > 0:
		path = loops[0].path
	default:
		// With direct I/O what a pod reads and writes is in memory once, not twice. Where the file system has none, the
		// kernel does without.
		if path, err = bindLoop(image, unix.LO_FLAGS_DIRECT_IO); err != nil {
			return "", err
		}
		keepReserved(path)
	}
	if err := d.fail.At("block.bound"); err != nil {
		return "", err
	}
	if err := holdLoop(path); err != nil {
		return "", err
	}
	if err := d.fail.At("block.held"); err != nil {
		return "", err
	}
	return path, fitLoop(path, info.Size())
}

// image opens the file of a block volume. It makes one that is missing. Called with the lock held.
func (d *Directories) image(volume, path string, least, most int64) (*os.File, error) {
	image, err := openImage(path, os.O_RDWR)
	if errors.Is(err, unix.EISDIR) {
		err = os.Remove(path) // the copy of one that was never used is an empty directory
		if err == nil {
			err = fs.ErrNotExist
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return d.newImage(volume, path, least)
	}
	if err != nil {
		return nil, err
	}
	info, err := image.Stat()
	if err == nil && info.Size() > most {
		err = fmt.Errorf("%s has %d bytes, and the volume %d", path, info.Size(), most)
	}
	if err == nil && info.Size() < least {
		err = d.reserve(image, least)
	} else if err == nil {
		_ = d.reserve(image, info.Size()) // what was discarded; the volume can be used without it
	}
	if err != nil {
		image.Close()
		return nil, err
	}
	return image, nil
}

// newImage makes the file of a block volume in one step.
func (d *Directories) newImage(volume, path string, size int64) (*os.File, error) {
	if err := os.MkdirAll(d.dir, 0o711); err != nil {
		return nil, err
	}
	next := filepath.Join(d.dir, newPrefix+volume)
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an attempt that was interrupted
		return nil, err
	}
	image, err := os.OpenFile(next, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	if err := d.fail.At("block.begun"); err != nil {
		return nil, err
	}
	if err := d.reserve(image, size); err != nil {
		return nil, errors.Join(err, os.Remove(next))
	}
	if err := d.fail.At("block.reserved"); err != nil {
		return nil, err
	}
	if err := os.Rename(next, path); err != nil {
		return nil, err
	}
	return openImage(path, os.O_RDWR)
}

// openImage opens the file of a block volume. The error is EISDIR for another volume's directory.
func openImage(path string, how int) (*os.File, error) {
	image, err := os.OpenFile(path, how|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	info, err := image.Stat()
	switch {
	case err == nil && info.IsDir():
		err = &os.PathError{Op: "open", Path: path, Err: unix.EISDIR}
	case err == nil && !info.Mode().IsRegular():
		err = &os.PathError{Op: "open", Path: path, Err: unix.EINVAL}
	}
	if err != nil {
		image.Close()
		return nil, err
	}
	return image, nil
}

// reserve gives a block volume's file a size, in bytes, and blocks for all of it. If that fails, the file is as it was.
// Called with the lock held.
func (d *Directories) reserve(image *os.File, size int64) error {
	var st unix.Stat_t
	fd := int(image.Fd())
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: image.Name(), Err: err}
	}
	missing := size - st.Blocks*512
	if missing <= 0 && size <= st.Size {
		return nil
	}
	if err := d.room(image, missing); err != nil {
		return err
	}
	var err error = unix.EINTR
	for errors.Is(err, unix.EINTR) {
		err = unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, size)
	}
	if err != nil {
		err = fmt.Errorf("reserve %d bytes for a block volume: %w", size, err)
		return errors.Join(err, image.Truncate(st.Size)) // frees the blocks beyond the end
	}
	if size > st.Size {
		if err := image.Truncate(size); err != nil {
			return err
		}
	}
	return image.Sync()
}

// room fails with ErrNoRoom if a file cannot have a number of bytes more. What other block volumes were promised and do
// not occupy, because they gave it back or are still being copied, is taken, too.
func (d *Directories) room(image *os.File, bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(image.Fd()), &st); err != nil {
		return &os.PathError{Op: "statfs", Path: image.Name(), Err: err}
	}
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return err
	}
	promised := int64(0)
	for _, e := range entries {
		if e.Name() == filepath.Base(image.Name()) || !e.Type().IsRegular() {
			continue
		}
		var other unix.Stat_t
		if err := unix.Lstat(filepath.Join(d.dir, e.Name()), &other); err != nil {
			return &os.PathError{Op: "lstat", Path: e.Name(), Err: err}
		}
		promised += max(other.Size-other.Blocks*512, 0)
	}
	free := (int64(st.Bavail)-int64(st.Blocks/disk.KeepPart))*st.Bsize -
		promised //nolint:gosec // of a file system: far from 2^63
	if bytes > free {
		return fmt.Errorf("%w for a block volume, all of whose size is reserved: %s more are wanted, and %s are there "+
			"beyond the tenth of the file system that is kept free",
			ErrNoRoom, roughly(bytes, true), roughly(max(free, 0), false))
	}
	return nil
}

// roughly writes a number of bytes in whole units, of which there are ten at least, rounded up or down. What is free
// changes all the time, and events that say the same are counted, not repeated.
func roughly(bytes int64, up bool) string {
	units, unit := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}, 0
	for ; bytes >= 10<<10 && unit < len(units)-1; unit++ {
		rest := bytes & (1<<10 - 1)
		if bytes >>= 10; up && rest > 0 {
			bytes++
		}
	}
	return strconv.FormatInt(bytes, 10) + units[unit]
}

// release detaches a block volume when the last pod that uses it ends. It does nothing for other volumes.
func (d *Directories) release(volume string, pod types.UID) error {
	path, err := d.path(volume)
	if err != nil {
		return nil //nolint:nilerr // not one of ours
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if other, err := d.inUse(volume, pod); err != nil || other != "" {
		return err
	}
	return detachImage(path)
}

// detachImage detaches the loop device of a block volume. It succeeds if there is none.
func detachImage(path string) error {
	image, err := openImage(path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EISDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	defer image.Close()
	loops, err := loopsOf(image)
	for _, l := range loops {
		err = errors.Join(err, detachLoop(l.path))
	}
	return err
}

// grow gives a block volume another size, in bytes, also while it is used.
func (d *Directories) grow(path string, size int64) error {
	image, err := openImage(path, os.O_RDWR)
	if err != nil {
		return err
	}
	defer image.Close()
	info, err := image.Stat()
	if err == nil && info.Size() > inUnits(size) {
		err = fmt.Errorf("the volume has %d bytes, and is not made smaller", info.Size())
	}
	if err != nil {
		return err
	}
	if err := d.reserve(image, inUnits(size)); err != nil {
		return err
	}
	if err := d.fail.At("block.grown"); err != nil {
		return err
	}
	if info, err = image.Stat(); err != nil {
		return err
	}
	loops, err := loopsOf(image)
	for _, l := range loops {
		err = errors.Join(err, fitLoop(l.path, info.Size()))
	}
	return err
}

// isBlock reports whether what is at a path is a block volume, or a snapshot of one.
func isBlock(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular()
}

// DetachAll detaches the block volumes that are in a directory for local volumes. No agent may be running with them.
func DetachAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Type().IsRegular() {
			errs = append(errs, detachImage(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

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

// A volume of volumeMode Block is a regular file instead of a directory. Only the agent and the kernel open it; pods
// get a loop device bound to it. The volume's full size is reserved when it is made or grown, so that a pod can use
// all of it, and so that reservations leave 1/disk.KeepPart of the file system free.

// blockUnit is the unit to which sizes of block volumes are rounded up, in bytes.
const blockUnit = 4 << 10

// ErrNoRoom means that the file system has too little free space for a block volume.
var ErrNoRoom = errors.New("not enough free space for the volume")

// attach returns the path of a volume's block device, and makes the volume if it is missing. want is the path in the
// PersistentVolume. The volume gets at least least bytes, and is refused if it has more than most. The error is
// ErrBusy while the volume is being copied, because block volumes are copied only while they are not in use.
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

// inUnits rounds a size up to blockUnit. Sizes near the largest int64 are rounded down.
func inUnits(size int64) int64 {
	return (min(max(size, 1), math.MaxInt64-blockUnit+1) + blockUnit - 1) / blockUnit * blockUnit
}

// loop returns the loop device of an image, and binds one if there is none. Called with the lock held.
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
		// Direct I/O avoids caching data twice. The kernel ignores the flag if the file system does not support it.
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

// image opens the file of a block volume, and makes it if it is missing. Called with the lock held.
func (d *Directories) image(volume, path string, least, most int64) (*os.File, error) {
	image, err := openImage(path, os.O_RDWR)
	if errors.Is(err, unix.EISDIR) {
		err = os.Remove(path) // a copy of a volume that was never used is an empty directory
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
		_ = d.reserve(image, info.Size()) // reserve discarded blocks again; the volume is usable without them
	}
	if err != nil {
		image.Close()
		return nil, err
	}
	return image, nil
}

func (d *Directories) newImage(volume, path string, size int64) (*os.File, error) {
	if err := os.MkdirAll(d.dir, 0o711); err != nil {
		return nil, err
	}
	next := filepath.Join(d.dir, newPrefix+volume)
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) { // an interrupted attempt
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

// openImage opens the file of a block volume. The error is EISDIR if the volume is a directory.
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

// reserve sets the size of a block volume's file, in bytes, and allocates all of its blocks. On failure the file is
// unchanged. Called with the lock held.
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

// room fails with ErrNoRoom if a file cannot grow by a number of bytes. Blocks that other volumes' files have not
// allocated, because they were discarded or are still being copied, count as taken.
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

// roughly formats a number of bytes in the largest unit that gives at least ten units, rounded up or down. Free space
// changes all the time, and events with the same text are counted instead of repeated.
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

// grow enlarges a block volume to a size in bytes, also while it is in use. It refuses to shrink it.
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

func isBlock(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular()
}

// DetachAll detaches the block volumes in a directory of local volumes that no running agent uses.
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

package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// Loop devices (loop(4)) present files as block devices. The kernel knows the backing file of each device, so nothing
// is recorded.
//
// A pod with access to a loop device may detach it without any capability. The kernel would then give the device's
// number to another pod's volume, and the first pod would have access to it. But the kernel detaches a device only
// when the last open file on it is closed. So each pod's device is the backing file of a second loop device, its
// holder, which keeps it open until the agent detaches the holder, also while no agent runs. Pods have no access to
// holders.
const (
	loopControl = "/dev/loop-control"
	blockDir    = "/sys/block"
	// maxBackingFile is the length of a path and " (deleted)", in bytes.
	maxBackingFile = unix.PathMax + 64
	// bindAttempts limits how often bindLoop tries another free device, because other processes may take it first.
	bindAttempts = 100
)

type boundLoop struct {
	path    string
	leaving bool // it is detached when the last file on it is closed
}

// loopsOf returns the loop devices that are bound to an open file.
func loopsOf(file *os.File) ([]boundLoop, error) {
	var is unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &is); err != nil {
		return nil, &os.PathError{Op: "stat", Path: file.Name(), Err: err}
	}
	entries, err := os.ReadDir(blockDir)
	if err != nil {
		return nil, err
	}
	var out []boundLoop
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "loop") {
			continue
		}
		backing, err := bounded.File(filepath.Join(blockDir, e.Name(), "loop", "backing_file"), maxBackingFile)
		if err != nil || filepath.Base(strings.TrimSuffix(string(backing), "\n")) != filepath.Base(file.Name()) {
			continue // free, or bound to another file
		}
		path := filepath.Join("/dev", e.Name())
		info, err := loopStatus(path)
		if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
			continue // it was detached just now
		}
		if err != nil {
			return nil, err
		}
		if info.Device == is.Dev && info.Inode == is.Ino {
			out = append(out, boundLoop{path, info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0})
		}
	}
	return out, nil
}

func loopStatus(path string) (*unix.LoopInfo64, error) {
	device, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer device.Close()
	info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
	if err != nil {
		return nil, &os.PathError{Op: "read the status of", Path: path, Err: err}
	}
	return info, nil
}

func bindLoop(file *os.File, flags uint32) (string, error) {
	control, err := os.OpenFile(loopControl, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("this node has no loop devices, which provisioned block volumes need: %w", err)
	}
	defer control.Close()
	for range bindAttempts {
		free, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("find a free loop device: %w", err)
		}
		path := "/dev/loop" + strconv.Itoa(free)
		if err = configureLoop(path, file, flags); err == nil {
			return path, nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return "", err
		}
	}
	return "", errors.New("other processes took every free loop device")
}

func configureLoop(path string, file *os.File, flags uint32) error {
	device, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	c := unix.LoopConfig{
		Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: flags},
	} //nolint:gosec // descriptors are small
	copy(c.Info.File_name[:len(c.Info.File_name)-1], file.Name()) // what losetup shows
	if err := unix.IoctlLoopConfigure(int(device.Fd()), &c); err != nil {
		return &os.PathError{Op: "bind", Path: path, Err: err}
	}
	return nil
}

func holdLoop(path string) error {
	device, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	holders, err := loopsOf(device)
	if err != nil || slices.ContainsFunc(holders, func(h boundLoop) bool { return !h.leaving }) {
		return err
	}
	_, err = bindLoop(device, unix.LO_FLAGS_READ_ONLY)
	return err
}

// detachLoop detaches a loop device, if it is attached, and its holder. An open device is detached when it is closed.
func detachLoop(path string) error {
	device, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	if err := device.Sync(); err != nil { // the kernel drops unwritten data when it detaches the device
		return err
	}
	holders, err := loopsOf(device)
	if err != nil {
		return err
	}
	for _, h := range holders {
		holder, err := os.OpenFile(h.path, os.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(clearLoop(holder), holder.Close()); err != nil {
			return err
		}
	}
	return clearLoop(device)
}

func clearLoop(device *os.File) error {
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return &os.PathError{Op: "detach", Path: device.Name(), Err: err}
	}
	return nil
}

// fitLoop sets a loop device's size to its file's, in bytes, and resets settings that a pod may have changed.
func fitLoop(path string, size int64) error {
	device, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	fd := int(device.Fd())
	info, err := unix.IoctlLoopGetStatus64(fd)
	if err != nil {
		return &os.PathError{Op: "read the status of", Path: path, Err: err}
	}
	const changeable = unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_PARTSCAN
	if info.Offset != 0 || info.Sizelimit != 0 || info.Flags&changeable != 0 {
		info.Offset, info.Sizelimit = 0, 0
		info.Flags &^= changeable
		if err := unix.IoctlLoopSetStatus64(fd, info); err != nil {
			return &os.PathError{Op: "set the status of", Path: path, Err: err}
		}
	}
	var has uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&has))); errno !=
		0 {
		return &os.PathError{Op: "read the size of", Path: path, Err: errno}
	}
	if has == uint64(size) { //nolint:gosec // of a file
		return nil
	}
	if err := unix.IoctlSetInt(fd, unix.LOOP_SET_CAPACITY, 0); err != nil {
		return &os.PathError{Op: "set the size of", Path: path, Err: err}
	}
	return nil
}

// keepReserved disables discards on a loop device, so that mkfs and fstrim do not free its file's reserved blocks.
// This is best effort: room counts freed blocks of other block volumes as taken.
func keepReserved(path string) {
	_ = os.WriteFile(filepath.Join(blockDir, filepath.Base(path), "queue", "discard_max_bytes"), []byte("0"), 0)
}

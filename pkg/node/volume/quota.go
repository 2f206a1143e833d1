package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Project quotas (quotactl_fd(2), Linux 5.14) limit the size of a directory tree on ext4 and xfs file systems mounted
// with prjquota. x/sys/unix lacks these constants.
const (
	quotaProject = 2
	quotaGet     = 0x800007 // Q_GETQUOTA
	quotaSet     = 0x800008 // Q_SETQUOTA
	quotaState   = 'X'<<8 + 8

	projectEnforced = 1 << 5     // FS_QUOTA_PDQ_ENFD
	projectInherit  = 1 << 9     // FS_XFLAG_PROJINHERIT
	getAttributes   = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes   = 0x401c5820 // FS_IOC_FSSETXATTR

	limitBlocks = 1    // QIF_BLIMITS
	blockSize   = 1024 // QIF_DQBLKSIZE

	// Volumes use projects from firstProject up, a range that /etc/projid and other programs are unlikely to use.
	firstProject = 0x434f0000
	maxProjects  = 1 << 16
)

type quota struct {
	hardBlocks, softBlocks, bytes  uint64
	hardInodes, softInodes, inodes uint64
	blockTime, inodeTime           uint64
	valid, _                       uint32
}

type attributes struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

func quotactl(dir *os.File, command, project uintptr, data unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, dir.Fd(), command<<8|quotaProject, project, uintptr(data), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func quotaOf(dir *os.File, project uint32, q *quota) error {
	return quotactl(dir, quotaGet, uintptr(project), unsafe.Pointer(q))
}

func limited(dir *os.File) bool {
	state := struct { // struct fs_quota_statv, 160 bytes
		version int8
		_       uint8
		flags   uint16
		_       uint32
		_       [19]uint64
	}{version: 1}
	return quotactl(dir, quotaState, 0, unsafe.Pointer(&state)) == nil && state.flags&projectEnforced != 0
}

func attributesOf(dir *os.File) (a attributes, err error) {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), getAttributes, uintptr(unsafe.Pointer(&a))); errno != 0 {
		err = errno
	}
	return a, err
}

// projectOf returns a volume's project, 0 if it has none. It is recorded as the target of a symbolic link beside the
// directory, because root in a container may change the project of the directory itself.
func (d *Directories) projectOf(volume string) (uint32, error) {
	path := filepath.Join(d.dir, projectPrefix+volume)
	text, err := os.Readlink(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil || id < firstProject || id >= firstProject+maxProjects {
		return 0, fmt.Errorf("%s is not the record of a volume's project: %q", path, text)
	}
	return uint32(id), nil
}

// assign gives a volume's new and empty directory a project of its own. It does nothing if quotas are not enforced.
func (d *Directories) assign(volume, path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if !limited(dir) {
		return nil
	}
	a, err := attributesOf(dir)
	if err != nil {
		return &os.PathError{Op: "read the project of", Path: path, Err: err}
	}
	id, err := d.projectOf(volume)
	if err != nil {
		return err
	}
	if id == 0 {
		if id, err = d.free(dir); err != nil {
			return err
		}
		if err := os.Symlink(strconv.FormatUint(uint64(id), 10), filepath.Join(d.dir, projectPrefix+volume)); err != nil {
			return err
		}
	}
	if err := d.fail.At("local.assigned"); err != nil {
		return err
	}
	a.project, a.flags = id, a.flags|projectInherit
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), setAttributes, uintptr(unsafe.Pointer(&a))); errno != 0 {
		return &os.PathError{Op: "assign a project to", Path: path, Err: errno}
	}
	return nil
}

// free returns a project that neither a volume nor a file on dir's file system has.
func (d *Directories) free(dir *os.File) (uint32, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return 0, err
	}
	taken := map[uint32]bool{}
	for _, e := range entries {
		if volume, record := strings.CutPrefix(e.Name(), projectPrefix); record {
			id, err := d.projectOf(volume)
			if err != nil {
				return 0, err
			}
			taken[id] = true
		}
	}
	for id := uint32(firstProject); id < firstProject+maxProjects; id++ {
		if taken[id] {
			continue
		}
		var q quota
		if err := quotaOf(dir, id, &q); err == nil && (q.bytes > 0 || q.inodes > 0) {
			continue // files that were moved out of a volume keep its project
		}
		return id, nil
	}
	return 0, fmt.Errorf("all %d projects for volumes are taken", maxProjects)
}

// limit sets a volume's size limit in bytes; 0 removes it. Without a project or quotas the size is only measured.
func (d *Directories) limit(volume string, bytes int64) error {
	d.sizes.set(volume, bytes)
	id, err := d.projectOf(volume)
	if err != nil || id == 0 {
		return err
	}
	dir, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if !limited(dir) {
		return nil
	}
	q := quota{valid: limitBlocks}
	if bytes > 0 {
		q.hardBlocks = (uint64(bytes) + blockSize - 1) / blockSize
	}
	if err := quotactl(dir, quotaSet, uintptr(id), unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("limit the size of volume %s: %w", volume, err)
	}
	return nil
}

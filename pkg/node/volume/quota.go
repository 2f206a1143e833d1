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

// Project quotas (quotactl_fd(2), Linux 5.14) limit what a directory and all below it take of a file system: ext4 and
// xfs that are mounted with prjquota. x/sys/unix has the numbers of the calls, but not these.
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

	// Volumes get the projects from here on, where neither /etc/projid nor other programs are likely to have theirs.
	firstProject = 0x434f0000
	maxProjects  = 1 << 16
)

// quota is struct if_dqblk.
type quota struct {
	hardBlocks, softBlocks, bytes  uint64
	hardInodes, softInodes, inodes uint64
	blockTime, inodeTime           uint64
	valid, _                       uint32
}

// attributes is struct fsxattr.
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

// limited reports whether the file system of a directory enforces project quotas.
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

// projectOf returns a volume's project, 0 if it has none. It is recorded beside the directory, as the target of a
// symbolic link: root in a container owns the directory itself, and may give it the project of another volume.
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

// assign gives a volume's directory, which is new and empty, a project that no other volume has. It does nothing where
// quotas are not enforced.
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

// free returns a project that no volume has, and no file on the file system of dir.
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
			continue // files that somebody moved out of a volume keep its project
		}
		return id, nil
	}
	return 0, fmt.Errorf("all %d projects for volumes are taken", maxProjects)
}

// limit sets the size of a volume, in bytes; 0 removes the limit. It does nothing if the volume has no project, or
// quotas are not enforced any more.
func (d *Directories) limit(volume string, bytes int64) error {
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

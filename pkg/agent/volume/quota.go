package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Project quotas (quotactl_fd(2), Linux 5.14) limit what a directory and all below it take of a file system: ext4 and xfs that are mounted with
// prjquota. x/sys/unix has the numbers of the calls, but not these.
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

// project returns the project of a volume's directory, 0 if it has none.
func project(path string) (uint32, error) {
	dir, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	a, err := attributesOf(dir)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		return 0, nil // a file system without projects
	}
	if err != nil || a.flags&projectInherit == 0 || a.project < firstProject || a.project-firstProject >= maxProjects {
		return 0, err
	}
	return a.project, nil
}

// assign gives an empty directory a project that no other volume has. It does nothing where quotas are not enforced.
func (d *Directories) assign(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if !limited(dir) {
		return nil
	}
	taken, err := d.projects()
	if err != nil {
		return err
	}
	a, err := attributesOf(dir)
	if err != nil {
		return &os.PathError{Op: "read the project of", Path: path, Err: err}
	}
	for id := uint32(firstProject); id < firstProject+maxProjects; id++ {
		if taken[id] {
			continue
		}
		var q quota
		if err := quotaOf(dir, id, &q); err == nil && (q.bytes > 0 || q.inodes > 0) {
			continue // files that somebody moved out of a volume keep its project
		}
		a.project, a.flags = id, a.flags|projectInherit
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), setAttributes, uintptr(unsafe.Pointer(&a))); errno != 0 {
			return &os.PathError{Op: "assign a project to", Path: path, Err: errno}
		}
		return nil
	}
	return fmt.Errorf("all %d projects for volumes are taken", maxProjects)
}

// projects returns the projects of the directories of volumes.
func (d *Directories) projects() (map[uint32]bool, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	taken := map[uint32]bool{}
	for _, e := range entries {
		id, err := project(filepath.Join(d.dir, e.Name()))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if id != 0 && !strings.HasPrefix(e.Name(), newPrefix) {
			taken[id] = true
		}
	}
	return taken, nil
}

// limit sets the size of a volume's directory, in bytes; 0 lifts the limit. It does nothing if the directory has no project.
func limit(path string, bytes int64) error {
	id, err := project(path)
	if err != nil || id == 0 {
		return err
	}
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return limitProject(dir, id, bytes)
}

func limitProject(dir *os.File, id uint32, bytes int64) error {
	q := quota{valid: limitBlocks}
	if bytes > 0 {
		q.hardBlocks = (uint64(bytes) + blockSize - 1) / blockSize
	}
	if err := quotactl(dir, quotaSet, uintptr(id), unsafe.Pointer(&q)); err != nil {
		return &os.PathError{Op: "limit the size of", Path: dir.Name(), Err: err}
	}
	return nil
}

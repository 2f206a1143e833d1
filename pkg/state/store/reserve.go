package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// reserveFile is a preallocated file beside etcd's directory. When other programs have filled the disk, removing it
// makes space for the updates that free more: graceful deletions and the status of evicted pods.
const reserveFile = "reserve"

// One part in databasePart of the reserve is for the database, which grows with each update.
const databasePart = 8

// lookAtDisk reads the disk's free space, and takes or releases the reserve.
func (s *Store) lookAtDisk() error {
	s.space.disk.Lock()
	defer s.space.disk.Unlock()
	free, size, err := s.diskSpace()
	if err != nil {
		return err
	}
	least := cmp.Or(s.cfg.MinFreeBytes, minFreeOf(size))
	leastUpdate := least / diskReserve
	if reserve := min(maxReserve, size/minFreePart); !s.cfg.Volatile && !s.space.noReserve {
		held, err := s.setReserve(free, least, reserve)
		if err != nil {
			return err
		}
		if free, _, err = s.diskSpace(); err != nil {
			return err
		}
		if !held {
			least, leastUpdate = least+reserve, s.leastWritable(reserve)
			if free < leastUpdate && MakeRoom(s.cfg.Dir, leastUpdate) {
				free = leastUpdate // root may use space that is not available to others
			}
		}
	}
	s.space.free.Store(free)
	s.space.least.Store(least)
	s.space.leastUpdate.Store(leastUpdate)
	return nil
}

// setReserve takes or releases the reserve if the free space calls for it, and reports whether it is held.
func (s *Store) setReserve(free, least, size int64) (held bool, err error) {
	path := filepath.Join(s.cfg.Dir, reserveFile)
	info, err := os.Stat(path)
	held = err == nil && info.Size() > 0
	switch {
	case held && free < least/diskReserve:
		if err := os.Remove(path); err != nil {
			return held, fmt.Errorf("could not release the reserve of disk space: %w", err)
		}
		s.cfg.Logger.Warn("disk full, released the store's reserve for updates and deletions: free some space",
			"dir", s.cfg.Dir, "freeMB", free>>20, "reserveMB", info.Size()>>20)
		return false, nil
	case !held && free >= least+size:
		if err := preallocate(path, size); err != nil {
			s.cfg.Logger.Debug("the file system cannot reserve space", "error", err)
			s.space.noReserve = true // then the limits are as if the reserve were held
		}
		return true, nil
	}
	return held, nil
}

// leastWritable returns the free space that etcd needs to go on: for its database, and for the next segment of its log,
// unless that is allocated already.
func (s *Store) leastWritable(reserve int64) int64 {
	least := reserve / databasePart
	next, _ := filepath.Glob(filepath.Join(s.cfg.Dir, Directory, "member", "wal", "*.tmp"))
	for _, path := range next {
		if info, err := os.Stat(path); err == nil && info.Size() >= segmentBytes {
			return least
		}
	}
	return least + segmentBytes
}

// MakeRoom removes the reserve of a store that does not run, and reports whether size bytes fit on its disk.
func MakeRoom(dir string, size int64) bool {
	path := filepath.Join(dir, reserveFile)
	return preallocate(path, size) == nil && os.Remove(path) == nil
}

func (s *Store) diskSpace() (free, size int64, err error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(s.cfg.Dir, &fs); err != nil {
		return 0, 0, fmt.Errorf("could not read the free space of %s: %w", s.cfg.Dir, err)
	}
	return int64(fs.Bavail) * fs.Bsize, int64(fs.Blocks) * fs.Bsize, nil
}

func preallocate(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	err = syscall.Fallocate(int(f.Fd()), 0, 0, size)
	if err = errors.Join(err, f.Close()); err == nil {
		return nil
	}
	if e := os.Remove(path); e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
}

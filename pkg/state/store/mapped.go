package store

import (
	"path/filepath"

	"github.com/coracle-dev/coracle/pkg/base/memory"
)

// mappedMost is the size in bytes up to which the database file's mapping is released. etcd maps 10 GiB at once, and
// maps anew when the file outgrows that.
const mappedMost = 8 << 30

// mappedReads is how many bytes of values are read before the pages mapped by the reads are released.
const mappedReads = 32 << 20

// hasRead records that n bytes of the database were read, as by a start and by lists of an older state. The pages
// count as this process's memory until the kernel reclaims them.
func (s *Store) hasRead(e endpoint, n int64) {
	if s.mapped.Add(n) < mappedReads || !s.mapping.TryLock() { // if locked, the mapping is being released or replaced
		return
	}
	defer s.mapping.Unlock()
	s.dropMapping(e)
}

// releaseMapping drops the mapping's resident pages. Compaction makes all pages resident.
func (s *Store) releaseMapping(e endpoint) {
	s.mapping.Lock()
	defer s.mapping.Unlock()
	s.dropMapping(e)
}

// dropMapping is called with s.mapping held, so that nothing replaces the mapping meanwhile. Only etcd itself does not
// take the lock, for a snapshot from another member: with several members dropMapping does nothing.
func (s *Store) dropMapping(e endpoint) {
	s.mapped.Store(0)
	if size, _ := e.sizes(); s.server.Load() == nil || e.members() != 1 || size > mappedMost {
		return
	}
	if err := memory.ReleaseFile(filepath.Join(s.cfg.Dir, Directory, "member", "snap", "db")); err != nil {
		s.cfg.Logger.Warn("could not release the mapping of the database", "error", err)
	}
}

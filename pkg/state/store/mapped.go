package store

import (
	"path/filepath"

	"github.com/coracle-dev/coracle/pkg/base/memory"
)

// mappedMost is the size of the database file, in bytes, up to which its mapping is released: etcd maps 10 GiB at once,
// and anew when the file grows beyond.
const mappedMost = 8 << 30

// mappedReads is how many bytes of values are read until what these reads have mapped is released.
const mappedReads = 32 << 20

// hasRead records that n bytes of the database were read, as they are by a start and by lists of an older state: what
// was read counts as this process's memory until the kernel reclaims it.
func (s *Store) hasRead(e endpoint, n int64) {
	if s.mapped.Add(n) < mappedReads || !s.mapping.TryLock() { // with the lock held, it is released, or about to go
		return
	}
	defer s.mapping.Unlock()
	s.dropMapping(e)
}

// releaseMapping drops the resident pages of the database's mapping, as compaction reads all of them.
func (s *Store) releaseMapping(e endpoint) {
	s.mapping.Lock()
	defer s.mapping.Unlock()
	s.dropMapping(e)
}

// dropMapping is called with the lock held: nothing else may have the mapping's addresses meanwhile. Every replacement
// holds the lock, except etcd's for a snapshot from another member: with several members dropMapping does nothing.
func (s *Store) dropMapping(e endpoint) {
	s.mapped.Store(0)
	if size, _ := e.sizes(); s.server.Load() == nil || e.members() != 1 || size > mappedMost {
		return
	}
	if err := memory.ReleaseFile(filepath.Join(s.cfg.Dir, Directory, "member", "snap", "db")); err != nil {
		s.cfg.Logger.Warn("could not release the mapping of the database", "error", err)
	}
}

package store

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mappedMost is the size of the database file, in bytes, up to which its mapping is released: etcd maps 10 GiB at once, and anew when the file
// grows beyond.
const mappedMost = 8 << 30

// releaseMapping unmaps the pages of the database that compaction has read, which are all: they count as this process's memory until the kernel
// reclaims them. They stay in the page cache, and come back one by one when they are read.
//
// Nothing else may have the mapping's addresses meanwhile. Whoever replaces it holds the same lock, except etcd for a snapshot from another
// member: with several members this does nothing.
func (s *Store) releaseMapping(e endpoint) error {
	s.mapping.Lock()
	defer s.mapping.Unlock()
	if size, _ := e.sizes(); s.server.Load() == nil || e.members() != 1 || size > mappedMost {
		return nil
	}
	path, err := filepath.EvalSymlinks(filepath.Join(s.cfg.Dir, Directory, "member", "snap", "db"))
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		// proc_pid_maps(5): address perms offset dev inode path
		span, rest, _ := strings.Cut(lines.Text(), " ")
		if !strings.HasPrefix(rest, "r--s ") || !strings.HasSuffix(rest, " "+path) {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(span, "%x-%x", &from, &to); err != nil {
			return err
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise %x-%x: %w", from, to, errno)
		}
	}
	return nil
}

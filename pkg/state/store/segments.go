package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/server/v3/storage/wal"
)

const (
	// segmentBytes is the size of a file of the write-ahead log. Small, because a start reads all files, and the last
	// one up to three times if its end is torn.
	segmentBytes = 16 << 20
	// The number of log files and raft snapshots that etcd keeps beyond the needed ones. It checks every 30 s, so
	// there are more during heavy writes.
	maxSegments  = 2
	maxSnapshots = 3
)

// etcd has the segment size in a package variable.
var setSegmentBytes = sync.OnceFunc(func() { wal.SegmentSizeBytes = segmentBytes })

// tidyLog removes files of a killed process in etcd's directory that are not read again: log segments before the
// second-to-last snapshot, and etcd's copies of a torn segment. Otherwise a start after many writes would read
// hundreds of megabytes. The caller holds the directory's lock.
func tidyLog(etcdDir string) error {
	member := filepath.Join(etcdDir, "member")
	snapshots, err := filesIn(filepath.Join(member, "snap"), ".snap")
	if err != nil {
		return err
	}
	log := filepath.Join(member, "wal")
	segments, err := filesIn(log, ".wal")
	if err != nil {
		return err
	}
	needless, err := filesIn(log, ".wal.broken")
	if err != nil {
		return err
	}
	if len(snapshots) >= 2 {
		needless = append(needless, before(segments, snapshots)...)
	}
	for _, name := range needless {
		if err := os.Remove(filepath.Join(log, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an old segment of the log: %w", err)
		}
	}
	return nil
}

// before returns the segments that etcd does not read when it starts from the second-to-last snapshot. That one is
// certainly in the log; the last one may be damaged or not in the log yet. Like etcd, it retains the last of the
// segments that begin before the snapshot.
func before(segments, snapshots []string) []string {
	var indexes []uint64 // of the last entries in the snapshots
	for _, name := range snapshots {
		var term, index uint64
		if n, err := fmt.Sscanf(name, "%016x-%016x.snap", &term, &index); n != 2 || err != nil {
			return nil
		}
		indexes = append(indexes, index)
	}
	slices.Sort(indexes)
	from := indexes[len(indexes)-2]
	keep := 0
	for i, name := range segments { // in the order of their first entries
		var sequence, first uint64
		if n, err := fmt.Sscanf(name, "%016x-%016x.wal", &sequence, &first); n != 2 || err != nil {
			return nil
		}
		if first < from {
			keep = i
		}
	}
	return segments[:keep]
}

// filesIn returns the sorted names of the files in a directory that end with ending; none without the directory.
func filesIn(dir, ending string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ending) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

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
	// segmentBytes is the size of a file of the write-ahead log. A start reads all files, and the last one up to three
	// times if its end is torn, so they are small.
	segmentBytes = 16 << 20
	// The number of log files and raft snapshots that etcd keeps beyond those it needs. It checks every 30 s, so there
	// are more during heavy writes.
	maxSegments  = 2
	maxSnapshots = 3
)

// etcd has the segment size in a package variable.
var setSegmentBytes = sync.OnceFunc(func() { wal.SegmentSizeBytes = segmentBytes })

// tidyLog removes files in etcd's directory that a killed process left and nothing reads again: log segments before the
// last snapshot but one, and the copies that etcd makes of a torn segment. Otherwise a start after a storm of writes
// would read hundreds of megabytes. The caller holds the directory's lock.
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

// before returns the segments that etcd does not read when it starts from the last snapshot but one. That snapshot is
// certainly in the log, while the last one may be damaged or not in the log yet. As etcd does, it retains the last of
// the segments that begin before the snapshot.
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

// filesIn returns the sorted names of the files in a directory with the given ending; none if the directory does not
// exist.
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

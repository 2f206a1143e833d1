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
	// segmentBytes is the size of one file of the write-ahead log. A start reads every file that is there, the last one up to
	// three times if its end is torn, so they are small.
	segmentBytes = 16 << 20
	// How many files of the log, and of raft's snapshots, etcd keeps beyond those that it needs. It looks every 30 s, so that
	// more are there while much is written.
	maxSegments  = 2
	maxSnapshots = 3
)

// etcd has the size of a segment as a variable of its package.
var setSegmentBytes = sync.OnceFunc(func() { wal.SegmentSizeBytes = segmentBytes })

// tidyLog removes what a killed process left in etcd's directory and nobody reads again: segments of the log from before the
// snapshot before the last, and the copies that etcd makes of a torn segment. Otherwise a start after a storm of writes would
// read hundreds of megabytes. The caller holds the directory's lock.
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

// before lists the segments that etcd does not read when it starts from the last snapshot but one. That one is in the log for
// certain, since etcd makes one after another; the last may be damaged or not in the log yet. Of the segments that begin before
// it, the last one is kept, as etcd itself keeps it.
func before(segments, snapshots []string) []string {
	var indexes []uint64 // of the entries up to which the snapshots go
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

// filesIn lists the files of a directory whose name ends so, sorted; none if there is no such directory.
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

package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/duration"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/state/snapshot"
	"github.com/coracle-dev/coracle/pkg/state/store"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// snapshotPause is the time from the start, or from a failure, to the next automatic snapshot, if that is due.
const snapshotPause = 5 * time.Minute

// autoSnapshots is the component that takes a snapshot every interval, if something was written since the last one.
type autoSnapshots struct {
	run.Readiness
	config.Snapshots
	dir string
	// stats returns the state of the store, room fails if a database of size bytes has no space, save writes a snapshot.
	stats   func() store.Stats
	room    func(least, size int64) error
	save    func(ctx context.Context, to io.Writer) error
	log     *slog.Logger
	problem atomic.Pointer[string]
}

func (l *plane) newSnapshots() *autoSnapshots {
	p := l.process
	return &autoSnapshots{
		Snapshots: p.Snapshots,
		dir:       snapshotDir(p.DataDir),
		stats:     l.store.Stats,
		room:      func(least, size int64) error { return snapshotRoom(p.Config, least, size) },
		save:      p.snapshot,
		log:       component(p.log, "snapshots"),
	}
}

func (a *autoSnapshots) Name() string { return "snapshots" }

// Run takes snapshots until ctx is done. A failed one is a warning, and is repeated after snapshotPause.
func (a *autoSnapshots) Run(ctx context.Context) error {
	a.SetReady()
	if err := snapshot.RemoveUnfinished(a.dir); err != nil {
		a.report(err)
	}
	wait := snapshotPause
	if list, err := snapshot.List(a.dir, time.Now()); err == nil && len(list) > 0 {
		wait = max(wait, a.SnapshotInterval-max(0, time.Since(list[0].Taken)))
	}
	wait = min(wait, a.SnapshotInterval)
	guard := run.Guard{Component: a.Name(), Log: a.log}
	for backoff.Sleep(ctx, wait) {
		var err error
		if p := guard.Do("snapshot", func() { err = a.take(ctx) }); p != nil {
			err = p
		}
		if ctx.Err() != nil {
			break
		}
		if wait = a.SnapshotInterval; err != nil {
			wait = min(wait, snapshotPause)
		}
		a.report(err)
	}
	return nil
}

func (a *autoSnapshots) take(ctx context.Context) error {
	now, stats := time.Now(), a.stats()
	list, err := snapshot.List(a.dir, now)
	if err != nil || len(list) > 0 && list[0].Revision == stats.Revision {
		return err
	}
	if err := a.room(stats.DiskMinFreeBytes, stats.SizeBytes); err != nil {
		return err
	}
	return snapshot.Keep(a.dir, now, stats.Revision, a.SnapshotRetention,
		func(to io.Writer) error { return a.save(ctx, to) })
}

// report logs the first failure after a success, and keeps the last one for Warning.
func (a *autoSnapshots) report(err error) {
	if err == nil {
		a.problem.Store(nil)
		return
	}
	text := fmt.Sprintf("could not take an automatic snapshot: %v", err)
	if a.problem.Swap(&text) == nil {
		a.log.Warn("could not take an automatic snapshot", "error", err)
	}
}

// Warning says why the last snapshot failed; empty if it did not.
func (a *autoSnapshots) Warning() string {
	if a == nil {
		return ""
	}
	if text := a.problem.Load(); text != nil {
		return *text
	}
	return ""
}

// snapshotRoom fails if a snapshot of size bytes would leave less of the disk than the store needs for writes (least),
// or so little that the node evicts pods. A snapshot is compressed, so it is smaller.
func snapshotRoom(c config.Config, least, size int64) error {
	thresholds, err := config.ParseThresholds(c.EvictionHard)
	if err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(c.DataDir, &fs); err != nil {
		return err
	}
	least = size + max(least, thresholds[config.NodeFsAvailable].Of(int64(fs.Blocks)*fs.Bsize))
	if free := int64(fs.Bavail) * fs.Bsize; free < least {
		return fmt.Errorf("the disk of %s has %d MB free, and %d MB are needed: free some space, or set "+
			"--snapshot-interval=0", c.DataDir, free>>20, least>>20)
	}
	return nil
}

// snapshotDir returns the directory of the automatic snapshots in a data directory.
func snapshotDir(dataDir string) string { return filepath.Join(dataDir, "snapshots") }

// newestSnapshot returns the path of the newest automatic snapshot, or "" if none is found.
func newestSnapshot(dataDir string) string {
	path, _ := snapshot.Newest(snapshotDir(dataDir))
	return path
}

// ListSnapshots lists the automatic snapshots in a data directory, the newest first, as a table or as json or yaml.
func ListSnapshots(dataDir, format string, out io.Writer) error {
	dir, now := snapshotDir(dataDir), time.Now()
	list, err := snapshot.List(dir, now)
	if err != nil {
		return err
	}
	if format != "" {
		type row struct {
			File  string    `json:"file"`
			Taken time.Time `json:"taken"`
			Bytes int64     `json:"bytes"`
		}
		rows := make([]row, len(list))
		for i, s := range list {
			rows[i] = row{filepath.Join(dir, s.Name), s.Taken, s.Size}
		}
		return command.PrintAs(out, format, rows)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintf(out, "No automatic snapshots in %s.\n", dir)
		return err
	}
	return command.Table(out, "NAME\tAGE\tSIZE", func(line func(...any)) {
		for _, s := range list {
			line(s.Name, duration.HumanDuration(now.Sub(s.Taken)), socket.Bytes(s.Size))
		}
	})
}

// SnapshotFile returns the file to restore: the argument, which may be the name of an automatic snapshot, or else the
// newest of them.
func SnapshotFile(dataDir string, args []string) (string, error) {
	dir := snapshotDir(dataDir)
	if len(args) > 0 {
		listed := filepath.Join(dir, args[0])
		if _, err := os.Lstat(listed); err == nil && filepath.Base(args[0]) == args[0] {
			return listed, nil
		}
		return args[0], nil
	}
	newest, err := snapshot.Newest(dir)
	if err == nil && newest == "" {
		err = fmt.Errorf("no automatic snapshots in %s: name the FILE to restore", dir)
	}
	return newest, err
}

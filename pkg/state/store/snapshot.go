package store

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
)

// restoredRevisions is added to the revision of a restored store. Clients that have seen later revisions than the
// restored ones then list again instead of taking old objects for new. Kubernetes recommends this number for etcdutl's
// --bump-revision.
const restoredRevisions = 1_000_000_000

// Export calls write with a consistent copy of the database, its size in bytes, and a revision up to which it is
// complete. While write runs, the database cannot reuse freed space.
func (s *Store) Export(write func(revision, size int64, database io.WriterTo) error) (err error) {
	e := s.server.Load()
	if e == nil {
		_, err := s.ours()
		return err
	}
	revision := e.KV().Rev()
	database := e.Backend().Snapshot()
	defer func() { err = errors.Join(err, database.Close()) }()
	return write(revision, database.Size(), database)
}

// Restore creates a store in dir, which must not have one, from a database file that Export wrote. Its revisions begin
// above the database's, and it has no history.
func Restore(database, dir string, log *slog.Logger) error {
	c := embed.NewConfig()
	c.Name = memberName
	fatal := "etcd gave up"
	m := snapshot.NewV3(newZap(log, func(why string) { fatal = why }))
	done := make(chan error, 1)
	// etcd ends this goroutine where it would otherwise exit the process.
	go func() {
		finished := false
		defer func() {
			if r := recover(); r != nil {
				fatal = fmt.Sprint(r)
			}
			if !finished {
				done <- errors.New(fatal)
			}
		}()
		err := m.Restore(snapshot.RestoreConfig{
			SnapshotPath: database, SkipHashCheck: true, // the caller has verified it
			Name: c.Name, InitialCluster: c.InitialClusterFromName(c.Name), InitialClusterToken: c.InitialClusterToken,
			PeerURLs:      []string{c.AdvertisePeerUrls[0].String()},
			OutputDataDir: filepath.Join(dir, Directory),
			RevisionBump:  restoredRevisions, MarkCompacted: true,
		})
		finished = true
		done <- err
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("could not restore the store: %w", err)
	}
	return nil
}

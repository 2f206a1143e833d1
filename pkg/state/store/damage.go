package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// ErrDamaged means that files of the store are missing or cannot be read.
var ErrDamaged = errors.New("the store is damaged")

const (
	// maxWalk is the size of the database, in bytes, up to which all its pages are read before etcd opens it.
	maxWalk = 256 << 20
	// bolt waits for the lock of the file this long. The store's own lock is held, so another holder is not ours.
	boltPatience = time.Second
)

func (s *Store) damaged(what string, args ...any) error {
	file := ""
	if s.cfg.Snapshot != nil {
		file = s.cfg.Snapshot()
	}
	return fmt.Errorf("%w: %s: containers go on running without it. Restore the cluster with "+
		"`coracle snapshot restore %s --replace`, which moves the damaged files aside, or copy %s from a backup",
		ErrDamaged, fmt.Sprintf(what, args...), cmp.Or(file, "FILE"), filepath.Join(s.cfg.Dir, Directory))
}

// checkFiles returns an error if etcd could not open the files of a store that is not new: it would wait for ever
// without its log, and end the process at a damaged page of the database.
func (s *Store) checkFiles() error {
	member := filepath.Join(s.cfg.Dir, Directory, "member")
	database := filepath.Join(member, "snap", "db")
	logs, err := filepath.Glob(filepath.Join(member, "wal", "*.wal"))
	if err != nil {
		return err
	}
	snapshots, err := filepath.Glob(filepath.Join(member, "snap", "*.snap"))
	if err != nil {
		return err
	}
	info, err := os.Stat(database)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0:
		if len(snapshots) == 0 {
			return nil // etcd makes it again from the log, which is complete
		}
		return s.damaged("its database %s is missing or empty", database)
	case err != nil:
		return err
	}
	applied, err := walk(database, info.Size())
	if err != nil {
		return s.damaged("its database %s cannot be read: %v", database, err)
	}
	if applied && len(logs) == 0 {
		return s.damaged("its write-ahead log in %s is missing", filepath.Join(member, "wal"))
	}
	return nil
}

// walk reads the pages of a database and reports whether log entries have been applied to it. bbolt panics at a damaged
// page, and the kernel sends SIGBUS for one beyond the end of the file.
func walk(database string, size int64) (applied bool, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	db, err := bolt.Open(database, 0o600, &bolt.Options{ReadOnly: true, Timeout: boltPatience})
	if err != nil {
		return false, err
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		if tx.Size() > size {
			return fmt.Errorf("it has %d bytes, and should have %d", size, tx.Size())
		}
		if meta := tx.Bucket(schema.Meta.Name()); meta != nil {
			applied = len(meta.Get(schema.MetaConsistentIndexKeyName)) > 0
		}
		if size > maxWalk {
			return nil
		}
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error {
			return b.ForEach(func(_, _ []byte) error { return nil })
		})
	})
	return applied, err
}

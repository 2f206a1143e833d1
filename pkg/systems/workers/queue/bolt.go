package queue

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

// The database has two buckets, both by sequence number: a message's record in JSON, and its payload, which is written
// once.
var (
	records  = []byte("messages")
	payloads = []byte("payloads")
)

// file is a store in a bbolt database.
type file struct {
	path    string
	reserve int64
	db      *bolt.DB
	failed  error // of the last commit
}

func (f *file) String() string { return f.path }

func (f *file) open(context.Context) ([]*record, error) {
	if _, err := os.Stat(f.path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	list, err := f.read()
	if err != nil {
		return nil, fmt.Errorf(
			"the queues of workers in %s cannot be read: %w: move the file away to start without its messages", f.path, err)
	}
	return list, nil
}

// read opens the database and reads its messages. bbolt panics at a damaged page, and the kernel sends SIGBUS for one
// beyond the end of the file.
func (f *file) read() (list []*record, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return nil, err
	}
	db, err := bolt.Open(f.path, 0o600, &bolt.Options{
		Timeout: 5 * time.Second, NoFreelistSync: true, FreelistType: bolt.FreelistMapType, NoStatistics: true,
	})
	if err != nil {
		return nil, err
	}
	f.db = db
	return list, db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket(records)
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			r := &record{}
			if err := json.Unmarshal(v, r); err != nil {
				return err
			}
			r.Message.Seq = binary.BigEndian.Uint64(k)
			list = append(list, r)
			return nil
		})
	})
}

// admit implements store.
func (f *file) admit(*Message) error {
	if f.reserve <= 0 {
		return nil
	}
	var s syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(f.path), &s); err != nil || int64(s.Bavail)*s.Bsize < f.reserve {
		return ErrDiskFull
	}
	return nil
}

func (f *file) payload(seq uint64) (payload []byte) {
	_ = f.db.View(func(tx *bolt.Tx) error {
		payload = slices.Clone(tx.Bucket(payloads).Get(binary.BigEndian.AppendUint64(nil, seq)))
		return nil
	})
	return payload
}

func (f *file) commit(changes []change) (err error) {
	defer func() { f.failed = err }()
	if f.db == nil {
		if _, err := f.read(); err != nil {
			return err
		}
	}
	// After a failed sync the kernel may have dropped what was written before: nothing later may count as written.
	if errors.Is(f.failed, syscall.EIO) {
		return f.failed
	}
	return f.db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{records, payloads} {
			b, err := tx.CreateBucketIfNotExists(name)
			if err != nil {
				return err
			}
			b.FillPercent = 0.9 // keys ascend
			for i := range changes {
				c := &changes[i]
				key := binary.BigEndian.AppendUint64(nil, c.Seq)
				switch {
				case c.value == nil, !c.until.IsZero() && &name[0] == &payloads[0]:
					err = b.Delete(key)
				case &name[0] == &records[0]:
					err = b.Put(key, c.value)
				case c.payload != nil:
					err = b.Put(key, c.payload)
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func (f *file) close(empty bool) error {
	if f.db == nil {
		return nil
	}
	if err := f.db.Close(); err != nil || !empty {
		return err
	}
	return os.Remove(f.path) // it would never shrink
}

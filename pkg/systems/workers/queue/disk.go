package queue

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

// The database has two buckets, both by sequence number: a message's record in JSON, and its payload, which is written
// once. Everything is written by one goroutine. Each transaction covers all changes so far: one sync for all senders
// that wait.
var (
	records  = []byte("messages")
	payloads = []byte("payloads")
)

// lazily is how long a change waits for others if no sender waits for it: the attempt and the end of a message that a
// program handles quickly need no writes of their own. A process that is killed meanwhile delivers the message again.
const lazily = 50 * time.Millisecond

// rewrite is the pause after a failed write of changes for which no sender waits.
const rewrite = time.Second

// disk is Local's state of its database. Local's lock guards all fields but the channels.
type disk struct {
	db     *bolt.DB
	dirty  map[uint64]*entry
	round  *round
	failed error       // why the last transaction failed
	timer  *time.Timer // nil unless a lazy write is planned
	closed bool
	wake   chan struct{}
	stop   chan struct{}
	ended  chan struct{} // nil unless the writing goroutine runs
}

// round is the next transaction. done is closed when it is over, and err set before.
type round struct {
	done chan struct{}
	err  error
}

// record is a message in the database.
type record struct {
	Key     Key
	Message Message
}

func (d *disk) init() {
	d.dirty, d.round = map[uint64]*entry{}, &round{done: make(chan struct{})}
	d.wake, d.stop = make(chan struct{}, 1), make(chan struct{})
}

// flush has the changes written now.
func (d *disk) flush() *round {
	select {
	case d.wake <- struct{}{}:
	default:
	}
	return d.round
}

func (d *disk) soon(after time.Duration) {
	if d.timer == nil {
		d.timer = time.AfterFunc(after, func() {
			select {
			case d.wake <- struct{}{}:
			default:
			}
		})
	}
}

// free returns the free space of the disk, in bytes.
func (l *Local) free() int64 {
	var s syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(l.c.File), &s); err != nil {
		return 0
	}
	return int64(s.Bavail) * s.Bsize
}

// load reads the messages of earlier processes. Claimed ones wait again.
func (l *Local) load() error {
	if l.c.File == "" {
		return nil
	}
	if _, err := os.Stat(l.c.File); errors.Is(err, fs.ErrNotExist) {
		l.start()
		return nil
	}
	if err := l.open(); err != nil {
		return fmt.Errorf("the queues of workers in %s cannot be read: %w: move the file away to start without its messages",
			l.c.File, err)
	}
	l.start()
	return nil
}

// start runs the writing goroutine.
func (l *Local) start() {
	l.disk.ended = make(chan struct{})
	go l.write()
}

// open opens the database and reads its messages. bbolt panics at a damaged page, and the kernel sends SIGBUS for one
// beyond the end of the file.
func (l *Local) open() (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(l.c.File), 0o700); err != nil {
		return err
	}
	db, err := bolt.Open(l.c.File, 0o600, &bolt.Options{
		Timeout: 5 * time.Second, NoFreelistSync: true, FreelistType: bolt.FreelistMapType, NoStatistics: true,
	})
	if err != nil {
		return err
	}
	l.disk.db = db
	return db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket(records)
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			var r record
			if err := json.Unmarshal(v, &r); err != nil {
				return err
			}
			r.Message.Seq = binary.BigEndian.Uint64(k)
			l.seq = max(l.seq, r.Message.Seq)
			l.restore(&r)
			return nil
		})
	})
}

// restore adds a message from the database. The bounds do not apply: it was accepted earlier.
func (l *Local) restore(r *record) {
	e := &entry{Message: r.Message, key: r.Key, stored: true}
	u := l.used[r.Key.Namespace]
	if u == nil {
		u = &usage{}
		l.used[r.Key.Namespace] = u
	}
	u.memory, u.disk = u.memory+e.memory(), u.disk+e.onDisk()
	l.all.memory, l.all.disk = l.all.memory+e.memory(), l.all.disk+e.onDisk()
	q := l.queue(r.Key)
	q.all[e.ID] = e
	q.bytes += int64(e.Size)
	switch e.State {
	case Dead:
		q.dead.add(e)
		q.deadBytes += int64(e.Size)
	default:
		q.wait(e)
	}
}

// filled returns the message with its payload.
func (l *Local) filled(e *entry) Message {
	m := e.Message
	if e.stored {
		_ = l.disk.db.View(func(tx *bolt.Tx) error {
			m.Payload = slices.Clone(tx.Bucket(payloads).Get(binary.BigEndian.AppendUint64(nil, e.Seq)))
			return nil
		})
	}
	return m
}

// change is what a transaction does with an entry.
type change struct {
	*entry
	key     []byte
	value   []byte // its record; nil if it is gone
	payload []byte // nil if it is written already
}

// write writes the changes until Close, and once more then.
func (l *Local) write() {
	defer close(l.disk.ended)
	for last := false; !last; {
		select {
		case <-l.disk.wake:
		case <-l.disk.stop:
			last = true
		}
		l.mu.Lock()
		dirty, now := l.disk.dirty, l.disk.round
		l.disk.dirty, l.disk.round = map[uint64]*entry{}, &round{done: make(chan struct{})}
		if l.disk.timer != nil {
			l.disk.timer.Stop()
			l.disk.timer = nil
		}
		changes, err := l.changes(dirty)
		l.mu.Unlock()
		l.c.At("before the transaction")
		if err == nil && len(changes) > 0 {
			err = l.commit(changes)
		}
		l.c.At("after the transaction")
		l.mu.Lock()
		if err != nil && l.disk.failed == nil {
			l.c.Logger.Warn("could not write messages", "file", l.c.File, "error", err)
		}
		l.disk.failed, now.err = err, err
		for i := range changes {
			if c := &changes[i]; err == nil && c.payload != nil {
				c.stored, c.entry.Payload = true, nil
			}
		}
		for _, e := range dirty {
			l.written(e, err, last)
		}
		l.mu.Unlock()
		close(now.done)
	}
}

// written ends a transaction for an entry. The caller holds the lock.
func (l *Local) written(e *entry, err error, last bool) {
	switch {
	case e.writing && err == nil:
		e.writing = false
		l.queues[e.key].wait(e)
	case e.writing:
		e.writing = false
		l.drop(e)
	case err != nil && !last && (e.stored || !e.gone):
		l.disk.dirty[e.Seq] = e
		l.disk.soon(rewrite)
	}
}

// changes encodes the changes of the entries, in the order of their sequence numbers.
func (l *Local) changes(dirty map[uint64]*entry) ([]change, error) {
	list := make([]change, 0, len(dirty))
	for _, seq := range slices.Sorted(maps.Keys(dirty)) {
		c := change{entry: dirty[seq], key: binary.BigEndian.AppendUint64(nil, seq)}
		if c.gone && !c.stored {
			continue
		}
		if !c.gone {
			r := record{Key: c.entry.key, Message: c.Message}
			r.Message.Payload = nil
			var err error
			if c.value, err = json.Marshal(&r); err != nil {
				return nil, err
			}
			if !c.stored {
				if c.payload = c.Payload; c.payload == nil {
					c.payload = []byte{}
				}
			}
		}
		list = append(list, c)
	}
	return list, nil
}

func (l *Local) commit(changes []change) error {
	if l.disk.db == nil {
		if err := l.open(); err != nil {
			return err
		}
	}
	// After a failed sync the kernel may have dropped what was written before: nothing later may count as written.
	if errors.Is(l.disk.failed, syscall.EIO) {
		return l.disk.failed
	}
	return l.disk.db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{records, payloads} {
			b, err := tx.CreateBucketIfNotExists(name)
			if err != nil {
				return err
			}
			b.FillPercent = 0.9 // keys ascend
			for i := range changes {
				switch c := &changes[i]; {
				case c.value == nil:
					err = b.Delete(c.key)
				case &name[0] == &records[0]:
					err = b.Put(c.key, c.value)
				case c.payload != nil:
					err = b.Put(c.key, c.payload)
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Close writes the last changes and closes the database. Later messages are refused, later changes are not written.
func (l *Local) Close() error {
	if l.disk.ended == nil {
		return nil
	}
	l.mu.Lock()
	again := l.disk.closed
	l.disk.closed = true
	l.mu.Unlock()
	if again {
		return nil
	}
	close(l.disk.stop)
	<-l.disk.ended
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.disk.timer != nil {
		l.disk.timer.Stop()
	}
	if l.disk.db == nil {
		return nil
	}
	empty := len(l.queues) == 0
	if err := l.disk.db.Close(); err != nil || !empty {
		return err
	}
	return os.Remove(l.c.File) // it would never shrink
}

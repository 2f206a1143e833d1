package messages

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// The at-least-once log is a directory of append-only segment files. A record is:
//
//	length (4 bytes) checksum of the rest (4, CRC-32C) kind (1) sequence number (8) data
//
// A put record holds a message; a done record marks its end. A message is accepted once its put is synced; one fsync
// covers all puts before it. Try and done records are not synced: after a crash of the machine, though not of the
// process, a message may be delivered again.
//
// Segments are removed oldest first, because a done record may be in a later segment than its put. Once the log is
// much larger than its unfinished messages, those in the oldest segment are appended again with their sequence numbers
// and synced before the segment is removed. After a crash in between, the first put of a sequence number counts.
const (
	segmentBytes = 8 << 20
	// The log is compacted when it exceeds slack bytes plus spread bytes for each byte of unfinished messages.
	slack  = 2 * segmentBytes
	spread = 4
	// logBytes limits the log; beyond it write returns errLogFull.
	logBytes  = 256 << 20
	maxRecord = workers.MaxPayload + 64<<10

	recordPut  = 1
	recordTry  = 2
	recordDone = 3

	recordHead = 8
	recordKey  = 9
)

var (
	errLogFull = errors.New("the log of messages is full")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

type stored struct {
	Namespace, Pod, UID string
	Queue               workers.Queue
	ID                  string
	ContentType         string `json:",omitempty"`
	Trace               string `json:",omitempty"`
	DeadLetter          string `json:",omitempty"`
	Receipt             string `json:",omitempty"`
	Attempts            int32  `json:",omitempty"`
	Expires             time.Time
	seq                 uint64
	payload             []byte
}

type segment struct {
	number uint64
	file   *os.File
	size   int64
	live   int // unfinished messages whose put is in this segment
}

// place locates the put record of a message.
type place struct {
	in       *segment
	at       int64 // offset in the file
	size     int64 // of the whole record
	attempts int32
}

// messageLog keeps messages until they have ended. Safe for concurrent use.
type messageLog struct {
	dir string

	mu       sync.Mutex
	segments []*segment // oldest first; the last one is written to
	where    map[uint64]*place
	next     uint64
	bytes    int64 // size of all segments
	live     int64 // size of the put records of unfinished messages
	failed   error

	// syncing serializes fsync. Its holder syncs all records written before.
	syncing sync.Mutex
	synced  uint64 // the value of written that the last fsync covered
	written uint64
}

// put writes a message and returns its sequence number once it is on disk.
func (l *messageLog) put(m *stored) (uint64, error) {
	seq, mark, err := l.write(m)
	if err != nil {
		return 0, err
	}
	return seq, l.sync(mark)
}

// write appends a message. It is on disk after sync(mark).
func (l *messageLog) write(m *stored) (seq, mark uint64, err error) {
	meta, err := json.Marshal(m)
	if err != nil {
		return 0, 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seq = l.next
	data := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(meta)+len(m.payload)), uint32(len(meta)))
	data = append(append(data, meta...), m.payload...)
	if l.bytes+int64(len(data)) > logBytes {
		return 0, 0, errLogFull
	}
	if err := l.append(recordPut, seq, data); err != nil {
		return 0, 0, err
	}
	l.next++
	s := l.segments[len(l.segments)-1]
	size := int64(recordHead + recordKey + len(data))
	l.enter(seq, &place{in: s, at: s.size - size, size: size, attempts: m.Attempts})
	l.written++
	return seq, l.written, nil
}

// sync returns once the put that write numbered mine is on disk. After an fsync error all later writes fail.
func (l *messageLog) sync(mine uint64) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if l.synced >= mine {
		return nil
	}
	l.mu.Lock()
	upTo, file := l.written, l.segments[len(l.segments)-1].file
	l.mu.Unlock()
	if err := file.Sync(); err != nil {
		l.mu.Lock()
		l.failed = err
		l.mu.Unlock()
		return err
	}
	l.synced = upTo
	return nil
}

// note appends a try or done record, without a sync.
func (l *messageLog) note(kind byte, seq uint64, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.where[seq]
	if p == nil || l.append(kind, seq, data) != nil {
		return
	}
	switch kind {
	case recordTry:
		p.attempts = int32(binary.BigEndian.Uint32(data))
	case recordDone:
		l.leave(seq)
		l.trim()
	}
}

func (l *messageLog) try(seq uint64, attempts int32) {
	l.note(recordTry, seq, attemptsData(attempts))
}

func attemptsData(n int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

func (l *messageLog) done(seq uint64) { l.note(recordDone, seq, nil) }

// enter records the place of a message and replaces an earlier one.
func (l *messageLog) enter(seq uint64, p *place) {
	l.leave(seq)
	l.where[seq] = p
	p.in.live++
	l.live += p.size
}

func (l *messageLog) leave(seq uint64) {
	if p := l.where[seq]; p != nil {
		p.in.live--
		l.live -= p.size
		delete(l.where, seq)
	}
}

// append writes a record to the last segment. The caller holds l.mu.
func (l *messageLog) append(kind byte, seq uint64, data []byte) error {
	if l.failed != nil {
		return l.failed
	}
	if n := len(l.segments); n == 0 || l.segments[n-1].size >= segmentBytes {
		if err := l.extend(); err != nil {
			return err
		}
	}
	s := l.segments[len(l.segments)-1]
	record := make([]byte, recordHead+recordKey, recordHead+recordKey+len(data))
	record[recordHead] = kind
	binary.BigEndian.PutUint64(record[recordHead+1:], seq)
	record = append(record, data...)
	binary.BigEndian.PutUint32(record, uint32(len(record)-recordHead))
	binary.BigEndian.PutUint32(record[4:], crc32.Checksum(record[recordHead:], castagnoli))
	if _, err := s.file.Write(record); err != nil {
		// Part of the record may be in the file: truncate it. If that fails, refuse all later writes.
		if _, err2 := s.file.Seek(s.size, io.SeekStart); err2 != nil {
			l.failed = err
		} else if err2 := s.file.Truncate(s.size); err2 != nil {
			l.failed = err
		}
		return err
	}
	s.size += int64(len(record))
	l.bytes += int64(len(record))
	return nil
}

// extend starts a segment. It syncs the previous one, so that sync needs to sync only the last.
func (l *messageLog) extend() error {
	number := uint64(1)
	if n := len(l.segments); n > 0 {
		number = l.segments[n-1].number + 1
		if err := l.segments[n-1].file.Sync(); err != nil {
			return err
		}
	} else if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(l.dir, fmt.Sprintf("%020d.log", number)), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if d, err := os.Open(l.dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
	l.segments = append(l.segments, &segment{number: number, file: f})
	return nil
}

func (l *messageLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, s := range l.segments {
		errs = append(errs, s.file.Close())
	}
	l.segments, l.failed = nil, os.ErrClosed
	return errors.Join(errs...)
}

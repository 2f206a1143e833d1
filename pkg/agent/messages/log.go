package messages

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// The log of at-least-once messages is a directory of files to which records are appended:
//
//	length (4 bytes) checksum of the rest (4, CRC-32C) kind (1) sequence number (8) data
//
// A message is put with its payload, and done when it has ended. A put is synced to disk before the message is accepted, with the other
// puts that came meanwhile. The others are only written: after a crash of the machine, though not of the process, a message may come again.
const (
	segmentBytes = 8 << 20
	// logBytes limits the log; more messages are refused.
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

// stored is a message in the log.
type stored struct {
	Namespace, Pod, UID string
	Queue               workers.Queue
	ID                  string
	ContentType         string `json:",omitempty"`
	Trace               string `json:",omitempty"`
	DeadLetter          string `json:",omitempty"`
	Attempts            int32  `json:",omitempty"`
	Expires             time.Time
	seq                 uint64
	payload             []byte
}

// segment is a file of the log.
type segment struct {
	number uint64
	file   *os.File
	size   int64
	live   int // messages put in it that have not ended
}

// messageLog keeps messages until they have ended. Safe for concurrent use.
type messageLog struct {
	dir string

	mu       sync.Mutex
	segments []*segment // oldest first; the last one is written to
	where    map[uint64]*segment
	next     uint64
	bytes    int64
	failed   error

	// syncing serializes fsync: who holds it syncs for all that wrote before.
	syncing sync.Mutex
	synced  uint64 // all records up to this one, counted by written, are on disk
	written uint64
}

// openLog opens the log in dir and returns the messages in it that have not ended. What a crash left unfinished at the end of a file is cut
// off.
func openLog(dir string) (*messageLog, []*stored, error) {
	l := &messageLog{dir: dir, where: map[uint64]*segment{}, next: 1}
	names, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return nil, nil, err
	}
	if len(names) == 0 {
		return l, nil, nil
	}
	slices.Sort(names)
	found := map[uint64]*stored{}
	for _, name := range names {
		number, err := strconv.ParseUint(strings.TrimSuffix(filepath.Base(name), ".log"), 10, 64)
		if err != nil {
			continue // not ours
		}
		s := &segment{number: number}
		if s.file, err = os.OpenFile(name, os.O_RDWR, 0o600); err != nil {
			return nil, nil, errors.Join(err, l.close())
		}
		l.segments = append(l.segments, s)
		if err := l.read(s, found); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("read %s: %w", name, err), l.close())
		}
		l.bytes += s.size
	}
	list := make([]*stored, 0, len(found))
	for _, m := range found {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *stored) int { return int(int64(a.seq) - int64(b.seq)) })
	l.trim()
	return l, list, nil
}

// read reads a segment's records.
func (l *messageLog) read(s *segment, found map[uint64]*stored) error {
	r := bufio.NewReaderSize(s.file, 1<<16)
	for {
		record, err := readRecord(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, errTorn) {
			if err := s.file.Truncate(s.size); err != nil {
				return err
			}
			_, err = s.file.Seek(s.size, io.SeekStart)
			return err
		}
		if err != nil {
			return err
		}
		seq, data := binary.BigEndian.Uint64(record[1:]), record[recordKey:]
		l.next = max(l.next, seq+1)
		switch record[0] {
		case recordPut:
			m, err := decodeStored(data)
			if err == nil {
				m.seq = seq
				found[seq] = m
				l.where[seq] = s
				s.live++
			}
		case recordTry:
			if m := found[seq]; m != nil && len(data) == 4 {
				m.Attempts = int32(binary.BigEndian.Uint32(data))
			}
		case recordDone:
			if in := l.where[seq]; in != nil {
				in.live--
				delete(l.where, seq)
			}
			delete(found, seq)
		}
		s.size += int64(recordHead + len(record))
	}
}

var errTorn = errors.New("incomplete record")

// readRecord returns the next record, io.EOF at the end, and errTorn for what is no record.
func readRecord(r io.Reader) ([]byte, error) {
	var head [recordHead]byte
	switch _, err := io.ReadFull(r, head[:]); {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errTorn
	case err != nil:
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < recordKey || n > maxRecord {
		return nil, errTorn
	}
	record := make([]byte, n)
	if _, err := io.ReadFull(r, record); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errTorn
		}
		return nil, err
	}
	if crc32.Checksum(record, castagnoli) != binary.BigEndian.Uint32(head[4:]) {
		return nil, errTorn
	}
	return record, nil
}

func decodeStored(data []byte) (*stored, error) {
	if len(data) < 4 {
		return nil, errTorn
	}
	n := binary.BigEndian.Uint32(data)
	if int64(n) > int64(len(data)-4) {
		return nil, errTorn
	}
	m := &stored{}
	if err := json.Unmarshal(data[4:4+n], m); err != nil {
		return nil, err
	}
	m.payload = data[4+n:]
	return m, nil
}

// put writes a message and returns its sequence number once it is on disk.
func (l *messageLog) put(m *stored) (uint64, error) {
	seq, mark, err := l.write(m)
	if err != nil {
		return 0, err
	}
	return seq, l.sync(mark)
}

// write writes a message. It is on disk after sync of mark.
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
	s.live++
	l.where[seq] = s
	l.written++
	return seq, l.written, nil
}

// sync returns when the record of that number is on disk.
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

// note writes a record about a message, which need not be on disk at once.
func (l *messageLog) note(kind byte, seq uint64, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.where[seq]
	if s == nil || l.append(kind, seq, data) != nil {
		return
	}
	if kind == recordDone {
		s.live--
		delete(l.where, seq)
		l.trim()
	}
}

func (l *messageLog) try(seq uint64, attempts int32) {
	l.note(recordTry, seq, binary.BigEndian.AppendUint32(nil, uint32(attempts)))
}

func (l *messageLog) done(seq uint64) { l.note(recordDone, seq, nil) }

// append writes a record to the last segment. Called with the lock held.
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
		// Part of it may be in the file: cut it off, or write no more.
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

// extend starts a segment. The one before it is synced, so that only the last one needs to be.
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

// trim removes the oldest segments without messages, but for the last. The end of a message may be recorded only after it, so those in
// between stay.
func (l *messageLog) trim() {
	for len(l.segments) > 1 && l.segments[0].live == 0 {
		s := l.segments[0]
		_ = s.file.Close()
		_ = os.Remove(s.file.Name())
		l.bytes -= s.size
		l.segments = l.segments[1:]
	}
	// The last one, too, if it is large: otherwise a quiet node would keep it.
	if len(l.segments) == 1 && l.segments[0].live == 0 && l.segments[0].size >= segmentBytes {
		s := l.segments[0]
		if s.file.Truncate(0) == nil {
			_, _ = s.file.Seek(0, io.SeekStart)
			l.bytes, s.size = 0, 0
		}
	}
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

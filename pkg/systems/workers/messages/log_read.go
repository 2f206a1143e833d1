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
)

// openLog opens the log in dir and returns its unfinished messages. It truncates each file at the first incomplete or
// corrupt record, as a crash leaves one.
func openLog(dir string) (*messageLog, []*stored, error) {
	l := &messageLog{dir: dir, where: map[uint64]*place{}, next: 1}
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
			continue // not a segment of this log
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
			if err == nil && found[seq] == nil {
				m.seq = seq
				found[seq] = m
				l.enter(seq, &place{in: s, at: s.size, size: int64(recordHead + len(record)), attempts: m.Attempts})
			}
		case recordTry:
			if m := found[seq]; m != nil && len(data) == 4 {
				m.Attempts = int32(binary.BigEndian.Uint32(data))
				l.where[seq].attempts = m.Attempts
			}
		case recordDone:
			l.leave(seq)
			delete(found, seq)
		}
		s.size += int64(recordHead + len(record))
	}
}

var errTorn = errors.New("incomplete record")

// readRecord returns the next record, io.EOF at the end, and errTorn for an incomplete or corrupt record.
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

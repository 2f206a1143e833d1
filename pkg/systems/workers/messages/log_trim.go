package messages

import (
	"io"
	"os"
	"slices"
)

// trim deletes the oldest segments while they are empty, except the last. If the log is much larger than its unfinished
// messages, it compacts the oldest segment, one per call, by appending its messages again.
func (l *messageLog) trim() {
	l.removeEmpty()
	if len(l.segments) > 1 && l.bytes > slack+spread*l.live && l.evacuate(l.segments[0]) == nil {
		l.removeEmpty()
	}
	// Truncate a full, empty last segment as well: without new messages it would stay.
	if len(l.segments) == 1 && l.segments[0].live == 0 && l.segments[0].size >= segmentBytes {
		s := l.segments[0]
		if s.file.Truncate(0) == nil {
			_, _ = s.file.Seek(0, io.SeekStart)
			l.bytes, s.size = 0, 0
		}
	}
}

func (l *messageLog) removeEmpty() {
	for len(l.segments) > 1 && l.segments[0].live == 0 {
		s := l.segments[0]
		_ = s.file.Close()
		_ = os.Remove(s.file.Name())
		l.bytes -= s.size
		l.segments = l.segments[1:]
	}
}

// evacuate appends the messages of a segment again. They are on disk when it returns nil.
func (l *messageLog) evacuate(s *segment) error {
	var list []uint64
	for seq, p := range l.where {
		if p.in == s {
			list = append(list, seq)
		}
	}
	slices.Sort(list)
	for _, seq := range list {
		p := *l.where[seq]
		record := make([]byte, p.size)
		if _, err := s.file.ReadAt(record, p.at); err != nil {
			return err
		}
		if err := l.append(recordPut, seq, record[recordHead+recordKey:]); err != nil {
			return err
		}
		to := l.segments[len(l.segments)-1]
		p.in, p.at = to, to.size-p.size
		if p.attempts > 0 {
			if err := l.append(recordTry, seq, attemptsData(p.attempts)); err != nil {
				return err
			}
		}
		l.enter(seq, &p)
	}
	if err := l.segments[len(l.segments)-1].file.Sync(); err != nil {
		l.failed = err
		return err
	}
	return nil
}

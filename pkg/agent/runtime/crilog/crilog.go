// Package crilog writes container output in the log format of the container
// runtime interface: one line of text per line of output, "time stream tag
// text", where tag P marks a line that the next one of the stream continues.
//
// It may import nothing of Coracle. Its invariant: what one Write was given
// is in the file, in order and in whole log lines, before Write returns;
// only a last line without its end waits for Close.
package crilog

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// MaxLine is the size in bytes at which a line is split into partial ones.
const MaxLine = 16 << 10

// timeLayout is RFC3339Nano with a fixed width, so that lines sort as text.
const timeLayout = "2006-01-02T15:04:05.000000000Z07:00"

// File is a container's log. All of its streams share it.
type File struct {
	path string
	now  func() time.Time

	mu   sync.Mutex
	file *os.File
	buf  []byte
}

// Open appends to the file at path and makes it, and its directory, if they are missing.
// An empty path drops all output.
func Open(path string) (*File, error) {
	f := &File{path: path, now: time.Now}
	return f, f.Reopen()
}

// Reopen opens the path again, after someone renamed the file.
func (f *File) Reopen() error {
	if f.path == "" {
		return nil
	}
	file, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if os.IsNotExist(err) {
		if err = os.MkdirAll(filepath.Dir(f.path), 0o755); err == nil {
			file, err = os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
		}
	}
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil {
		f.file.Close()
	}
	f.file = file
	return nil
}

// Close closes the file. Writes after it are dropped.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

// Stream returns a writer for one stream: "stdout" or "stderr". It is for one
// goroutine at a time. Its Close writes a last line that has no newline.
func (f *File) Stream(name string) io.WriteCloser {
	return &stream{file: f, name: name}
}

type stream struct {
	file *File
	name string
	rest []byte // a line whose end has not come yet, shorter than MaxLine
}

func (s *stream) Write(p []byte) (int, error) {
	f := s.file
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf = f.buf[:0]
	now := f.now().AppendFormat(nil, timeLayout)
	for left := p; len(left) > 0; {
		end := bytes.IndexByte(left, '\n')
		room := MaxLine - len(s.rest)
		switch {
		case end >= 0 && end <= room:
			f.line(now, s.name, 'F', s.rest, left[:end])
			s.rest, left = s.rest[:0], left[end+1:]
		case len(left) > room:
			f.line(now, s.name, 'P', s.rest, left[:room])
			s.rest, left = s.rest[:0], left[room:]
		default:
			s.rest, left = append(s.rest, left...), nil
		}
	}
	if err := f.flush(); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (s *stream) Close() error {
	if len(s.rest) == 0 {
		return nil
	}
	f := s.file
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf = f.buf[:0]
	f.line(f.now().AppendFormat(nil, timeLayout), s.name, 'P', s.rest, nil)
	s.rest = nil
	return f.flush()
}

func (f *File) line(now []byte, stream string, tag byte, parts ...[]byte) {
	f.buf = append(append(f.buf, now...), ' ')
	f.buf = append(append(f.buf, stream...), ' ', tag, ' ')
	for _, part := range parts {
		f.buf = append(f.buf, part...)
	}
	f.buf = append(f.buf, '\n')
}

func (f *File) flush() error {
	if f.file == nil || len(f.buf) == 0 {
		return nil
	}
	_, err := f.file.Write(f.buf)
	if cap(f.buf) > 4*MaxLine {
		f.buf = nil
	}
	return err
}

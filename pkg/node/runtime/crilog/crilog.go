// Package crilog writes container output in the CRI log format: one line per line of output, "time stream tag text",
// where tag P marks a partial line that the stream's next line continues. It rotates the log by size: PATH.1 is the
// newest rotated file.
//
// Its invariants: Write returns after all complete lines of its data are in the file, in order; a last line without a
// newline waits for Close. A log never takes more than MaxFiles*MaxSize bytes, however fast the container writes.
package crilog

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

const (
	// MaxSize is the maximum size of a log file in bytes, MaxFiles the maximum number of files per log.
	MaxSize  = 10 << 20
	MaxFiles = 5
)

// MaxLine is the length in bytes at which a line is split into partial lines.
const MaxLine = 16 << 10

// timeLayout is RFC3339Nano with a fixed width, so that lines sort as text.
const timeLayout = "2006-01-02T15:04:05.000000000Z07:00"

// File is a container's log, which its streams share.
type File struct {
	path string
	now  func() time.Time

	mu   sync.Mutex
	file *os.File
	size int64 // of file, in bytes
	buf  []byte
}

// Open opens or creates the file at path, and its directory, for appending. An empty path drops all output.
func Open(path string) (*File, error) {
	f := &File{path: path, now: time.Now}
	return f, f.open()
}

func (f *File) open() error {
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
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return err
	}
	if f.file != nil {
		f.file.Close()
	}
	f.file, f.size = file, info.Size()
	return nil
}

// rotate renames PATH to PATH.1, PATH.1 to PATH.2 and so on, which drops the oldest file, and opens a new PATH.
func (f *File) rotate() error {
	for n := MaxFiles - 1; n > 0; n-- {
		if err := os.Rename(numbered(f.path, n-1), numbered(f.path, n)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return f.open()
}

// numbered returns the name of the n-th rotated file; 0 is the log itself.
func numbered(path string, n int) string {
	if n == 0 {
		return path
	}
	return path + "." + strconv.Itoa(n)
}

// Close closes the file. Later writes are dropped.
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

// Stream returns a writer for "stdout" or "stderr". It is not safe for concurrent use. Write never fails: lines that
// cannot be written are dropped. Close writes an unfinished last line.
func (f *File) Stream(name string) io.WriteCloser {
	return &stream{file: f, name: name}
}

type stream struct {
	file *File
	name string
	rest []byte // an incomplete line, shorter than MaxLine
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
	// Drop lines on a full disk, so that neither the container nor the log stops.
	_ = f.flush()
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

// flush writes the buffer, after rotating a file that would exceed MaxSize. If rotation fails, for example because
// the directory was removed, it truncates the file to stay within the limit.
func (f *File) flush() error {
	if f.file == nil || len(f.buf) == 0 {
		return nil
	}
	if f.size > 0 && f.size+int64(len(f.buf)) > MaxSize {
		if f.rotate() != nil {
			if err := f.file.Truncate(0); err != nil {
				return err
			}
			f.size = 0
		}
	}
	n, err := f.file.Write(f.buf)
	f.size += int64(n)
	if err != nil && n > 0 && f.file.Truncate(f.size-int64(n)) == nil { // remove the incomplete line
		f.size -= int64(n)
	}
	if cap(f.buf) > 4*MaxLine {
		f.buf = nil
	}
	return err
}

// Package logs reads the logs that containers write ("time stream tag text",
// tag P for a partial line), also while they grow, and rotates them.
//
// It may import fsnotify and nothing of Coracle. Its invariant: a reader that
// follows sleeps until the kernel tells of a write.
package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Options of Read, as in corev1.PodLogOptions.
type Options struct {
	Follow, Timestamps bool
	// Tail is the number of lines to show from the end; negative for all.
	Tail int64
	// Since leaves out lines before it.
	Since time.Time
	// Limit is the largest number of bytes to write; 0 for no limit.
	Limit int64
	// Stream is "stdout", "stderr", or empty for both.
	Stream string
	// Ended is closed once the container has exited: a follower then reads to the end and returns.
	Ended <-chan struct{}
}

const maxLine = 1 << 20

// Line is one line of a log file.
type Line struct {
	Time, Stream string
	Partial      bool
	Text         []byte // without the line's end
}

// Parse splits a line of a log file.
func Parse(b []byte) (Line, error) {
	b = bytes.TrimSuffix(b, []byte("\n"))
	parts := bytes.SplitN(b, []byte(" "), 4)
	if len(parts) < 3 {
		return Line{}, errors.New("not a line of a container log")
	}
	l := Line{Time: string(parts[0]), Stream: string(parts[1])}
	tag, _, _ := bytes.Cut(parts[2], []byte(":"))
	l.Partial = string(tag) == "P"
	if len(parts) == 4 {
		l.Text = parts[3]
	}
	return l, nil
}

// Files lists a log's files, oldest first: path.N, and path itself last.
func Files(path string) []string {
	rotated, _ := filepath.Glob(path + ".*")
	sort.Slice(rotated, func(i, j int) bool {
		return len(rotated[i]) > len(rotated[j]) || len(rotated[i]) == len(rotated[j]) && rotated[i] > rotated[j]
	})
	return append(rotated, path)
}

type writer struct {
	w       io.Writer
	o       Options
	left    int64
	partial bool // the last written text had no line's end
}

var errLimit = errors.New("limit reached")

func (w *writer) line(l Line) error {
	if w.o.Stream != "" && l.Stream != w.o.Stream {
		return nil
	}
	if !w.o.Since.IsZero() {
		if t, err := time.Parse(time.RFC3339Nano, l.Time); err == nil && t.Before(w.o.Since) {
			return nil
		}
	}
	var b []byte
	if w.o.Timestamps && !w.partial {
		b = append(append(b, l.Time...), ' ')
	}
	b = append(b, l.Text...)
	if !l.Partial {
		b = append(b, '\n')
	}
	w.partial = l.Partial
	if w.o.Limit > 0 && int64(len(b)) > w.left {
		b = b[:w.left]
	}
	w.left -= int64(len(b))
	if _, err := w.w.Write(b); err != nil {
		return err
	}
	if w.o.Limit > 0 && w.left <= 0 {
		return errLimit
	}
	return nil
}

// Read writes a log to w. A log that does not exist is fs.ErrNotExist. It flushes w, if w can, whenever it waits.
func Read(ctx context.Context, path string, o Options, w io.Writer) error {
	out := &writer{w: w, o: o, left: o.Limit}
	var watch *fsnotify.Watcher
	if o.Follow {
		var err error
		if watch, err = fsnotify.NewWatcher(); err != nil {
			return err
		}
		defer watch.Close()
		if err := watch.Add(filepath.Dir(path)); err != nil {
			return err
		}
	}
	files := Files(path)
	start, skip := 0, int64(0)
	if o.Tail >= 0 {
		start, skip = tailStart(files, o)
	}
	var current *os.File
	for i := start; i < len(files); i++ {
		f, err := os.Open(files[i])
		if errors.Is(err, fs.ErrNotExist) && i < len(files)-1 {
			continue
		}
		if err != nil {
			return err
		}
		if i == start {
			if _, err := f.Seek(skip, io.SeekStart); err != nil {
				f.Close()
				return err
			}
		}
		if i == len(files)-1 {
			current = f
			break
		}
		err = copyLines(bufio.NewReader(f), out)
		f.Close()
		if err != nil {
			return done(err)
		}
	}
	defer func() { current.Close() }()
	in := bufio.NewReader(current)
	var pending []byte
	ended := false
	for {
		err := out.drain(in, &pending)
		if err != nil {
			return done(err)
		}
		if !o.Follow {
			if len(pending) > 0 {
				if l, err := Parse(pending); err == nil {
					return done(out.line(l))
				}
			}
			return nil
		}
		if next := rotated(current, path); next != nil {
			if err := out.drain(in, &pending); err != nil { // what came between
				next.Close()
				return done(err)
			}
			current.Close()
			current, in, pending = next, bufio.NewReader(next), nil
			continue
		}
		if ended {
			return nil
		}
		if f, ok := w.(interface{ Flush() }); ok {
			f.Flush()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-o.Ended:
			ended = true
		case err := <-watch.Errors:
			return err
		case _, open := <-watch.Events:
			if !open {
				return nil
			}
		}
	}
}

func done(err error) error {
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// drain writes all whole lines; what is left of the last is kept in pending.
func (w *writer) drain(in *bufio.Reader, pending *[]byte) error {
	for {
		b, err := in.ReadSlice('\n')
		if len(b) > 0 && len(*pending)+len(b) <= maxLine {
			*pending = append(*pending, b...)
		}
		switch {
		case err == nil:
			l, bad := Parse(*pending)
			*pending = (*pending)[:0]
			if bad == nil {
				if err := w.line(l); err != nil {
					return err
				}
			}
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}

func copyLines(in *bufio.Reader, out *writer) error {
	var pending []byte
	return out.drain(in, &pending)
}

// rotated opens the file that took the place of current, or returns nil if none did.
func rotated(current *os.File, path string) *os.File {
	have, err := current.Stat()
	if err != nil {
		return nil
	}
	now, err := os.Stat(path)
	if err != nil || os.SameFile(have, now) {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	return f
}

// tailStart finds the file, and the place in it, from which on the last o.Tail lines follow.
func tailStart(files []string, o Options) (int, int64) {
	want := o.Tail
	last := len(files) - 1
	if want == 0 {
		if info, err := os.Stat(files[last]); err == nil {
			return last, info.Size()
		}
		return last, 0
	}
	for i := last; i >= 0; i-- {
		b, err := os.ReadFile(files[i])
		if err != nil {
			continue
		}
		end := len(b)
		for end > 0 {
			begin := bytes.LastIndexByte(b[:end-1], '\n') + 1
			// A line counts by its last part; the partial ones before it belong to it.
			if l, err := Parse(b[begin:end]); err == nil && !l.Partial && (o.Stream == "" || l.Stream == o.Stream) {
				if want == 0 {
					return i, int64(end)
				}
				want--
			}
			end = begin
		}
	}
	return 0, 0
}

// Tail gives the last lines of a log as text, at most maxBytes of it; empty if there is none.
func Tail(path string, lines int64, maxBytes int) string {
	var b strings.Builder
	if path == "" || Read(context.Background(), path, Options{Tail: lines}, &b) != nil {
		return ""
	}
	s := b.String()
	if len(s) > maxBytes {
		s = s[len(s)-maxBytes:]
	}
	return s
}

// Rotate moves a log that is larger than maxSize bytes aside, keeping files in all, and calls reopen.
func Rotate(path string, maxSize int64, files int, reopen func() error) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() < maxSize {
		return nil
	}
	if err != nil {
		return err
	}
	all := Files(path)
	old := all[:len(all)-1]
	for len(old) >= files-1 && len(old) > 0 {
		if err := os.Remove(old[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		old = old[1:]
	}
	for i, f := range old {
		if err := os.Rename(f, numbered(path, len(old)-i+1)); err != nil {
			return err
		}
	}
	if err := os.Rename(path, numbered(path, 1)); err != nil {
		return err
	}
	return reopen()
}

func numbered(path string, n int) string { return path + "." + string(rune('0'+n)) }

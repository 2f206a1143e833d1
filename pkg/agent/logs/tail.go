package logs

import (
	"bytes"
	"context"
	"io"
	"os"
)

const (
	// block is how much of a file is read at once from its end, in bytes.
	block = 64 << 10
	// header is more than a line has before its text, in bytes.
	header = 128
	// tailWindow bounds what Tail looks at, in bytes.
	tailWindow = 128 << 10
)

// start finds the file, and the place in it, from which on what o asks for follows. midLine says that the place is within a line.
func start(ctx context.Context, files []*os.File, o Options) (index int, offset int64, midLine bool) {
	if o.Tail >= 0 {
		index, offset = tailStart(ctx, files, o.Tail, o.Stream)
	}
	if o.window == 0 {
		return index, offset, false
	}
	left := o.window
	for i := len(files) - 1; i >= index; i-- {
		size := sizeOf(files[i])
		first := int64(0)
		if i == index {
			first = offset
		}
		if size-first > left {
			return i, size - left, true
		}
		left -= size - first
	}
	return index, offset, false
}

func sizeOf(f *os.File) int64 {
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// tailStart finds the place from which on the last lines of the stream follow. A line counts by its last part; the partial ones before
// it belong to it.
func tailStart(ctx context.Context, files []*os.File, lines int64, stream string) (int, int64) {
	last := len(files) - 1
	if lines == 0 {
		return last, sizeOf(files[last])
	}
	for i := last; i >= 0; i-- {
		at := int64(-1)
		backward(ctx, files[i], func(head []byte, end int64) bool {
			if l, err := Parse(head); err != nil || l.Partial || stream != "" && l.Stream != stream {
				return true
			}
			if lines == 0 {
				at = end
				return false
			}
			lines--
			return true
		})
		if at >= 0 {
			return i, at
		}
	}
	return 0, 0
}

// backward tells of a file's lines, the last one first: how each begins and where it ends, with its newline. It stops when see returns
// false, the file cannot be read, or ctx ends.
func backward(ctx context.Context, f *os.File, see func(head []byte, end int64) bool) {
	buf, head := make([]byte, block), make([]byte, header)
	end := sizeOf(f) // of the line that is looked for
	line := func(begin int64) bool {
		n, err := f.ReadAt(head[:min(header, end-begin)], begin)
		if err != nil && err != io.EOF {
			return false
		}
		goOn := see(head[:n], end)
		end = begin
		return goOn
	}
	for at := end; at > 0 && ctx.Err() == nil; {
		low := max(at-block, 0)
		b := buf[:at-low]
		if _, err := f.ReadAt(b, low); err != nil {
			return
		}
		for {
			i := bytes.LastIndexByte(b, '\n')
			if i < 0 {
				break
			}
			b = b[:i]
			if begin := low + int64(i) + 1; begin < end && !line(begin) {
				return
			}
		}
		at = low
	}
	if end > 0 && ctx.Err() == nil {
		line(0)
	}
}

// last keeps the last max bytes of what is written to it.
type last struct {
	max int
	b   []byte
}

func (l *last) Write(b []byte) (int, error) {
	l.b = append(l.b, b[max(0, len(b)-l.max):]...)
	if len(l.b) > 2*l.max {
		l.b = append(l.b[:0], l.b[len(l.b)-l.max:]...)
	}
	return len(b), nil
}

// Tail gives the last lines of a log as text, at most maxBytes of it; empty if there is none. It reads a bounded part of the files,
// which is enough for maxBytes of up to 16 KiB in up to 100 lines.
func Tail(path string, lines int64, maxBytes int) string {
	out := &last{max: maxBytes}
	if path == "" || Read(context.Background(), path, Options{Tail: lines, window: tailWindow}, out) != nil {
		return ""
	}
	return string(out.b[max(0, len(out.b)-maxBytes):])
}

package logs

import (
	"bytes"
	"context"
	"io"
	"os"
)

const (
	// block is the size in bytes of the blocks for reading a file backward.
	block = 64 << 10
	// header is an upper bound, in bytes, of the part of a line before its text.
	header = 128
	// tailWindow is how many bytes Tail reads at most.
	tailWindow = 128 << 10
)

// start returns the file and offset where reading begins. midLine means that the offset is inside a line.
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

// tailStart returns the position of the last lines of the stream. Partial lines belong to the line that ends them.
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

// backward calls see for each line of a file, the last one first, with the line's first bytes and the offset of its
// end. It stops when see returns false, reading fails, or ctx is done.
func backward(ctx context.Context, f *os.File, see func(head []byte, end int64) bool) {
	buf, head := make([]byte, block), make([]byte, header)
	end := sizeOf(f) // end of the current line
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

// last is a writer that keeps the last max bytes.
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

// Tail returns the last lines of a log, at most maxBytes of text, or "". It reads at most tailWindow bytes of the
// log, which is enough for 16 KiB of text in 100 lines.
func Tail(path string, lines int64, maxBytes int) string {
	out := &last{max: maxBytes}
	if path == "" || Read(context.Background(), path, Options{Tail: lines, window: tailWindow}, out) != nil {
		return ""
	}
	return string(out.b[max(0, len(out.b)-maxBytes):])
}

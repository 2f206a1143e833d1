// Package logs reads container logs in the CRI format ("time stream tag text", tag P for a partial line), also while
// they grow and are rotated.
//
// Invariants: a following reader sleeps until the kernel reports a write; memory use does not depend on the sizes of
// files and lines; symbolic links are not followed.
package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"time"
)

// Options are the options of Read, as in corev1.PodLogOptions.
type Options struct {
	Follow, Timestamps bool
	// Tail is the number of lines from the end; negative means all.
	Tail int64
	// Since omits older lines.
	Since time.Time
	// Limit is the maximum number of bytes to write; 0 means no limit.
	Limit int64
	// Stream is "stdout", "stderr", or "" for both.
	Stream string
	// window limits reading to this many bytes from the end of the log; 0 means no limit.
	window int64
	// Ended is closed when the container has exited: a follower then reads to the end and returns.
	Ended <-chan struct{}
}

// maxLine is the size in bytes above which a line is truncated. The runtime writes much shorter ones.
const maxLine = 1 << 20

// Line is one line of a log file.
type Line struct {
	Time, Stream string
	Partial      bool
	Text         []byte // without the newline
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

type writer struct {
	w       io.Writer
	o       Options
	left    int64
	partial bool // the last written text did not end its line
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

// drain writes all complete lines and keeps the rest in pending.
func (w *writer) drain(ctx context.Context, in *bufio.Reader, pending *[]byte) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
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

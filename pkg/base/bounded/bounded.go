// Package bounded reads untrusted sources (a pod's files, an image's blobs, a registry's responses, a request's body)
// into memory up to a limit, and limits the rate (Rate) and processor time (CPU) of work that others cause.
//
// Invariant: a source larger than its limit is refused with a *TooLargeError (or cut, in a Buffer) before more than
// limit+1 bytes of it are in memory, whatever size it claims to have.
package bounded

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// TooLargeError means that a source is larger than its limit.
type TooLargeError struct {
	Name  string // of the source, for messages; may be empty
	Limit int64  // in bytes
}

func (e *TooLargeError) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("larger than the limit of %d bytes", e.Limit)
	}
	return fmt.Sprintf("%s is larger than the limit of %d bytes", e.Name, e.Limit)
}

// ErrNotRegular is returned by File for a path that is a symbolic link, a directory, a device, a socket or a FIFO.
var ErrNotRegular = errors.New("not a regular file")

// All reads r to its end. If it has more than limit bytes, it returns a *TooLargeError.
func All(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, &TooLargeError{Limit: limit}
	}
	return data, nil
}

// Reader returns a reader of r that fails with a *TooLargeError after limit bytes, for decoders that keep their input
// in memory.
func Reader(r io.Reader, limit int64) io.Reader { return &reader{r, limit, limit} }

type reader struct {
	io.Reader
	left, limit int64
}

func (r *reader) Read(p []byte) (int, error) {
	if int64(len(p)) > r.left+1 {
		p = p[:r.left+1]
	}
	n, err := r.Reader.Read(p)
	if int64(n) > r.left {
		return int(r.left), &TooLargeError{Limit: r.limit}
	}
	r.left -= int64(n)
	return n, err
}

// File reads a regular file of at most limit bytes. It does not follow a symbolic link as the last path element, and
// opening never blocks, so an untrusted process may be able to replace the file. Other files are ErrNotRegular. Files
// in /proc and /sys, whose size is reported as 0, are read up to the limit.
func File(path string, limit int64) ([]byte, error) { return read(path, unix.O_NOFOLLOW, limit) }

// Configured is File for a path that this process's operator configured. It follows symbolic links, as mounted Secrets
// need.
func Configured(path string, limit int64) ([]byte, error) { return read(path, 0, limit) }

func read(path string, flags int, limit int64) ([]byte, error) {
	f, err := open(path, flags)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, &TooLargeError{Name: path, Limit: limit}
	}
	data, err := All(f, limit)
	if large, ok := errors.AsType[*TooLargeError](err); ok {
		large.Name = path
	}
	return data, err
}

// Open opens a regular file for reading, under the rules of File. The caller closes it.
func Open(path string) (*os.File, error) { return open(path, unix.O_NOFOLLOW) }

func open(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|flags, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
			return nil, &os.PathError{Op: "open", Path: path, Err: ErrNotRegular}
		}
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

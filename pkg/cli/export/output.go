package export

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Output receives an export. The caller must call Commit after a complete export, and Close in any case.
type Output interface {
	// write adds a document. A directory puts it into the named file.
	write(file string, document []byte) error
	// Commit makes the export visible at its destination. Before, the destination is unchanged.
	Commit() error
	// Close removes uncommitted files.
	Close() error
}

type stream struct {
	w      *bufio.Writer
	began  bool
	target string   // path of the file; empty without one
	file   *os.File // temporary file; nil without one
}

// ToWriter returns an Output that writes one YAML stream to w.
func ToWriter(w io.Writer) Output { return &stream{w: bufio.NewWriter(w)} }

// ToFile returns an Output that writes one YAML stream to a file, readable only by its owner. Commit replaces an
// existing file.
func ToFile(path string) (Output, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return nil, err
	}
	return &stream{w: bufio.NewWriter(f), target: path, file: f}, nil
}

func (s *stream) write(_ string, document []byte) error {
	if s.began {
		if _, err := s.w.WriteString("---\n"); err != nil {
			return err
		}
	}
	s.began = true
	_, err := s.w.Write(document)
	return err
}

func (s *stream) Commit() error {
	if err := s.w.Flush(); err != nil || s.file == nil {
		return err
	}
	if err := errors.Join(s.file.Sync(), s.file.Close()); err != nil {
		return err
	}
	return os.Rename(s.file.Name(), s.target)
}

func (s *stream) Close() error {
	if s.file == nil {
		return nil
	}
	_ = s.file.Close() // may be closed already by Commit
	return gone(os.Remove(s.file.Name()))
}

type directory struct {
	target, temporary string
	current           string
	stream            *stream
	file              *os.File
}

// ToDirectory returns an Output of files in a directory, readable only by their owner. The directory must not exist
// or must be empty; Commit replaces it.
func ToDirectory(path string) (Output, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("%s is not empty: name a directory that does not exist, or empty it first", path)
	}
	if err == nil && !replaceable(path) {
		return nil, fmt.Errorf("%s is the working directory or a mount point, which cannot be replaced: name a directory "+
			"in it that does not exist", path)
	}
	temporary, err := os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return nil, err
	}
	return &directory{target: path, temporary: temporary}, nil
}

// replaceable reports whether a directory is neither the working directory nor a mount point.
func replaceable(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return true // the next use reports the error
	}
	here, err := os.Stat(".")
	if err == nil && os.SameFile(info, here) {
		return false
	}
	var of, above unix.Stat_t
	return unix.Stat(path, &of) != nil || unix.Stat(filepath.Dir(path), &above) != nil || of.Dev == above.Dev
}

func (d *directory) write(file string, document []byte) error {
	if file != d.current {
		if err := d.finish(); err != nil {
			return err
		}
		path := filepath.Join(d.temporary, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		d.current, d.file, d.stream = file, f, &stream{w: bufio.NewWriter(f)}
	}
	return d.stream.write(file, document)
}

func (d *directory) finish() error {
	if d.file == nil {
		return nil
	}
	f := d.file
	d.file, d.current = nil, ""
	return errors.Join(d.stream.w.Flush(), f.Close())
}

func (d *directory) Commit() error {
	if err := d.finish(); err != nil {
		return err
	}
	// Remove fails unless the directory is empty.
	if err := gone(os.Remove(d.target)); err != nil {
		return err
	}
	return os.Rename(d.temporary, d.target)
}

func (d *directory) Close() error { return errors.Join(d.finish(), os.RemoveAll(d.temporary)) }

// gone returns err, or nil if err means that the file does not exist.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

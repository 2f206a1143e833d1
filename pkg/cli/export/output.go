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

// Output is where an export goes. The caller must call Commit when it is whole, and Close in any case.
type Output interface {
	// write takes one document, and the file it belongs to in a directory.
	write(file string, document []byte) error
	// Commit makes the export visible: before, there is nothing where it should be.
	Commit() error
	// Close removes what was not committed.
	Close() error
}

// stream is one stream of documents.
type stream struct {
	w      *bufio.Writer
	began  bool
	target string   // of a file
	file   *os.File // nil for a stream that is not a file
}

// ToWriter returns an Output of documents separated by lines of dashes.
func ToWriter(w io.Writer) Output { return &stream{w: bufio.NewWriter(w)} }

// ToFile is ToWriter for a file, which is replaced when the export is whole. Only its owner may read it.
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
	_ = s.file.Close() // also after Commit
	return gone(os.Remove(s.file.Name()))
}

// directory is a tree of files, one for each kind and namespace.
type directory struct {
	target, temporary string
	current           string
	stream            *stream
	file              *os.File
}

// ToDirectory returns an Output of files below a directory that does not exist, or is empty and can be replaced. Only
// its owner may read them.
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

// replaceable reports whether a directory is not one that others hold on to: the working directory, or where a file
// system is mounted.
func replaceable(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return true // what is wrong with it is said where it is used
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

// finish closes the file that is being written.
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
	// It is empty, or this fails.
	if err := gone(os.Remove(d.target)); err != nil {
		return err
	}
	return os.Rename(d.temporary, d.target)
}

func (d *directory) Close() error { return errors.Join(d.finish(), os.RemoveAll(d.temporary)) }

// gone returns nil if err says that the file does not exist, else err.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

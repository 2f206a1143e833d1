// Package snapshot reads and writes the archive of `coracle snapshot save`: the store's database, and the keys without
// which it cannot be used.
//
// An archive is a zstd-compressed tar: the small files, then the database, then the manifest. Invariant: an archive is
// unpacked only if it is complete and unchanged, and nothing outside the directory is written.
package snapshot

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// Database is the name of the store's database in an archive.
	Database = "store.db"
	// manifestName is the last entry. An archive without it is incomplete.
	manifestName = "manifest.json"
	format       = 1

	// mostFiles and mostFileBytes limit the files other than the database, mostDatabaseBytes the database.
	mostFiles         = 256
	mostFileBytes     = 1 << 20
	mostDatabaseBytes = 64 << 30
	// window limits the memory of the decoder.
	window = 16 << 20
)

// Manifest describes an archive.
type Manifest struct {
	Format int       `json:"format"`
	Taken  time.Time `json:"taken"`
	// Coracle and Kubernetes are the versions that wrote the archive, Node the server's node.
	Coracle    string `json:"coracle"`
	Kubernetes string `json:"kubernetes"`
	Node       string `json:"node,omitempty"`
	// Revision is the store's revision when the archive was begun. The archive has all changes up to it.
	Revision int64 `json:"revision"`
	// EncryptionConfig is the file with the keys of stored objects, if the archive does not contain it.
	EncryptionConfig string `json:"encryptionConfig,omitempty"`
	Parts            []Part `json:"parts"`
	// Etcd marks a snapshot of etcd instead of an archive: it has no keys, and all fields above are empty.
	Etcd bool `json:"-"`
}

// Part is an entry of an archive.
type Part struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// File is a small file of an archive. Its name is relative to the data directory.
type File struct {
	Name string
	Data []byte
}

// allowed are the names of an archive's entries.
var allowed = regexp.MustCompile(`^((pki|encryption)/[A-Za-z0-9][A-Za-z0-9._-]{0,127}|` + regexp.QuoteMeta(Database) +
	`)$`)

// Files reads the regular files of a directory below root, not of its subdirectories. None if it does not exist.
func Files(root, dir string) ([]File, error) {
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var files []File
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if !e.Type().IsRegular() || !allowed.MatchString(name) {
			continue
		}
		data, err := bounded.File(filepath.Join(root, name), mostFileBytes)
		if errors.Is(err, fs.ErrNotExist) {
			continue // replaced meanwhile
		}
		if err != nil {
			return nil, err
		}
		if files = append(files, File{name, data}); len(files) > mostFiles {
			return nil, fmt.Errorf("more than %d files in %s", mostFiles, filepath.Join(root, dir))
		}
	}
	return files, nil
}

// Same reports whether two lists of files are equal.
func Same(a, b []File) bool {
	return slices.EqualFunc(a, b, func(x, y File) bool { return x.Name == y.Name && bytes.Equal(x.Data, y.Data) })
}

// Writer writes an archive: Add the small files and the database, then Close.
type Writer struct {
	compressed *zstd.Encoder
	archive    *tar.Writer
	manifest   Manifest
}

// NewWriter returns a Writer of an archive with the manifest m. It sets the manifest's format, time and parts.
func NewWriter(w io.Writer, m Manifest, now time.Time) (*Writer, error) {
	compressed, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(window/4))
	if err != nil {
		return nil, err
	}
	m.Format, m.Taken, m.Parts = format, now.UTC().Truncate(time.Second), nil
	return &Writer{compressed, tar.NewWriter(compressed), m}, nil
}

// Add adds an entry of size bytes.
func (w *Writer) Add(name string, size int64, from io.WriterTo) error {
	if !allowed.MatchString(name) {
		return fmt.Errorf("%q cannot be part of a snapshot", name)
	}
	sum := sha256.New()
	if err := w.archive.WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o600, ModTime: w.manifest.Taken}); err !=
		nil {
		return err
	}
	if _, err := from.WriteTo(io.MultiWriter(w.archive, sum)); err != nil {
		return err
	}
	w.manifest.Parts = append(w.manifest.Parts, Part{name, size, hex.EncodeToString(sum.Sum(nil))})
	return nil
}

// AddFile adds a small file.
func (w *Writer) AddFile(f File) error {
	return w.Add(f.Name, int64(len(f.Data)), bytes.NewReader(f.Data))
}

// Close writes the manifest, which makes the archive complete.
func (w *Writer) Close() error {
	raw, err := json.MarshalIndent(w.manifest, "", "  ")
	if err != nil {
		return err
	}
	if err := w.archive.WriteHeader(&tar.Header{
		Name:    manifestName,
		Size:    int64(len(raw)),
		Mode:    0o600,
		ModTime: w.manifest.Taken,
	}); err != nil {
		return err
	}
	if _, err := w.archive.Write(raw); err != nil {
		return err
	}
	return errors.Join(w.archive.Close(), w.compressed.Close())
}

// Abort releases the memory of a Writer that is not closed.
func (w *Writer) Abort() { w.compressed.Reset(io.Discard) }

// Unpack unpacks an archive into dir, which must exist and be empty, and verifies it.
func Unpack(r io.Reader, dir string) (Manifest, error) {
	m, parts, err := unpack(r, dir)
	if err != nil {
		return m, err
	}
	if m.Format != format {
		return m, fmt.Errorf("the snapshot has format %d, and this version reads %d: use the release that wrote it (%s)",
			m.Format, format, m.Coracle)
	}
	if !slices.Equal(m.Parts, parts) {
		return m, errors.New("the snapshot is damaged: its contents differ from its manifest")
	}
	if !slices.ContainsFunc(parts, func(p Part) bool { return p.Name == Database }) {
		return m, errors.New("the snapshot has no database")
	}
	return m, nil
}

func incomplete(err error) error {
	return fmt.Errorf("not a snapshot, or a damaged one: %w", err)
}

func unpack(r io.Reader, dir string) (m Manifest, parts []Part, err error) {
	plain, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(window), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return m, nil, err
	}
	defer plain.Close()
	archive := tar.NewReader(plain)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return m, nil, errors.New("the snapshot is incomplete: it has no manifest")
		}
		if err != nil {
			return m, nil, incomplete(err)
		}
		switch {
		case h.Name == manifestName:
			if h.Size > mostFileBytes {
				return m, nil, errors.New("the manifest is too large")
			}
			if err := json.NewDecoder(io.LimitReader(archive, mostFileBytes)).Decode(&m); err != nil {
				return m, nil, incomplete(err)
			}
			return m, parts, nil
		case h.Typeflag != tar.TypeReg || !allowed.MatchString(h.Name):
			return m, nil, fmt.Errorf("the snapshot has an entry %.200q, which does not belong there", h.Name)
		case h.Name == Database && h.Size > mostDatabaseBytes, h.Name != Database && h.Size > mostFileBytes,
			len(parts) > mostFiles:
			return m, nil, fmt.Errorf("the snapshot's entry %s is too large, or there are too many", h.Name)
		}
		sum := sha256.New()
		if err := write(filepath.Join(dir, h.Name), archive, sum); err != nil {
			return m, nil, err
		}
		parts = append(parts, Part{h.Name, h.Size, hex.EncodeToString(sum.Sum(nil))})
	}
}

// write creates, hashes and syncs a file, which must not exist.
func write(name string, from io.Reader, sum hash.Hash) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.TeeReader(from, sum))
	var local *fs.PathError
	if err != nil && !errors.As(err, &local) {
		err = incomplete(err)
	}
	return errors.Join(err, f.Sync(), f.Close())
}

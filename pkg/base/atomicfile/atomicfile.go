// Package atomicfile replaces files as a whole.
//
// Invariant: a reader sees the old or the new content, never a part of one, even if the process is killed at any
// moment. The new content is written to a temporary file in the same directory, whose name ends with Suffix; the next
// write overwrites the temporary file of a killed process. Callers serialize the writes of one file.
package atomicfile

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Suffix is the end of a temporary file's name.
const Suffix = ".new"

// Write replaces the file at path, with mode 0600. It does not sync: if the machine crashes soon after, the file may
// have the old or the new content, be empty, or be filled with zeros. WriteDurably survives a crash.
func Write(path string, data []byte) error {
	if err := os.WriteFile(path+Suffix, data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+Suffix, path)
}

// WriteJSON is Write of the value's JSON.
func WriteJSON(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return Write(path, data)
}

// WriteDurably replaces the file at path, with mode 0600. When it returns nil, the content and the file's name are on
// disk.
func WriteDurably(path string, data []byte) error {
	return Stream(path, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// Stream is WriteDurably of what write writes. If write fails, the file at path stays and no temporary file is left.
func Stream(path string, write func(io.Writer) error) error {
	if err := os.Remove(path + Suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path+Suffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(path+Suffix, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(path+Suffix))
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir syncs a directory's entries: the names of files that were created, renamed or removed in it.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

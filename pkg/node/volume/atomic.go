package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// File is a file of a volume.
type File struct {
	Data []byte
	Mode fs.FileMode
	// UID is the owner, nil for the agent's user. A service account token belongs to the pod's user, if it has one.
	UID *int64
}

const dataLink = "..data"

// WriteAtomic replaces the contents of dir by files, by path, so that a reader sees either all old or all new files.
// They are in a directory to which the link ..data points; each first path element is a link through ..data. It
// writes nothing if nothing has changed. If group is not nil, it owns the files and can read them.
func WriteAtomic(dir string, files map[string]File, group *int64) error {
	for path := range files {
		if !filepath.IsLocal(path) || strings.HasPrefix(path, "..") {
			return fmt.Errorf("invalid path %q: it must be relative and stay within the volume", path)
		}
	}
	current, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && same(filepath.Join(dir, current), files, group) {
		return link(dir, files, group)
	}
	fresh, err := os.MkdirTemp(dir, "..data-*")
	if err != nil {
		return err
	}
	if err := fill(fresh, files, group); err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	next := filepath.Join(dir, "..data_tmp")
	_ = os.Remove(next)
	if err := symlink(filepath.Base(fresh), next, nil, group); err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	if err := os.Rename(next, filepath.Join(dir, dataLink)); err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	if err := link(dir, files, group); err != nil {
		return err
	}
	return sweep(dir, filepath.Base(fresh))
}

// sweep removes the directories of earlier and of interrupted writes.
func sweep(dir, keep string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, dataLink+"-") && name != keep {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, name)))
		}
	}
	return errors.Join(errs...)
}

func permissions(f File, group *int64) fs.FileMode {
	mode := f.Mode.Perm()
	if group != nil {
		mode |= 0o440
	}
	return mode
}

func fill(dir string, files map[string]File, group *int64) error {
	if err := own(dir, 0o755, nil, group); err != nil {
		return err
	}
	for path, f := range files {
		at := dir
		parts := strings.Split(filepath.Clean(path), "/")
		for _, part := range parts[:len(parts)-1] {
			at = filepath.Join(at, part)
			if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if err := own(at, 0o755, nil, group); err != nil {
				return err
			}
		}
		at = filepath.Join(at, parts[len(parts)-1])
		if err := os.WriteFile(at, f.Data, 0o600); err != nil {
			return err
		}
		if err := own(at, permissions(f, group), f.UID, group); err != nil {
			return err
		}
	}
	return nil
}

func own(path string, mode fs.FileMode, uid, group *int64) error {
	u, g := id(uid), id(group)
	if group != nil {
		if mode&0o100 != 0 && mode&0o400 != 0 {
			if info, err := os.Lstat(path); err == nil && info.IsDir() {
				mode |= os.ModeSetgid | 0o050
			}
		}
	}
	if u >= 0 || g >= 0 {
		if err := os.Chown(path, u, g); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode)
}

func same(dir string, files map[string]File, group *int64) bool {
	count := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		f, wanted := files[name]
		if !wanted {
			return errors.New("left over")
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		have, err := bounded.File(path, int64(len(f.Data)))
		if err != nil {
			return err
		}
		if info.Mode().Perm() != permissions(f, group) || !bytes.Equal(have, f.Data) {
			return errors.New("differs")
		}
		count++
		return nil
	})
	return err == nil && count == len(files)
}

// symlink creates a symbolic link that belongs to uid and group; nil keeps the agent's.
func symlink(to, path string, uid, group *int64) error {
	if err := os.Symlink(to, path); err != nil || uid == nil && group == nil {
		return err
	}
	return os.Lchown(path, id(uid), id(group))
}

func id(i *int64) int {
	if i == nil {
		return -1
	}
	return int(*i)
}

// link creates the links to ..data and removes links whose files are gone.
func link(dir string, files map[string]File, group *int64) error {
	want := map[string]*int64{} // owners by name
	for path, f := range files {
		want[strings.Split(filepath.Clean(path), "/")[0]] = f.UID
	}
	for name, uid := range want {
		if _, err := os.Readlink(filepath.Join(dir, name)); err == nil {
			continue
		}
		if err := symlink(filepath.Join(dataLink, name), filepath.Join(dir, name), uid, group); err != nil &&
			!errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if _, wanted := want[name]; !strings.HasPrefix(name, "..") && !wanted && e.Type()&fs.ModeSymlink != 0 {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

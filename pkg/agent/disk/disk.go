// Package disk measures what directories take of a file system.
//
// It may import nothing of Coracle. Its invariant: it never leaves the directory: neither links nor mounts are followed.
package disk

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Usage is what files take.
type Usage struct{ Bytes, Inodes uint64 }

// Plus is the sum.
func (u Usage) Plus(v Usage) Usage { return Usage{u.Bytes + v.Bytes, u.Inodes + v.Inodes} }

// Of walks dir, as du -x does: blocks on disk, and a file with many links once. What goes while it walks is left out,
// and a dir that does not exist takes nothing. It ends with ctx's error if ctx ends.
func Of(ctx context.Context, dir string) (Usage, error) {
	var u Usage
	var device uint64
	type file struct{ dev, ino uint64 }
	var linked map[file]bool
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if path == dir {
			device = st.Dev
		}
		if st.Dev != device {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if st.Nlink > 1 && !d.IsDir() {
			key := file{st.Dev, st.Ino}
			if linked[key] {
				return nil
			}
			if linked == nil {
				linked = map[file]bool{}
			}
			linked[key] = true
		}
		u = u.Plus(Usage{uint64(st.Blocks) * 512, 1})
		return nil
	})
	return u, err
}

package tasklogs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The bounds of an attempt's kept files. Names and headers count as bytes.
const (
	maxOutput = 64 << 20
	maxFiles  = 10_000
)

// In the directory of a pod's logs outputFile has the kept files, or outputError why they are not kept. No container
// can have such a name.
const (
	outputFile  = "output.tar"
	outputError = "output.error"
)

// errTooLarge is reported to the user.
var errTooLarge = fmt.Errorf("the files below outputPath were not kept, because they are larger than %d MiB or more "+
	"than %d: write them to a claim", maxOutput>>20, maxFiles)

// archiveOutput archives the directory from in the directory to. It may be repeated, and does nothing if from does not
// exist. A failure does not keep the pod: the user gets its reason in place of the files.
func archiveOutput(from, to string) {
	root, err := os.OpenRoot(from)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		defer root.Close()
		err = writeOutput(root, filepath.Join(to, outputFile))
	}
	if err == nil {
		return
	}
	if !errors.Is(err, errTooLarge) {
		err = fmt.Errorf("the files below outputPath were not kept: %w", err)
	} else {
		err = errTooLarge
	}
	_ = os.WriteFile(filepath.Join(to, outputError), []byte(err.Error()), 0o600)
}

func writeOutput(root *os.Root, path string) error {
	next, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	if err := errors.Join(pack(root, next), next.Close()); err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return os.Rename(next.Name(), path)
}

// limited fails once more than left bytes are written.
type limited struct {
	w    io.Writer
	left int64
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, errTooLarge
	}
	return l.w.Write(p)
}

// pack writes the directories and regular files below root. It follows no symlink. The container has ended, but a
// sidecar may still change the files.
func pack(root *os.Root, to io.Writer) error {
	out := tar.NewWriter(&limited{to, maxOutput})
	files := 0
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		if files++; files > maxFiles {
			return errTooLarge
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		h.Name, h.Uname, h.Gname = name, "", ""
		if d.IsDir() {
			return out.WriteHeader(h)
		}
		return packFile(root, out, h)
	})
	return errors.Join(err, out.Close())
}

func packFile(root *os.Root, out *tar.Writer, h *tar.Header) error {
	if h.Size > maxOutput {
		return errTooLarge
	}
	f, err := root.OpenFile(h.Name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%s has changed", h.Name))
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(out, f, h.Size)
	return err
}

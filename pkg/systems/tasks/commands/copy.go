package commands

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Copy copies a file or directory that an attempt left below its output path to a local path, or into an existing local
// directory.
func (c cluster) Copy(ctx context.Context, from, to string, o LogOptions) error {
	name, wanted, ok := strings.Cut(from, ":")
	if !ok || name == "" {
		return fmt.Errorf("%q is not of the form TASK:PATH", from)
	}
	t, err := c.getTask(ctx, name)
	if err != nil {
		return err
	}
	if t.Spec.OutputPath == "" {
		return fmt.Errorf("task %s keeps no files: run it with --output-path", name)
	}
	if err := validIndex(t, o.Index); err != nil {
		return err
	}
	if path.IsAbs(wanted) {
		if wanted, err = filepath.Rel(t.Spec.OutputPath, wanted); err != nil || !filepath.IsLocal(wanted) {
			return fmt.Errorf("task %s keeps only the files below %s", name, t.Spec.OutputPath)
		}
	}
	req, err := c.subresource(name, "output", o)
	if err != nil {
		return err
	}
	stream, err := req.Stream(ctx)
	if err != nil {
		return err
	}
	found, err := unpack(stream, path.Clean(wanted), to)
	if err := errors.Join(err, stream.Close()); err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("task %s left no %s below %s", name, wanted, t.Spec.OutputPath)
	}
	return nil
}

// unpack writes the entries of an archive at or below wanted to the local path to. It writes nothing outside of to,
// whatever the archive contains.
func unpack(in io.Reader, wanted, to string) (found bool, err error) {
	base := filepath.Base(to)
	if info, err := os.Stat(to); err == nil && info.IsDir() {
		base = path.Base(wanted)
	} else {
		to = filepath.Dir(to)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return false, err
	}
	defer root.Close()
	archive := tar.NewReader(in)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return found || wanted == ".", nil
		}
		if err != nil {
			return found, err
		}
		rest, below := strings.CutPrefix(h.Name, wanted)
		if wanted == "." {
			rest, below = "/"+h.Name, true
		}
		if !below || rest != "" && rest[0] != '/' {
			continue
		}
		found = true
		if err := unpackOne(root, filepath.Join(base, filepath.FromSlash(rest)), h, archive); err != nil {
			return found, err
		}
	}
}

func unpackOne(root *os.Root, name string, h *tar.Header, in io.Reader) error {
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, 0o755)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	mode := os.FileMode(0o644 | h.Mode&0o111)
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, in)
	return errors.Join(err, f.Close())
}

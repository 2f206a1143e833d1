package containerd

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
)

// maxFiles bounds the files of an image archive, which has one for each layer, manifest and configuration.
const maxFiles = 10_000

// boundedArchive copies the regular files and symbolic links of an image archive, and fails at the first entry that
// exceeds a limit. room limits the total size of the files, in bytes. Close waits until reads of the archive have
// ended.
func boundedArchive(archive io.Reader, room int64) io.ReadCloser {
	r, w := io.Pipe()
	t := tamed{r, make(chan struct{})}
	go func() {
		defer close(t.done)
		to := tar.NewWriter(w)
		err := copyArchive(to, tar.NewReader(archive), room)
		if err == nil {
			err = to.Close()
		}
		_ = w.CloseWithError(err)
	}()
	return t
}

type tamed struct {
	*io.PipeReader
	done chan struct{}
}

func (t tamed) Close() error {
	err := t.PipeReader.Close()
	<-t.done
	return err
}

func copyArchive(to *tar.Writer, from *tar.Reader, room int64) error {
	for files := 0; ; {
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("not an image archive: %w", err)
		}
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink {
			continue
		}
		if files++; files > maxFiles {
			return refuse("its archive has more than %d files", maxFiles)
		}
		if h.Size < 0 || h.Size > room {
			return refuse("its archive has more bytes than the disk has room for")
		}
		if limit := int64(maxManifest); h.Size > limit && (h.Name == "manifest.json" || h.Name == "index.json") {
			return refuse("its %s has %d bytes, and %d is the limit", h.Name, h.Size, limit)
		}
		room -= h.Size
		if err := to.WriteHeader(&tar.Header{
			Typeflag: h.Typeflag,
			Name:     h.Name,
			Linkname: h.Linkname,
			Size:     h.Size,
			Mode:     0o644,
		}); err != nil {
			return err
		}
		if _, err := io.Copy(to, from); err != nil {
			return err
		}
	}
}

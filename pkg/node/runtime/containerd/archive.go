package containerd

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/klauspost/compress/zstd"
)

// maxWindow limits the memory of a zstd decoder, in bytes. The header of a frame says how much it needs, and 512 MiB
// are allowed. The tools that build images use at most 32 MiB.
const maxWindow = 64 << 20

// decompress returns the content of a layer or an archive, which may be compressed with gzip or zstd.
func decompress(packed io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReader(packed)
	head, err := in.Peek(10)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if compression.DetectCompression(head) != compression.Zstd {
		return compression.DecompressStream(in)
	}
	plain, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	return windowed{plain.IOReadCloser()}, nil
}

type windowed struct{ io.ReadCloser }

func (w windowed) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		err = refuse("its compression needs a window of more than %d bytes", maxWindow)
	}
	return n, err
}

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

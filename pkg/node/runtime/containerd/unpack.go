package containerd

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	imagestore "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	unpacksAtOnce = 3
	// maxNames limits a layer's names, links and attributes, and entryCost per file, in bytes of memory.
	maxNames  = 128 << 20
	entryCost = 128
	// Free space is checked again after lookEvery bytes or lookFiles files.
	lookEvery = 8 << 20
	lookFiles = 1000
)

// applier unpacks layers like containerd's, but fails before a layer fills the disk. A layer's size does not bound
// its unpacked size: kilobytes of zstd can become gigabytes.
type applier struct {
	store content.Provider
	room  func() (bytes, inodes int64)
	slots chan struct{}
}

func newApplier(store content.Provider, room func() (bytes, inodes int64)) *applier {
	return &applier{store: store, room: room, slots: make(chan struct{}, unpacksAtOnce)}
}

// Compare is not supported, because Coracle does not create layers.
func (*applier) Compare(context.Context, []mount.Mount, []mount.Mount, ...diff.Opt) (v1.Descriptor, error) {
	return v1.Descriptor{}, errdefs.ErrNotImplemented
}

// Apply unpacks a layer onto the mounts, and returns the descriptor of the uncompressed layer.
func (a *applier) Apply(ctx context.Context, desc v1.Descriptor, mounts []mount.Mount,
	_ ...diff.ApplyOpt) (v1.Descriptor, error) {
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	case <-ctx.Done():
		return v1.Descriptor{}, ctx.Err()
	}
	ra, err := a.store.ReaderAt(ctx, desc)
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer ra.Close()
	packed, err := imagestore.DiffCompression(ctx, desc.MediaType)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("a layer of type %s cannot be unpacked: %w", desc.MediaType, err)
	}
	layer := io.NopCloser(content.NewReader(ra))
	if packed != "" {
		if layer, err = decompress(layer); err != nil {
			return v1.Descriptor{}, err
		}
	}
	defer layer.Close()
	sum := digest.Canonical.Digester()
	g := &unpackGuard{room: a.room}
	if g.bytes, g.inodes = a.room(); g.bytes == 0 || g.inodes == 0 {
		return v1.Descriptor{}, g.full()
	}
	stream := &boundedStream{ctx: ctx, r: io.TeeReader(layer, sum.Hash()), left: g.bytes}
	if err := unpack(ctx, mounts, stream, archive.WithFilter(g.entry)); err != nil {
		return v1.Descriptor{}, err
	}
	if _, err := io.Copy(io.Discard, stream); err != nil { // the digest includes trailing data
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Size: stream.read, Digest: sum.Digest()}, nil
}

// unpack writes directly to the upper directory of an overlay, with whiteouts in overlayfs's format, because
// whiteouts cannot be made through the mount.
func unpack(ctx context.Context, mounts []mount.Mount, r io.Reader, opts ...archive.ApplyOpt) error {
	if len(mounts) == 1 && mounts[0].Type == "overlay" {
		upper, lower := "", []string(nil)
		for _, o := range mounts[0].Options {
			if dir, ok := strings.CutPrefix(o, "upperdir="); ok {
				upper = dir
			} else if dirs, ok := strings.CutPrefix(o, "lowerdir="); ok {
				lower = strings.Split(dirs, ":")
			}
		}
		if upper != "" {
			opts = append(opts, archive.WithConvertWhiteout(archive.OverlayConvertWhiteout))
			if len(lower) > 0 {
				opts = append(opts, archive.WithParents(lower))
			}
			_, err := archive.Apply(ctx, upper, r, opts...)
			return err
		}
	}
	return mount.WithTempMount(ctx, mounts, func(root string) error {
		_, err := archive.Apply(ctx, root, r, opts...)
		return err
	})
}

// unpackGuard checks each entry of a layer before it is written.
type unpackGuard struct {
	room          func() (bytes, inodes int64)
	bytes, inodes int64 // free at the last check
	written       int64 // bytes since then
	files         int64 // entries since then
	names         int64
}

func (g *unpackGuard) entry(h *tar.Header) (bool, error) {
	g.names += entryCost + int64(len(h.Name)+len(h.Linkname))
	for k, v := range h.PAXRecords {
		g.names += int64(len(k) + len(v))
	}
	if g.names > maxNames {
		return false, refuse("a layer has more than %d bytes of file names and attributes", maxNames)
	}
	if h.Size < 0 || h.Size > g.bytes-g.written || g.files >= g.inodes || g.written >= lookEvery || g.files >= lookFiles {
		g.bytes, g.inodes = g.room()
		g.written, g.files = 0, 0
		if h.Size < 0 || h.Size > g.bytes || g.inodes == 0 {
			return false, g.full()
		}
	}
	g.written += h.Size
	g.files += int64(1 + strings.Count(h.Name, "/")) // missing parent directories are created
	return true, nil
}

func (g *unpackGuard) full() error {
	return refuse("unpacked it needs more than the %d bytes and %d files that are free for images", g.bytes,
		g.inodes)
}

type boundedStream struct {
	ctx        context.Context //nolint:containedctx // of one call of Apply
	r          io.Reader
	left, read int64
}

func (b *boundedStream) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left+1)])
	b.read += int64(n)
	if b.left -= int64(n); b.left < 0 {
		return 0, errors.Join(refuse("a layer unpacks to more than the %d bytes that images have room for", b.read-1), err)
	}
	return n, err
}

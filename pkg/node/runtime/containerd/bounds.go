package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	imagestore "github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Limits of the memory and disk space that an image can make this process use. An image that exceeds one is refused.
const (
	maxManifest = 4 << 20 // bytes of a manifest or an index
	maxConfig   = 8 << 20 // bytes of a configuration or another blob that is not a layer
	maxObjects  = 100_000 // JSON objects per blob: three bytes of text can take more than 100 bytes of memory
	// bytes of an image's environment, command and names, which stay in memory; execve(2) accepts at most 2 MiB.
	maxKept   = 1 << 20
	maxLayers = 500 // the maximum of overlayfs (OVL_MAX_STACK)
	maxTree   = 64  // manifests and indexes below one reference
)

// ImageError is the reason for refusing an image.
type ImageError struct{ Reason string }

func (e *ImageError) Error() string { return "the image is refused: " + e.Reason }

// Is reports that it is runtime.ErrRefused.
func (e *ImageError) Is(target error) bool { return target == runtime.ErrRefused }

func refuse(format string, args ...any) error { return &ImageError{fmt.Sprintf(format, args...)} }

// blobs is a content store that bounds reads of metadata, because containerd reads manifests, indexes and
// configurations into memory regardless of their size.
type blobs struct {
	content.Store
	// strict limits all blobs, regardless of their media type.
	strict bool
}

// limit returns a blob's size limit in bytes. It is 0 for layers, which are streamed, and for files of an archive,
// whose descriptors have no media type.
func (b blobs) limit(desc v1.Descriptor) int64 {
	switch {
	case imagestore.IsManifestType(desc.MediaType), imagestore.IsIndexType(desc.MediaType):
		return maxManifest
	case !b.strict && (desc.MediaType == "" || imagestore.IsLayerType(desc.MediaType)):
		return 0
	}
	return maxConfig
}

func (b blobs) ReaderAt(ctx context.Context, desc v1.Descriptor) (content.ReaderAt, error) {
	ra, err := b.Store.ReaderAt(ctx, desc)
	limit := b.limit(desc)
	if err != nil || limit == 0 {
		return ra, err
	}
	defer ra.Close()
	if ra.Size() > limit {
		return nil, refuse("%v", &bounded.TooLargeError{
			Name: fmt.Sprintf("%s %s", desc.MediaType, desc.Digest), Limit: limit,
		})
	}
	data, err := bounded.All(content.NewReader(ra), limit)
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(data, []byte{'{'}); n > maxObjects {
		return nil, refuse("%s %s holds %d objects, and %d is the limit", desc.MediaType, desc.Digest, n, maxObjects)
	}
	return memory{bytes.NewReader(data)}, nil
}

type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

// checkManifest refuses a manifest with too many layers, an invalid configuration, or layers of more than room bytes.
func checkManifest(m *v1.Manifest, room int64) error {
	c := m.Config
	if c.MediaType == "" || imagestore.IsLayerType(c.MediaType) || imagestore.IsManifestType(c.MediaType) ||
		imagestore.IsIndexType(c.MediaType) {
		return refuse("its configuration has the media type %q", c.MediaType)
	}
	if c.Size < 0 || c.Size > maxConfig {
		return refuse("its configuration has a declared size of %d bytes, and %d is the limit", c.Size, maxConfig)
	}
	if len(m.Layers) > maxLayers {
		return refuse("it has %d layers, and %d is the limit", len(m.Layers), maxLayers)
	}
	var total int64
	for _, l := range m.Layers {
		if l.Size < 0 || l.Size > room-total {
			return refuse("its layers have more than %d bytes, the space that the disk has for images",
				room)
		}
		total += l.Size
	}
	return nil
}

// guard checks descriptors before a pull fetches them. Its handlers run concurrently.
type guard struct {
	store content.Provider
	room  func() int64
	found func(id string) error // runtime.PullObserver.Found; may be nil

	mu    sync.Mutex
	seen  map[string]bool // digests of manifests and indexes
	parts map[string]bool // digests of the configurations and layers of accepted manifests
}

// note counts a manifest or index. Any other blob must belong to an accepted manifest, which limits its size.
func (g *guard) note(desc v1.Descriptor, counts bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := desc.Digest.String()
	if !counts && !g.parts[id] {
		return refuse("its index leads to a %q, which is no manifest", desc.MediaType)
	}
	if counts {
		g.seen[id] = true
	}
	if len(g.seen) > maxTree {
		return refuse("it leads to more than %d manifests", maxTree)
	}
	return nil
}

func (g *guard) wrap(h imagestore.Handler) imagestore.Handler {
	return imagestore.HandlerFunc(func(ctx context.Context, desc v1.Descriptor) ([]v1.Descriptor, error) {
		manifest := imagestore.IsManifestType(desc.MediaType)
		if err := g.note(desc, manifest || imagestore.IsIndexType(desc.MediaType)); err != nil {
			return nil, err
		}
		if limit := (blobs{}).limit(desc); limit > 0 && desc.Size > limit {
			return nil, refuse("%v", &bounded.TooLargeError{
				Name: fmt.Sprintf("%s %s", desc.MediaType, desc.Digest), Limit: limit,
			})
		}
		children, err := h.Handle(ctx, desc)
		if err != nil {
			return nil, otherPlatforms(ctx, g.store, desc, err)
		}
		if !manifest {
			return children, nil
		}
		data, err := content.ReadBlob(ctx, g.store, desc)
		if err != nil {
			return nil, err
		}
		var m v1.Manifest
		if err := json.Unmarshal(data, &m); err != nil {
			return nil, fmt.Errorf("manifest %s: %w", desc.Digest, err)
		}
		if err := checkManifest(&m, g.room()); err != nil {
			return nil, err
		}
		if g.found != nil {
			if err := g.found(m.Config.Digest.String()); err != nil {
				return nil, err
			}
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, part := range append(m.Layers, m.Config) {
			g.parts[part.Digest.String()] = true
		}
		return children, nil
	})
}

// kept copies the parts of a configuration that containers need, so that the rest can be garbage-collected.
func kept(c v1.ImageConfig) (v1.ImageConfig, error) {
	total := len(c.User) + len(c.WorkingDir) + len(c.StopSignal)
	for _, list := range [][]string{c.Env, c.Entrypoint, c.Cmd} {
		for _, s := range list {
			total += len(s) + 16
		}
	}
	if total > maxKept {
		return v1.ImageConfig{}, refuse("its environment and command have more than %d bytes", maxKept)
	}
	clone := func(list []string) []string {
		list = slices.Clone(list)
		for i := range list {
			list[i] = strings.Clone(list[i])
		}
		return list
	}
	return v1.ImageConfig{
		User: strings.Clone(c.User), WorkingDir: strings.Clone(c.WorkingDir), StopSignal: strings.Clone(c.StopSignal),
		Env: clone(c.Env), Entrypoint: clone(c.Entrypoint), Cmd: clone(c.Cmd),
	}, nil
}

// room returns the bytes and inodes that images may still use on their file system.
func (e *engine) room() (bytes, inodes int64) {
	var s unix.Statfs_t
	if err := unix.Statfs(e.root, &s); err != nil {
		return 0, 0
	}
	reserve := e.reserve(int64(s.Blocks) * s.Bsize)
	bytes = max(int64(s.Bavail)*s.Bsize-reserve, 0)
	if s.Files == 0 { // btrfs and others allocate inodes dynamically
		return bytes, maxConfig
	}
	return bytes, max(int64(s.Ffree)-int64(s.Files/20), 0)
}

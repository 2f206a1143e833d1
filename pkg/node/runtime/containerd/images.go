package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/client"
	imagestore "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// unnamed is the repository name for loaded images without a name.
const unnamed = "localhost/loaded"

// images is an in-memory index of containerd's image store.
type images struct {
	runtime *Runtime

	mu     sync.Mutex
	byName map[string]*image // by each name in the store
	byID   map[string]*image
	warned map[string]bool // digests of images that were logged as unusable; at most maxWarned

	patience patience

	layersMu sync.Mutex
	layers   map[string][]string // chain ID -> directories, uppermost first
}

func normalise(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("image reference %q: %w", ref, err)
	}
	return named.String(), nil
}

// pinned is the label of images that garbage collection keeps; containerd's CRI plugin uses the same.
const pinned, pinnedValue = "io.cri-containerd.pinned", "pinned"

func (i *images) Get(ctx context.Context, ref string) (runtime.Image, error) {
	img, err := i.find(ctx, ref)
	if err != nil {
		return runtime.Image{}, err
	}
	return img.public(), nil
}

func (i *images) List(ctx context.Context) ([]runtime.Image, error) {
	if i.runtime.config.Address != "" { // other clients may add and remove images
		if err := i.reload(ctx); err != nil {
			return nil, err
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	var list []runtime.Image
	for _, img := range i.byID {
		list = append(list, img.public())
	}
	slices.SortFunc(list, func(a, b runtime.Image) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// Pull implements runtime.Images. If it fails, the store is unchanged.
func (i *images) Pull(ctx context.Context, ref string, auths []runtime.Auth,
	observe runtime.PullObserver) (runtime.Image, error) {
	name, err := normalise(ref)
	if err != nil {
		return runtime.Image{}, err
	}
	ctx = i.runtime.engine.in(ctx)
	if len(auths) == 0 {
		auths = []runtime.Auth{{}}
	}
	for _, auth := range auths {
		var pulled client.Image
		g := &guard{
			store: i.runtime.engine.ContentStore(), room: i.space, seen: map[string]bool{}, parts: map[string]bool{},
			found: observe.Found,
		}
		before, had := i.runtime.engine.ImageService().Get(ctx, name)
		pulled, err = i.runtime.engine.Pull(ctx, name, client.WithImageHandlerWrapper(g.wrap),
			client.WithResolver(newFetching(resolver(auth, i.patience), i.patience, observe.Progress)))
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, runtime.ErrRefused) {
				break
			}
			continue
		}
		if err = i.unpack(ctx, pulled.Metadata()); err == nil {
			err = i.reload(ctx)
		}
		if err == nil {
			return i.Get(ctx, name)
		}
		undo := context.WithoutCancel(ctx)
		if had == nil {
			_, had = i.runtime.engine.ImageService().Update(undo, before, "target")
		}
		if had != nil {
			err = errors.Join(err, i.runtime.engine.ImageService().Delete(undo, name))
		}
		err = errors.Join(err, i.reload(undo)) // another pull may have added the image to the index
		break
	}
	return runtime.Image{}, errors.Join(fmt.Errorf("pull %s: %w", name, err), i.collect(context.WithoutCancel(ctx)))
}

func (i *images) space() int64 {
	bytes, _ := i.runtime.engine.room()
	return bytes
}

// unpack unpacks an image, after checking the limits of its manifest and configuration.
func (i *images) unpack(ctx context.Context, entry imagestore.Image) error {
	if _, err := i.read(ctx, entry); err != nil {
		return err
	}
	if err := client.NewImage(i.runtime.engine.Client, entry).Unpack(ctx, snapshotter); err != nil {
		return fmt.Errorf("unpack %s: %w", entry.Name, err)
	}
	return nil
}

func (i *images) Load(ctx context.Context, archive io.Reader) ([]runtime.Image, error) {
	ctx = i.runtime.engine.in(ctx)
	plain, err := decompress(archive)
	if err != nil {
		return nil, fmt.Errorf("not an image archive: %w", err)
	}
	defer plain.Close()
	tame := boundedArchive(plain, i.space())
	defer tame.Close()
	loaded, err := i.runtime.engine.Import(ctx, tame,
		client.WithImageRefTranslator(func(name string) string {
			if full, err := normalise(name); err == nil && strings.ContainsAny(name, "/:") {
				return full
			}
			return "" // a bare tag, such as "latest", is not a name
		}),
		client.WithDigestRef(func(d digest.Digest) string { return unnamed + "@" + d.String() }),
		client.WithSkipDigestRef(func(name string) bool { return name != "" }),
		client.WithSkipMissing(),
		client.WithImageLabels(map[string]string{pinned: pinnedValue}),
	)
	if err == nil && len(loaded) == 0 {
		err = errors.New("the archive has no image for this machine's platform")
	}
	for _, entry := range loaded {
		if err == nil {
			err = i.unpack(ctx, entry)
		}
	}
	if err != nil {
		for _, entry := range loaded {
			_ = i.runtime.engine.ImageService().Delete(context.WithoutCancel(ctx), entry.Name)
		}
		again := context.WithoutCancel(ctx)
		return nil, errors.Join(fmt.Errorf("load: %w", err), i.reload(again), i.collect(again))
	}
	if err := i.reload(ctx); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(loaded, func(entry imagestore.Image) bool {
		return imagestore.IsIndexType(entry.Target.MediaType)
	}) {
		if err := i.collect(ctx); err != nil { // the images for other platforms
			return nil, err
		}
	}
	found := map[string]runtime.Image{}
	for _, entry := range loaded {
		img, err := i.Get(ctx, entry.Name)
		if err != nil {
			return nil, err
		}
		found[img.ID] = img
	}
	return slices.Collect(maps.Values(found)), nil
}

func (i *images) Remove(ctx context.Context, ref string) error {
	img, err := i.find(ctx, ref)
	if err != nil {
		return err
	}
	ctx = i.runtime.engine.in(ctx)
	byID := ref == img.ID || "sha256:"+ref == img.ID
	name, _ := normalise(ref)
	i.mu.Lock()
	var names []string
	for have, of := range i.byName {
		if of == img && (byID || have == name) {
			names = append(names, have)
		}
	}
	if len(names) == 0 { // a digest of an image that has only names
		for have, of := range i.byName {
			if of == img {
				names = append(names, have)
			}
		}
	}
	i.mu.Unlock()
	for _, name := range names {
		if err := i.runtime.engine.ImageService().Delete(ctx, name); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	if err := i.reload(ctx); err != nil {
		return err
	}
	return i.collect(ctx)
}

// hold returns the name of the snapshot that keeps an image's layers while containers use them.
func hold(chain string) string { return "coracle-layers-" + chain }

// lower returns the directories of an image's layers, uppermost first. It writes to the database only for the first
// container of an image.
func (i *images) lower(ctx context.Context, img *image) ([]string, error) {
	if img.chain == "" {
		return []string{i.runtime.config.DataDir + "/empty"}, nil
	}
	i.layersMu.Lock()
	defer i.layersMu.Unlock()
	if dirs, ok := i.layers[img.chain]; ok {
		return dirs, nil
	}
	dirs, err := i.hold(ctx, hold(img.chain), img)
	if err != nil {
		return nil, err
	}
	if i.layers == nil {
		i.layers = map[string][]string{}
	}
	i.layers[img.chain] = dirs
	return dirs, nil
}

func (i *images) Usage(ctx context.Context) (bytes, inodes uint64, err error) {
	ctx = i.runtime.engine.in(ctx)
	layers := i.runtime.engine.SnapshotService(snapshotter)
	err = layers.Walk(ctx, func(ctx context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindCommitted {
			return nil
		}
		u, err := layers.Usage(ctx, info.Name)
		if errdefs.IsNotFound(err) { // removed meanwhile
			return nil
		}
		bytes, inodes = bytes+uint64(u.Size), inodes+uint64(u.Inodes)
		return err
	})
	return bytes, inodes, err
}

// collect removes layers and blobs that neither an image nor a container uses.
func (i *images) collect(ctx context.Context) error {
	ctx = i.runtime.engine.in(ctx)
	i.layersMu.Lock()
	defer i.layersMu.Unlock()
	used := i.runtime.chains()
	i.mu.Lock()
	for _, img := range i.byID {
		used[img.chain] = true
	}
	i.mu.Unlock()
	layers := i.runtime.engine.SnapshotService(snapshotter)
	var free []string
	err := layers.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if chain, ok := strings.CutPrefix(info.Name, hold("")); ok && !used[chain] {
			free = append(free, chain)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, chain := range free {
		delete(i.layers, chain)
		if err := layers.Remove(ctx, hold(chain)); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return i.runtime.engine.collect(ctx)
}

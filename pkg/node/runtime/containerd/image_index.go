package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	imagestore "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/image-spec/identity"
	"github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

type image struct {
	runtime.Image
	config  v1.ImageConfig
	chain   string // chain ID of its layers; empty if it has none
	foreign string // its platform, if it is not this machine's
}

// reload rebuilds the index from containerd's image store. It skips images with missing content.
func (i *images) reload(ctx context.Context) error {
	ctx = i.runtime.engine.in(ctx)
	list, err := i.runtime.engine.ImageService().List(ctx)
	if err != nil {
		return err
	}
	byName, byID := map[string]*image{}, map[string]*image{}
	for _, entry := range list {
		img, err := i.read(ctx, entry)
		if err != nil {
			i.skipped(entry, err)
			continue
		}
		if have, ok := byID[img.ID]; ok {
			img = have
		}
		byID[img.ID], byName[entry.Name] = img, img
		repo := entry.Name
		if named, err := reference.ParseNormalizedNamed(entry.Name); err == nil {
			repo = named.Name()
		}
		if entry.UpdatedAt.After(img.Since) {
			img.Since = entry.UpdatedAt
		}
		img.Pinned = img.Pinned || entry.Labels[pinned] == pinnedValue
		if !strings.Contains(entry.Name, "@") {
			img.Names = append(img.Names, entry.Name)
		}
		if d := repo + "@" + entry.Target.Digest.String(); !slices.Contains(img.Digests, d) {
			img.Digests = append(img.Digests, d)
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.byName, i.byID = byName, byID
	return nil
}

const maxWarned = 1000

// skipped logs an unusable image; if it is refused, as a warning, once per digest.
func (i *images) skipped(entry imagestore.Image, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	digest := entry.Target.Digest.String()
	if !errors.Is(err, runtime.ErrRefused) || i.warned[digest] || len(i.warned) >= maxWarned {
		i.runtime.config.Log.Debug("skipped unusable image", "name", entry.Name, "error", err)
		return
	}
	if i.warned == nil {
		i.warned = map[string]bool{}
	}
	i.warned[digest] = true
	i.runtime.config.Log.Warn("skipped unusable image", "name", entry.Name, "error", err)
}

func (i *images) read(ctx context.Context, entry imagestore.Image) (*image, error) {
	store := blobs{Store: i.runtime.engine.ContentStore(), strict: true}
	manifest, err := imagestore.Manifest(ctx, store, entry.Target, platforms.Default())
	if err != nil {
		return nil, otherPlatforms(ctx, store, entry.Target, err)
	}
	if err := checkManifest(&manifest, math.MaxInt64); err != nil {
		return nil, err
	}
	data, err := content.ReadBlob(ctx, store, manifest.Config)
	if err != nil {
		return nil, err
	}
	var config v1.Image
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, err
	}
	if config.Config, err = kept(config.Config); err != nil {
		return nil, err
	}
	img := &image{config: config.Config, foreign: foreign(config.Platform)}
	img.ID, img.Size = manifest.Config.Digest.String(), manifest.Config.Size
	for _, layer := range manifest.Layers {
		img.Size += layer.Size
	}
	if len(config.RootFS.DiffIDs) > 0 {
		img.chain = identity.ChainID(config.RootFS.DiffIDs).String()
	}
	name, _, _ := strings.Cut(config.Config.User, ":")
	if uid, err := strconv.ParseInt(name, 10, 64); err == nil {
		img.UID = &uid
	} else if name != "" {
		img.User = name
	} else {
		img.UID = new(int64)
	}
	return img, nil
}

func (i *images) lookup(ref string) *image {
	i.mu.Lock()
	defer i.mu.Unlock()
	if img, ok := i.byID[ref]; ok {
		return img
	}
	if img, ok := i.byID["sha256:"+ref]; ok {
		return img
	}
	name, err := normalise(ref)
	if err != nil {
		return nil
	}
	if img, ok := i.byName[name]; ok {
		return img
	}
	for _, img := range i.byID {
		if slices.Contains(img.Digests, name) {
			return img
		}
	}
	return nil
}

func (i *images) find(ctx context.Context, ref string) (*image, error) {
	if img := i.lookup(ref); img != nil {
		return img, nil
	}
	if i.runtime.config.Address != "" { // other clients may have added it
		if err := i.reload(ctx); err != nil {
			return nil, err
		}
		if img := i.lookup(ref); img != nil {
			return img, nil
		}
	}
	return nil, fmt.Errorf("image %s: %w", ref, runtime.ErrNotFound)
}

func (img *image) public() runtime.Image {
	p := img.Image
	p.Names, p.Digests = slices.Sorted(slices.Values(p.Names)), slices.Sorted(slices.Values(p.Digests))
	return p
}

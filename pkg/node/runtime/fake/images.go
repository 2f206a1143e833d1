package fake

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

type images struct {
	pull func(ctx context.Context, ref string) error

	mu     sync.Mutex
	byName map[string]runtime.Image
	views  map[string]string // name -> directory
}

// normal returns a reference with its registry and tag.
func normal(ref string) string {
	if first, _, ok := strings.Cut(ref, "/"); !ok {
		ref = "docker.io/library/" + ref
	} else if !strings.ContainsAny(first, ".:") && first != "localhost" {
		ref = "docker.io/" + ref
	}
	if !strings.Contains(ref[strings.LastIndexByte(ref, '/'):], ":") && !strings.Contains(ref, "@") {
		ref += ":latest"
	}
	return ref
}

func repository(ref string) string {
	repo, _, _ := strings.Cut(normal(ref), "@")
	if at := strings.LastIndexByte(repo, ':'); at > strings.LastIndexByte(repo, '/') {
		repo = repo[:at]
	}
	return repo
}

func idOf(ref string) string { return digest("image " + repository(ref)) }

func (i *images) add(ref string) runtime.Image {
	i.mu.Lock()
	defer i.mu.Unlock()
	ref = normal(ref)
	repo := repository(ref)
	image := runtime.Image{
		ID:      idOf(ref),
		Names:   []string{ref},
		Digests: []string{repo + "@" + digest(repo)},
		Size:    1 << 20,
		Since:   time.Now(),
	}
	i.byName[ref] = image
	return image
}

func (i *images) Pull(ctx context.Context, ref string, _ []runtime.Auth,
	observe runtime.PullObserver) (runtime.Image, error) {
	if observe.Found != nil {
		if err := observe.Found(idOf(ref)); err != nil {
			return runtime.Image{}, err
		}
	}
	if i.pull != nil {
		if err := i.pull(ctx, ref); err != nil {
			return runtime.Image{}, err
		}
	}
	if observe.Progress != nil {
		observe.Progress(runtime.Progress{Done: 1 << 20, Total: 1 << 20})
	}
	return i.add(ref), nil
}

func (i *images) Get(_ context.Context, ref string) (runtime.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if image, ok := i.byName[normal(ref)]; ok {
		return image, nil
	}
	for _, image := range i.byName {
		if image.ID == ref || image.ID == "sha256:"+ref || slices.Contains(image.Digests, ref) {
			return image, nil
		}
	}
	return runtime.Image{}, fmt.Errorf("image %s: %w", ref, runtime.ErrNotFound)
}

func (i *images) List(context.Context) ([]runtime.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	byID := map[string]*runtime.Image{}
	var list []runtime.Image
	for name, image := range i.byName {
		if have, ok := byID[image.ID]; ok {
			have.Names = append(have.Names, name)
			continue
		}
		image.Names = []string{name}
		byID[image.ID] = &image
	}
	for _, image := range byID {
		slices.Sort(image.Names)
		list = append(list, *image)
	}
	return list, nil
}

func (i *images) Usage(ctx context.Context) (bytes, inodes uint64, err error) {
	list, err := i.List(ctx)
	for _, img := range list {
		bytes, inodes = bytes+uint64(img.Size), inodes+1
	}
	return bytes, inodes, err
}

func (i *images) Remove(_ context.Context, ref string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, ok := i.byName[normal(ref)]; ok {
		delete(i.byName, normal(ref))
		return nil
	}
	found := false
	for name, image := range i.byName {
		if image.ID == ref || image.ID == "sha256:"+ref {
			delete(i.byName, name)
			found = true
		}
	}
	if !found {
		return fmt.Errorf("image %s: %w", ref, runtime.ErrNotFound)
	}
	return nil
}

// Load implements runtime.Images. The archive is a list of image names.
func (i *images) Load(_ context.Context, archive io.Reader) ([]runtime.Image, error) {
	text, err := io.ReadAll(archive)
	if err != nil {
		return nil, err
	}
	var list []runtime.Image
	for name := range strings.FieldsSeq(string(text)) {
		image := i.add(name)
		image.Pinned = true
		i.mu.Lock()
		i.byName[normal(name)] = image
		i.mu.Unlock()
		list = append(list, image)
	}
	return list, nil
}

// View implements runtime.Images with an empty directory.
func (i *images) View(ctx context.Context, name, ref string) ([]string, error) {
	if _, err := i.Get(ctx, ref); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if dir, has := i.views[name]; has {
		return []string{dir}, nil
	}
	dir, err := os.MkdirTemp("", "coracle-fake-image-")
	if err != nil {
		return nil, err
	}
	if i.views == nil {
		i.views = map[string]string{}
	}
	i.views[name] = dir
	return []string{dir}, nil
}

func (i *images) Unview(_ context.Context, name string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	dir, has := i.views[name]
	if !has {
		return nil
	}
	delete(i.views, name)
	return os.RemoveAll(dir)
}

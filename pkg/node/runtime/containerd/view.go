package containerd

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// View implements runtime.Images.
func (i *images) View(ctx context.Context, name, ref string) ([]string, error) {
	img, err := i.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	if img.chain == "" {
		return []string{i.runtime.config.DataDir + "/empty"}, nil
	}
	i.layersMu.Lock()
	defer i.layersMu.Unlock()
	return i.hold(ctx, view(name), img)
}

func (i *images) Unview(ctx context.Context, name string) error {
	in := i.runtime.engine.in(ctx)
	layers := i.runtime.engine.SnapshotService(snapshotter)
	held, err := layers.Stat(in, view(name))
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := layers.Remove(in, view(name)); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if held.Parent != "" && !i.has(held.Parent) {
		return i.collect(ctx)
	}
	return nil
}

// view returns the name of the snapshot for a name given to View.
func view(name string) string { return "coracle-view-" + name }

// hold makes a read-only snapshot of an image's layers, which keeps them from garbage collection, and returns their
// directories, uppermost first. Called with layersMu held.
func (i *images) hold(ctx context.Context, name string, img *image) ([]string, error) {
	ctx = i.runtime.engine.in(ctx)
	layers := i.runtime.engine.SnapshotService(snapshotter)
	if _, err := layers.Stat(ctx, img.chain); errdefs.IsNotFound(err) { // interrupted between fetch and unpack
		for _, name := range append(img.Names, img.Digests...) {
			entry, err := i.runtime.engine.ImageService().Get(ctx, name)
			if err != nil {
				continue
			}
			if err := i.unpack(ctx, entry); err != nil {
				return nil, err
			}
			break
		}
	}
	mounts, err := layers.View(ctx, name, img.chain,
		snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "coracle"}))
	if errdefs.IsAlreadyExists(err) {
		mounts, err = layers.Mounts(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("layers of %s: %w", img.ID, err)
	}
	var dirs []string
	for _, m := range mounts {
		if m.Type == "bind" {
			dirs = append(dirs, m.Source)
			continue
		}
		for _, option := range m.Options {
			if list, ok := strings.CutPrefix(option, "lowerdir="); ok {
				dirs = append(dirs, strings.Split(list, ":")...)
			}
		}
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("layers of %s: containerd's snapshotter gave no directories", img.ID)
	}
	return dirs, nil
}

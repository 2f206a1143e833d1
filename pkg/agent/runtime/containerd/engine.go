package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/diff/apply"
	imagestore "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
)

const snapshotter = "overlayfs"

// engine is containerd as a client sees it, built in or the host's.
type engine struct {
	*client.Client
	version string
	closers []func() error
	collect func(context.Context) error
}

// openEngine joins containerd's stores without its plugins and servers: it takes a few milliseconds.
func openEngine(ctx context.Context, c Config) (*engine, error) {
	_ = log.SetLevel("error") // containerd's own log: its errors come back to us anyway
	if c.Address != "" {
		return dialEngine(ctx, c.Address)
	}
	blobs, err := local.NewStore(filepath.Join(c.DataDir, "content"))
	if err != nil {
		return nil, err
	}
	layers, err := overlay.NewSnapshotter(filepath.Join(c.DataDir, snapshotter), overlay.AsynchronousRemove)
	if err != nil {
		return nil, fmt.Errorf("overlayfs: %w", err)
	}
	options := *bolt.DefaultOptions
	options.NoFreelistSync, options.NoStatistics, options.Timeout = true, true, 5*time.Second
	db, err := bolt.Open(filepath.Join(c.DataDir, "meta.db"), 0o600, &options)
	if err != nil {
		layers.Close()
		return nil, fmt.Errorf("%s: %w (is another coracle using it?)", filepath.Join(c.DataDir, "meta.db"), err)
	}
	meta := metadata.NewDB(db, blobs, map[string]snapshots.Snapshotter{snapshotter: layers})
	e := &engine{version: builtinVersion(), closers: []func() error{db.Close, layers.Close}}
	if err := meta.Init(ctx); err != nil {
		return nil, errors.Join(err, e.close())
	}
	e.collect = func(ctx context.Context) error {
		_, err := meta.GarbageCollect(ctx)
		return err
	}
	e.Client, err = client.New("", client.WithDefaultNamespace(Namespace), client.WithServices(
		client.WithContentStore(meta.ContentStore()),
		client.WithImageStore(metadata.NewImageStore(meta)),
		client.WithSnapshotters(meta.Snapshotters()),
		client.WithLeasesService(metadata.NewLeaseManager(meta)),
		client.WithDiffService(differ{apply.NewFileSystemApplier(meta.ContentStore())}),
	))
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

func dialEngine(ctx context.Context, address string) (*engine, error) {
	if _, err := os.Stat(address); err != nil {
		return nil, fmt.Errorf("no containerd at %s: start it, or leave its address out", address)
	}
	c, err := client.New(address, client.WithDefaultNamespace(Namespace), client.WithTimeout(5*time.Second))
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", address, err)
	}
	v, err := c.Version(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("containerd at %s does not answer: %w", address, err), c.Close())
	}
	e := &engine{Client: c, version: strings.TrimPrefix(v.Version, "v"), closers: []func() error{c.Close}}
	if err := c.NamespaceService().Create(ctx, Namespace, nil); err != nil && !errdefs.IsAlreadyExists(err) {
		return nil, errors.Join(err, e.close())
	}
	e.collect = func(ctx context.Context) error { // its own scheduler does it, at the end of a synchronous deletion
		err := c.ImageService().Delete(ctx, "coracle/none", imagestore.SynchronousDelete())
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	}
	return e, nil
}

func (e *engine) close() error {
	var errs []error
	for _, f := range e.closers {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// differ applies layers; nothing here makes new ones.
type differ struct{ diff.Applier }

func (differ) Compare(context.Context, []mount.Mount, []mount.Mount, ...diff.Opt) (v1.Descriptor, error) {
	return v1.Descriptor{}, errdefs.ErrNotImplemented
}

func inNamespace(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, Namespace)
}

// builtinVersion is that of the containerd we link.
func builtinVersion() string {
	const module = "github.com/containerd/containerd/v2"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module {
				return strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	return "2"
}

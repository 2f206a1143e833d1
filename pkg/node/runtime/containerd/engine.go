package containerd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const snapshotter = "overlayfs"

// engine is a client of containerd, built-in or the host's.
type engine struct {
	*client.Client
	version string
	// namespace is the containerd namespace of Coracle's images.
	namespace string
	// root is a directory on the file system of the images' layers.
	root    string
	reserve func(capacity int64) int64
	closers []func() error
	collect func(context.Context) error
}

// notOpened is the error for the database of images and containers.
func notOpened(file string, err error) error {
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("%s is locked by another process: end it, or choose another --data-dir", file)
	}
	return fmt.Errorf("%s, the list of images and containers, cannot be opened: %w: if it is damaged, restore it from a "+
		"backup; without one, `coracle snapshot save` the cluster with `coracle server --no-node`, then `coracle delete` "+
		"and restore the snapshot: images are pulled again", file, err)
}

// openEngine connects to the host's containerd if it has an address. Otherwise it opens containerd's stores in this
// process, without plugins and servers, which takes a few milliseconds.
func openEngine(ctx context.Context, c Config) (*engine, error) {
	_ = log.SetLevel("error") // containerd's own log; errors are also returned
	if c.Address != "" {
		return joinEngine(ctx, c)
	}
	files, err := local.NewStore(filepath.Join(c.DataDir, "content"))
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
		return nil, notOpened(filepath.Join(c.DataDir, "meta.db"), err)
	}
	meta := metadata.NewDB(db, files, map[string]snapshots.Snapshotter{snapshotter: layers})
	e := &engine{
		version:   builtinVersion(),
		namespace: Namespace,
		root:      c.DataDir,
		reserve:   c.ImageReserve,
		closers:   []func() error{db.Close, layers.Close},
	}
	if err := meta.Init(ctx); err != nil {
		return nil, errors.Join(err, e.close())
	}
	e.collect = func(ctx context.Context) error {
		_, err := meta.GarbageCollect(ctx)
		return err
	}
	store := blobs{Store: meta.ContentStore()}
	e.Client, err = client.New("", client.WithDefaultNamespace(Namespace), client.WithServices(
		client.WithContentStore(store),
		client.WithImageStore(metadata.NewImageStore(meta)),
		client.WithSnapshotters(meta.Snapshotters()),
		client.WithLeasesService(metadata.NewLeaseManager(meta)),
		client.WithDiffService(newApplier(store, e.room)),
	))
	if err != nil {
		return nil, errors.Join(err, e.close())
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

func (e *engine) in(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, e.namespace)
}

// dropLeases deletes the leases of earlier processes. The leases of a killed process would expire only after a day.
func (e *engine) dropLeases(ctx context.Context) error {
	ctx = e.in(ctx)
	list, err := e.LeasesService().List(ctx)
	if err != nil {
		return err
	}
	for _, l := range list {
		if err := e.LeasesService().Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

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

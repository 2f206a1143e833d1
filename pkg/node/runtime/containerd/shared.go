package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

const (
	// dialTime is how long to wait for the first response of the host's containerd, which may still be starting.
	dialTime = 10 * time.Second
	// callTime limits each later call without a deadline.
	callTime                 = 2 * time.Minute
	oldestMajor, oldestMinor = 1, 6
)

// joinEngine connects to the host's containerd and creates Coracle's namespace.
func joinEngine(ctx context.Context, c Config) (*engine, error) {
	e, err := dialEngine(ctx, c.Address, c.Namespace, c.patience)
	if err != nil {
		return nil, err
	}
	e.reserve = c.ImageReserve
	err = remember(c, c.Address)
	if err == nil {
		err = e.NamespaceService().Create(ctx, c.Namespace, nil)
	}
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// dialEngine connects to the host's containerd, changes nothing there, and waits patience for its first response.
func dialEngine(ctx context.Context, address, namespace string, patience time.Duration) (_ *engine, err error) {
	path := strings.TrimPrefix(address, "unix://")
	if info, err := os.Stat(path); err != nil || info.Mode()&fs.ModeSocket == 0 {
		return nil, fmt.Errorf("no containerd listens at %s: start it, or correct the path", path)
	}
	c, err := client.New(path, client.WithDefaultNamespace(namespace), client.WithTimeout(patience/2),
		client.WithExtraDialOpts([]grpc.DialOption{
			grpc.WithChainUnaryInterceptor(withDeadline(path)), grpc.WithChainStreamInterceptor(explained(path)),
		}))
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", path, err)
	}
	conn, ok := c.Conn().(*grpc.ClientConn)
	if !ok {
		return nil, fmt.Errorf("containerd at %s: no connection", path)
	}
	e := &engine{namespace: namespace, closers: []func() error{c.Close}}
	store := blobs{Store: c.ContentStore()}
	// Unpack layers in this process, into the host containerd's snapshots: containerd does not limit their size.
	e.Client, err = client.NewWithConn(conn, client.WithDefaultNamespace(namespace),
		client.WithServices(client.WithContentStore(store), client.WithDiffService(newApplier(store, e.room))))
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	first, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := e.introduce(first, path); err != nil {
		if ctx.Err() == nil && first.Err() != nil {
			return nil, fmt.Errorf("containerd at %s does not respond within %s: start it, or check its log", path, patience)
		}
		return nil, err
	}
	e.collect = func(ctx context.Context) error { // deleting a lease synchronously waits for garbage collection
		l, err := c.LeasesService().Create(ctx, leases.WithRandomID())
		if err != nil {
			return err
		}
		return c.LeasesService().Delete(ctx, l, leases.SynchronousDelete)
	}
	return e, nil
}

func (e *engine) introduce(ctx context.Context, path string) error {
	v, err := e.VersionService().Version(ctx, &emptypb.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	e.version = strings.TrimPrefix(v.Version, "v")
	if tooOld(e.version) {
		return fmt.Errorf("containerd at %s is version %s: %d.%d or newer is needed", path, e.version, oldestMajor,
			oldestMinor)
	}
	found, err := e.IntrospectionService().Plugins(ctx,
		fmt.Sprintf("type==%s,id==%s", plugins.SnapshotPlugin, snapshotter))
	if err != nil {
		return fmt.Errorf("containerd at %s: %w", path, err)
	}
	if len(found.Plugins) == 0 || found.Plugins[0].InitErr != nil {
		why := "it is disabled"
		if len(found.Plugins) > 0 {
			why = found.Plugins[0].InitErr.Message
		}
		return fmt.Errorf("containerd at %s has no snapshotter overlayfs (%s): Coracle needs it", path, why)
	}
	e.root = found.Plugins[0].Exports["root"]
	if _, err := os.Stat(e.root); err != nil {
		return fmt.Errorf("containerd at %s keeps its layers in %q, which cannot be seen from here: Coracle must share its "+
			"mounts", path, e.root)
	}
	return nil
}

// tooOld reports whether a version is not supported. A version that cannot be parsed is a custom build, and accepted.
func tooOld(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	return err1 == nil && err2 == nil && (a < oldestMajor || a == oldestMajor && b < oldestMinor)
}

// withDeadline limits calls without a deadline to callTime, and explains failures in one line.
func withDeadline(path string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		own := ctx
		if _, has := ctx.Deadline(); !has {
			var cancel context.CancelFunc
			own, cancel = context.WithTimeout(ctx, callTime)
			defer cancel()
		}
		err := call(own, method, req, reply, conn, opts...)
		if err != nil && ctx.Err() == nil && own.Err() != nil {
			return status.Errorf(codes.Unavailable, "containerd at %s does not respond within %s: check its log", path, callTime)
		}
		return explain(path, err)
	}
}

func explained(path string) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer,
		opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, conn, method, opts...)
		return s, explain(path, err)
	}
}

func explain(path string, err error) error {
	if status.Code(err) != codes.Unavailable {
		return err
	}
	return status.Errorf(codes.Unavailable, "containerd at %s does not respond: start it", path)
}

// hosts.json records each host containerd that was used, so that Purge finds them whatever the current options are.

func hostsFile(c Config) string { return filepath.Join(c.DataDir, "hosts.json") }

func hosts(c Config) (list []string, err error) {
	if err = shim.ReadJSON(hostsFile(c), &list); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return list, err
}

func remember(c Config, address string) error {
	list, err := hosts(c)
	if err != nil || slices.Contains(list, address) {
		return err
	}
	return atomicfile.WriteJSON(hostsFile(c), append(list, address))
}

// leave removes Coracle's namespace from all recorded containerds.
func (r *Runtime) leave(ctx context.Context) error {
	list, err := hosts(r.config)
	if err != nil {
		return err
	}
	for _, address := range list {
		e := r.engine
		if r.config.Address != address {
			if e, err = dialEngine(ctx, address, r.config.Namespace, r.config.patience); err == nil {
				defer e.close()
			}
		}
		if err == nil {
			err = e.empty(ctx)
		}
		if err != nil {
			return fmt.Errorf("images of this cluster are left in the namespace %s of a containerd: %w; then repeat this, or "+
				"remove %s to leave them there",
				r.config.Namespace, err, hostsFile(r.config))
		}
	}
	return nil
}

func (e *engine) empty(ctx context.Context) error {
	ctx = e.in(ctx)
	images, err := e.ImageService().List(ctx)
	if err != nil {
		return err
	}
	for _, image := range images {
		if err := e.ImageService().Delete(ctx, image.Name); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	layers := e.SnapshotService(snapshotter)
	var held []string
	err = layers.Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		if s.Kind != snapshots.KindCommitted {
			held = append(held, s.Name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range held {
		if err := layers.Remove(ctx, name); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	var partial []string
	fetching, err := e.ContentStore().ListStatuses(ctx)
	if err != nil {
		return err
	}
	for _, s := range fetching {
		partial = append(partial, s.Ref)
	}
	for _, ref := range partial {
		if err := e.ContentStore().Abort(ctx, ref); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	if err := e.dropLeases(ctx); err != nil {
		return err
	}
	if err := e.collect(ctx); err != nil {
		return err
	}
	if err := e.NamespaceService().Delete(ctx, e.namespace); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// Package containerd runs containers: containerd's content store, metadata,
// snapshotter and pull code, built into this process, keep the images; one
// small shim per pod (agent/runtime/shim) runs the containers.
//
// A container's writable layer is an overlay over the image's snapshots and
// belongs to the container's own directory. So making a container writes no
// database and waits for no disk, and a container's whole state is one
// directory: record.json and bundle.json by us, state.json by the shim.
//
// It may import containerd and agent/runtime. Its invariant: whatever it makes
// on the machine is below DataDir, RunDir and CgroupRoot, where a later
// process finds it again; containers never depend on this process.
package containerd

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/agent/failpoint"
	"github.com/coracle-dev/coracle/pkg/agent/runtime"
	"github.com/coracle-dev/coracle/pkg/agent/runtime/feed"
)

// Namespace is ours in containerd.
const Namespace = "coracle"

// assets holds coracle-shim, packed with zstd (RFC 8878), if the build made it.
//
//go:embed all:assets
var assets embed.FS

// Config says where things are.
type Config struct {
	// DataDir holds images and containers; not on overlayfs.
	DataDir string
	// RunDir holds the shims' sockets, and may be lost at a reboot.
	RunDir string
	// CgroupRoot is the cgroup above all pods, which Purge removes. Empty is "/coracle".
	CgroupRoot string
	// Address is the socket of the host's containerd, to keep the images there; empty is our own.
	Address string
	// Namespace in the host's containerd, which keeps our images apart from those of others, and of other clusters
	// of this machine. Empty is Namespace.
	Namespace string
	// ImageReserve is how many bytes of a disk of so many images leave free. Pulls, loads and unpacking that would take
	// more are stopped. Nil is 5 %.
	ImageReserve func(capacity int64) int64
	// PodPIDs bounds the processes and threads of each pod; 0 does not.
	PodPIDs int64
	// Reserved is kept from all pods together: CgroupRoot is bounded by what is left of the machine. Its zero value reserves nothing.
	Reserved config.Reserved
	// patience is how long the host's containerd may take to answer first.
	patience time.Duration
	// Log gets few lines; nil is slog.Default().
	Log *slog.Logger
	// Failpoints are for tests.
	Failpoints failpoint.Hook
}

// Validate checks the configuration and fills in what is empty.
func (c *Config) Validate() error {
	for name, dir := range map[string]string{"DataDir": c.DataDir, "RunDir": c.RunDir} {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("containerd: %s must be an absolute path, not %q", name, dir)
		}
	}
	if c.CgroupRoot == "" {
		c.CgroupRoot = "/coracle"
	}
	if c.Namespace == "" {
		c.Namespace = Namespace
	}
	if c.ImageReserve == nil {
		c.ImageReserve = func(capacity int64) int64 { return capacity / 20 }
	}
	if c.patience == 0 {
		c.patience = dialTime
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return nil
}

// Runtime is the real runtime, and a run.Component.
type Runtime struct {
	config Config
	shim   string // path of the shim's binary
	limits limits
	ready  chan struct{}
	images *images

	// Set by Run, before ready is closed.
	ctx    context.Context //nolint:containedctx // the life of what Run started
	engine *engine
	work   sync.WaitGroup

	mu         sync.Mutex
	containers map[string]*container
	pods       map[string]*pod
	changes    feed.Feed
}

var _ runtime.Runtime = (*Runtime)(nil)

// New writes the shim out and probes the host. Nothing runs before Run.
func New(c Config) (*Runtime, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("containers need root: run as root")
	}
	for _, dir := range []string{c.DataDir, filepath.Join(c.DataDir, "empty"), filepath.Join(c.RunDir, "pods")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, err
		}
	}
	// A container's files are nobody else's: a user of the machine could run what a container made setuid.
	private := filepath.Join(c.DataDir, "containers")
	if err := errors.Join(os.MkdirAll(private, 0o700), os.Chmod(private, 0o700)); err != nil {
		return nil, err
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(c.DataDir, &disk); err == nil && disk.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return nil, fmt.Errorf("%s is on overlayfs, which cannot hold containers: choose a data directory on a disk or a volume", c.DataDir)
	}
	path, err := installShim(filepath.Join(c.DataDir, "shim"))
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		config: c, shim: path, limits: probeLimits(), ready: make(chan struct{}),
		containers: map[string]*container{}, pods: map[string]*pod{},
	}
	r.images = &images{runtime: r, patience: usual}
	return r, nil
}

// installShim unpacks the embedded shim to a file named by its content, which running shims of another version do not share.
func installShim(dir string) (string, error) {
	packed, err := fs.ReadFile(assets, "assets/coracle-shim.zst")
	if err != nil {
		return "", errors.New("coracle was built without the shim: run make build")
	}
	var head zstd.Header
	if err := head.Decode(packed); err != nil {
		return "", fmt.Errorf("the shim in this binary: %w", err)
	}
	path := filepath.Join(dir, fmt.Sprintf("coracle-shim-%.8x", sha256.Sum256(packed)))
	if info, err := os.Stat(path); err == nil && uint64(info.Size()) == head.FrameContentSize {
		return path, nil
	}
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return "", err
	}
	defer r.Close()
	binary, err := r.DecodeAll(packed, make([]byte, 0, head.FrameContentSize))
	if err != nil {
		return "", fmt.Errorf("the shim in this binary: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	temp := path + ".new"
	if err := os.WriteFile(temp, binary, 0o755); err != nil {
		return "", err
	}
	return path, os.Rename(temp, path)
}

// Name is the component's.
func (r *Runtime) Name() string { return "containerd" }

// Ready is closed once containers of an earlier process are known again.
func (r *Runtime) Ready() <-chan struct{} { return r.ready }

// Run serves until ctx ends. Containers go on.
func (r *Runtime) Run(ctx context.Context) error {
	e, err := openEngine(ctx, r.config)
	if err != nil {
		return err
	}
	own, cancel := context.WithCancel(ctx)
	r.ctx, r.engine = own, e
	if err := r.limitPods(); err != nil { // they run without; the pods' own limits hold
		r.config.Log.Warn("the cgroup of all pods has no limit", "cgroup", r.config.CgroupRoot, "error", err)
	}
	err = errors.Join(e.dropLeases(own), r.images.reload(own))
	if err == nil {
		err = r.recover()
	}
	if err == nil {
		close(r.ready)
		<-ctx.Done()
	}
	cancel()
	r.work.Wait()
	return errors.Join(err, e.close())
}

// Images of the node.
func (r *Runtime) Images() runtime.Images { return r.images }

// ImageDir is known once the Runtime is ready.
func (r *Runtime) ImageDir() string { return r.engine.root }

// Version names the engine.
func (r *Runtime) Version() string {
	select {
	case <-r.ready:
		return "containerd://" + r.engine.version
	default:
		return "containerd://" + builtinVersion()
	}
}

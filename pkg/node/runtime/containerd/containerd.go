// Package containerd runs containers. Images are in containerd's content store, metadata store and snapshotter,
// either built into this process or the host's. One small shim per pod (package shim) runs the containers.
//
// A container's writable layer is an overlay over the image's snapshots, in the container's own directory. So
// creating a container neither writes to a database nor waits for a disk. The directory holds the container's whole
// state: record.json and bundle.json, written by this package, and state.json, written by the shim.
//
// Its invariant: everything that it creates on the machine is below DataDir, RunDir and CgroupRoot, where a later
// process finds it, except an AppArmor profile named after CgroupRoot. Containers do not depend on this process.
package containerd

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/failpoint"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/feed"
)

// Namespace is Coracle's default namespace in containerd.
const Namespace = "coracle"

// Config of a Runtime.
type Config struct {
	// DataDir contains images and containers. Its file system can hold overlays (mount.TryDirectory).
	DataDir string
	// RunDir contains the shims' sockets. It need not survive a reboot.
	RunDir string
	// CgroupRoot is the parent cgroup of all pods; default "/coracle". Purge removes it.
	CgroupRoot string
	// Address is the socket of the host's containerd, which then stores the images; empty means the built-in one.
	Address string
	// Namespace is the namespace in the host's containerd. It separates the cluster's images from other users' and
	// other clusters'. The default is the constant Namespace.
	Namespace string
	// ImageReserve returns how many bytes of a file system with this capacity images must leave free. Pulls, loads
	// and unpacking fail before they use more. Nil means 5 %.
	ImageReserve func(capacity int64) int64
	// PodPIDs is the maximum number of processes and threads of each pod; 0 means no limit.
	PodPIDs int64
	// SingleProcessOOMKill ends only the process that exceeds a container's memory limit. Otherwise the kernel ends the
	// whole container, except on cgroup v1.
	SingleProcessOOMKill bool
	// Reserved is the part of the machine's resources that pods cannot use: CgroupRoot is limited to the rest.
	Reserved config.Reserved
	// patience is how long to wait for the first response of the host's containerd.
	patience time.Duration
	// Log is the logger; default slog.Default().
	Log *slog.Logger
	// Failpoints are for tests.
	Failpoints failpoint.Hook
}

// Validate sets defaults and returns an error for invalid fields.
func (c *Config) Validate() error {
	for name, dir := range map[string]string{"DataDir": c.DataDir, "RunDir": c.RunDir} {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("containerd: %s must be an absolute path, not %q", name, dir)
		}
	}
	c.CgroupRoot = cmp.Or(c.CgroupRoot, "/coracle")
	c.Namespace = cmp.Or(c.Namespace, Namespace)
	if c.ImageReserve == nil {
		c.ImageReserve = func(capacity int64) int64 { return capacity / 20 }
	}
	c.patience = cmp.Or(c.patience, dialTime)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return nil
}

// Runtime implements runtime.Runtime and run.Component.
type Runtime struct {
	config Config
	shim   string   // path of the shim's binary
	sealed *os.File // the shim's binary in memory, or nil
	limits limits
	// Ready is closed after the containers of earlier processes were recovered.
	run.Readiness
	images *images
	appArmor

	// Set by Run, before ready is closed.
	ctx     context.Context //nolint:containedctx // the life of what Run started
	engine  *engine
	work    sync.WaitGroup
	walking sync.Mutex // held while a container's files are measured for Stats

	mu         sync.Mutex
	containers map[string]*container
	pods       map[string]*pod
	changes    feed.Feed
}

var _ runtime.Runtime = (*Runtime)(nil)

// New installs the shim and probes the host. It starts nothing; Run does.
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
	// Other users of the host must not reach containers' files: they could run setuid programs of containers.
	private := filepath.Join(c.DataDir, "containers")
	if err := errors.Join(os.MkdirAll(private, 0o700), os.Chmod(private, 0o700)); err != nil {
		return nil, err
	}
	path, err := installShim(filepath.Join(c.DataDir, "shim"))
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		config: c, shim: path, limits: probeLimits(),
		containers: map[string]*container{}, pods: map[string]*pod{},
	}
	if errors.Is(unix.Access(path, unix.X_OK), unix.EACCES) {
		c.Log.Warn("the data directory is mounted with noexec: pods cannot execute programs in their volumes",
			"directory", c.DataDir)
		if r.sealed, err = inMemory(path); err != nil {
			return nil, fmt.Errorf("%s is mounted with noexec: %w", c.DataDir, err)
		}
		r.shim = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), r.sealed.Fd())
	}
	r.images = &images{runtime: r, patience: usual}
	return r, nil
}

// installShim unpacks the embedded shim to a file named after its digest, which keeps binaries of running shims.
func installShim(dir string) (string, error) {
	packed, err := fs.ReadFile(assets, "assets/"+goruntime.GOARCH+"/coracle-shim.zst")
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

// inMemory returns a copy of a program that is a file in memory and cannot be changed. It can be executed while the
// file is open.
func inMemory(path string) (*os.File, error) {
	program, err := bounded.File(path, 64<<20)
	if err != nil {
		return nil, err
	}
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(filepath.Base(path), flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 all such files are executable
		fd, err = unix.MemfdCreate(filepath.Base(path), flags)
	}
	if err != nil {
		return nil, fmt.Errorf("a file in memory for the shim: %w", err)
	}
	f := os.NewFile(uintptr(fd), path)
	_, err = f.Write(program)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS,
			unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("a file in memory for the shim: %w", err), f.Close())
	}
	return f, nil
}

// Shim returns the path of the coracle-shim binary.
func (r *Runtime) Shim() string { return r.shim }

// Name implements run.Component.
func (r *Runtime) Name() string { return "containerd" }

// Run implements run.Component. Containers keep running after it returns.
func (r *Runtime) Run(ctx context.Context) error {
	e, err := openEngine(ctx, r.config)
	if err != nil {
		return err
	}
	own, cancel := context.WithCancel(ctx)
	r.ctx, r.engine = own, e
	if cgroup2() {
		if err := recordControllers(rootControl, r.config.DataDir); err != nil {
			r.config.Log.Warn("could not record the controllers of the root cgroup", "error", err)
		}
	}
	if err := r.limitPods(); err != nil { // each pod's own limits still apply
		r.config.Log.Warn("could not limit cgroup of all pods", "cgroup", r.config.CgroupRoot, "error", err)
	}
	err = errors.Join(e.dropLeases(own), r.images.reload(own))
	if err == nil {
		err = r.recover()
	}
	if err == nil {
		r.SetReady()
		<-ctx.Done()
	}
	cancel()
	r.work.Wait()
	return errors.Join(err, e.close())
}

// Images implements runtime.Runtime.
func (r *Runtime) Images() runtime.Images { return r.images }

// ImageDir implements runtime.Runtime. The Runtime must be ready.
func (r *Runtime) ImageDir() string { return r.engine.root }

// Version implements runtime.Runtime.
func (r *Runtime) Version() string {
	select {
	case <-r.Ready():
		return "containerd://" + r.engine.version
	default:
		return "containerd://" + builtinVersion()
	}
}

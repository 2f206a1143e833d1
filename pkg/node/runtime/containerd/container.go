package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/node/host/disk"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

type record struct {
	Spec       runtime.Spec
	ImageID    string
	Chain      string // chain ID of the image's layers
	Foreign    string `json:",omitempty"` // the image's platform, if it is not this machine's
	StopSignal syscall.Signal
	CreatedAt  time.Time
}

// container is a directory below containers/. Its state comes from the shim.
type container struct {
	record
	dir string
	ops sync.Mutex // one Start or Remove at a time

	mu      sync.Mutex
	status  shim.Status
	removed bool
}

var validID = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,74}[a-z0-9])?$`)

func (r *Runtime) dir(id string) string { return filepath.Join(r.config.DataDir, "containers", id) }

func (r *Runtime) get(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.containers[id]
	if !ok {
		return nil, fmt.Errorf("container %s: %w", id, runtime.ErrNotFound)
	}
	return c, nil
}

func (c *container) public() runtime.Container {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	if s.State == string(runtime.Exited) {
		s.Message = cmp.Or(s.Message, c.explainExit(s.ExitCode))
	}
	return runtime.Container{
		ID: c.Spec.ID, PodUID: c.Spec.PodUID, Labels: c.Spec.Labels, Image: c.Spec.Image, ImageID: c.ImageID,
		LogPath: c.Spec.LogPath,
		State:   runtime.State(s.State), PID: s.PID, CreatedAt: c.CreatedAt, StartedAt: s.StartedAt, FinishedAt: s.FinishedAt,
		ExitCode: s.ExitCode, Signal: s.Signal, OOMKilled: s.OOMKilled, Message: s.Message, StopSignal: c.StopSignal,
		User: userOf(s.User),
	}
}

func userOf(u *shim.User) *runtime.User {
	if u == nil {
		return nil
	}
	out := &runtime.User{UID: int64(u.UID), GID: int64(u.GID)}
	for _, g := range u.Groups {
		out.Groups = append(out.Groups, int64(g))
	}
	return out
}

func rank(state string) int {
	switch runtime.State(state) {
	case runtime.Running:
		return 1
	case runtime.Exited:
		return 2
	default:
		return 0
	}
}

// apply stores a status from the shim, unless it is older than the known one.
func (r *Runtime) apply(s shim.Status) {
	c, err := r.get(s.ID)
	if err != nil || s.State == "" {
		return
	}
	c.mu.Lock()
	newer := rank(s.State) > rank(c.status.State)
	if newer {
		c.status = s
	}
	c.mu.Unlock()
	if newer {
		r.changes.Notify(s.ID)
	}
}

// Create implements runtime.Runtime. It creates the container's directory atomically, by a rename at the end.
func (r *Runtime) Create(ctx context.Context, s runtime.Spec) error {
	if !validID.MatchString(s.ID) {
		return fmt.Errorf("container ID %q: want 1 to 76 of a-z, 0-9 and -", s.ID)
	}
	if !validUID(s.PodUID) {
		return fmt.Errorf("pod UID %q: want 1 to 64 of letters, digits and -", s.PodUID)
	}
	if _, err := r.get(s.ID); err == nil {
		return fmt.Errorf("container %s: %w", s.ID, runtime.ErrExists)
	}
	img, err := r.images.find(ctx, s.Image)
	if err != nil {
		return err
	}
	c := &container{
		record: record{
			Spec: s, ImageID: img.ID, Chain: img.chain, Foreign: img.foreign, StopSignal: syscall.SIGTERM, CreatedAt: time.Now(),
		},
		dir: r.dir(s.ID),
	}
	c.status = shim.Status{ID: s.ID, State: string(runtime.Created)}
	for _, name := range []string{img.config.StopSignal, s.StopSignal} {
		if sig, ok := runtime.ParseSignal(name); ok {
			c.StopSignal = sig
		}
	}
	r.mu.Lock()
	if _, ok := r.containers[s.ID]; ok {
		r.mu.Unlock()
		return fmt.Errorf("container %s: %w", s.ID, runtime.ErrExists)
	}
	r.containers[s.ID] = c // its layers are in use now
	r.mu.Unlock()
	if err := r.write(ctx, c, img); err != nil {
		r.forget(c)
		return err
	}
	r.changes.Notify(s.ID)
	return r.config.Failpoints.At("container.created")
}

func (r *Runtime) write(ctx context.Context, c *container, img *image) error {
	lower, err := r.images.lower(ctx, img)
	if err != nil {
		return err
	}
	if err := r.config.Failpoints.At("container.snapshot"); err != nil {
		return err
	}
	b, err := r.bundle(c.Spec, img, c.dir, lower)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(c.dir), ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	err = errors.Join(os.Chmod(temp, 0o711), atomicfile.WriteJSON(shim.BundleFile(temp), b),
		atomicfile.WriteJSON(filepath.Join(temp, "record.json"), c.record))
	for _, d := range []string{shim.Upper(temp), shim.Work(temp), shim.Rootfs(temp)} {
		err = errors.Join(err, os.Mkdir(d, 0o755))
	}
	if err != nil {
		return err
	}
	if err := r.config.Failpoints.At("container.prepared"); err != nil {
		return err
	}
	return os.Rename(temp, c.dir)
}

func (r *Runtime) forget(c *container) {
	c.mu.Lock()
	c.removed = true
	c.mu.Unlock()
	r.mu.Lock()
	delete(r.containers, c.Spec.ID)
	r.mu.Unlock()
	r.changes.Notify(c.Spec.ID)
}

func (r *Runtime) Start(ctx context.Context, id string) error {
	c, err := r.get(id)
	if err != nil {
		return err
	}
	c.ops.Lock()
	defer c.ops.Unlock()
	if c.public().State != runtime.Created {
		return nil
	}
	p := r.pod(c.Spec.PodUID)
	p.limit(c.Spec.CgroupParent)
	if err := r.config.Failpoints.At("task.cgroup"); err != nil {
		return err
	}
	client, err := p.shim(ctx)
	if err != nil {
		return err
	}
	if err := r.config.Failpoints.At("task.shim"); err != nil {
		return err
	}
	res, err := client.Call(ctx, shim.Request{Op: shim.Start, ID: id, Bundle: c.dir})
	if err != nil {
		return fmt.Errorf("start %s: %w", id, err)
	}
	if err := r.config.Failpoints.At("task.started"); err != nil {
		return err
	}
	r.apply(*res.Status)
	if s := res.Status; s.State == string(runtime.Exited) && s.StartedAt.IsZero() {
		return fmt.Errorf("start %s: %s", id, s.Message)
	}
	return nil
}

func (r *Runtime) call(ctx context.Context, id string, req shim.Request) (shim.Response, error) {
	client, err := r.runningShim(id)
	if err != nil {
		return shim.Response{}, err
	}
	req.ID = id
	res, err := client.Call(ctx, req)
	return res, r.explain(id, err)
}

func (r *Runtime) runningShim(id string) (shim.Client, error) {
	c, err := r.get(id)
	if err != nil {
		return shim.Client{}, err
	}
	if c.public().State != runtime.Running {
		return shim.Client{}, fmt.Errorf("container %s: %w", id, runtime.ErrNotRunning)
	}
	return r.pod(c.Spec.PodUID).client(), nil
}

// explain converts a shim's error to one of package runtime.
func (r *Runtime) explain(id string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, shim.ErrNotFound), errors.Is(err, shim.ErrNotRunning), noShim(err):
		return fmt.Errorf("container %s: %w", id, runtime.ErrNotRunning)
	}
	return fmt.Errorf("container %s: %w", id, err)
}

// noShim reports whether an error means that the shim was not running or exited during the call.
func noShim(err error) bool {
	return slices.ContainsFunc([]error{unix.ECONNREFUSED, unix.ENOENT, unix.ECONNRESET, unix.EPIPE, io.EOF},
		func(e error) bool { return errors.Is(err, e) })
}

func (r *Runtime) Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error {
	_, err := r.call(ctx, id, shim.Request{Op: shim.Signal, Signal: int(sig), All: all})
	return err
}

func (r *Runtime) Update(ctx context.Context, id string, res runtime.Resources) error {
	_, err := r.call(ctx, id, shim.Request{Op: shim.Update, Resources: resources(res)})
	return err
}

func (r *Runtime) Stats(ctx context.Context, id string) (runtime.Stats, error) {
	res, err := r.call(ctx, id, shim.Request{Op: shim.Stats})
	if err != nil {
		return runtime.Stats{}, err
	}
	stats := *res.Usage
	stats.At = time.Now()
	return stats, nil
}

func (r *Runtime) DiskUsage(ctx context.Context, id string) (bytes, inodes uint64, err error) {
	if _, err := r.get(id); err != nil {
		return 0, 0, err
	}
	u, err := disk.Of(ctx, shim.Upper(r.dir(id)))
	return u.Bytes, u.Inodes, err
}

func (c *container) cgroup() string { return filepath.Join("/", c.Spec.CgroupParent, c.Spec.ID) }

func (r *Runtime) List(context.Context) ([]runtime.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]runtime.Container, 0, len(r.containers))
	for _, c := range r.containers {
		list = append(list, c.public())
	}
	return list, nil
}

func (r *Runtime) Changes(ctx context.Context) <-chan string { return r.changes.Watch(ctx) }

func (r *Runtime) Get(_ context.Context, id string) (runtime.Container, error) {
	c, err := r.get(id)
	if err != nil {
		return runtime.Container{}, err
	}
	return c.public(), nil
}

func (r *Runtime) chains() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := map[string]bool{}
	for _, c := range r.containers {
		used[c.Chain] = true
	}
	return used
}

func (i *images) has(chain string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, img := range i.byID {
		if img.chain == chain {
			return true
		}
	}
	return false
}

func validUID(uid string) bool {
	return len(uid) > 0 && len(uid) <= 64 && !strings.ContainsFunc(uid, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-')
	})
}

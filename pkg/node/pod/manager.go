package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	process "github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/node/host/boot"
	"github.com/coracle-dev/coracle/pkg/node/images"
	"github.com/coracle-dev/coracle/pkg/node/pod/probe"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// Manager runs the pods of one node. After Start, call Update for each listed pod, then Sync, then report changes.
type Manager struct {
	c       Config
	log     *slog.Logger
	volumes *volume.Manager
	images  *images.Manager
	probes  *probe.Manager
	probing *probe.Client
	modules modules
	ctx     context.Context
	began   time.Time
	wg      sync.WaitGroup
	guard   process.Guard
	metrics *metrics
	gate    *gate // limits concurrent work on sandboxes and containers

	fullness   fullness
	containers *containers
	rooms      *rooms
	listed     chan struct{} // closed by Sync, once the pods of the API are known
	allListed  func()        // closes listed

	allocating sync.Mutex // held while room on the node is granted to pods

	mu       sync.Mutex
	stopped  bool
	draining bool // no new pod is started
	workers  map[types.UID]*worker
}

// New returns a Manager. Start must be called before its other methods.
func New(c Config) *Manager {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.ResolvConf = cmp.Or(c.ResolvConf, "/etc/resolv.conf")
	c.SeccompDir = cmp.Or(c.SeccompDir, filepath.Join(c.DataDir, "seccomp"))
	c.BootID = cmp.Or(c.BootID, boot.ID())
	if c.AdmitBy == nil {
		c.AdmitBy = c.Node
	}
	if c.Sysctls == nil {
		c.Sysctls, _ = NewSysctls(nil)
	}
	m := &Manager{
		c: c, log: c.Logger, modules: readModules(), probing: probe.NewClient(c.Probes),
		gate:       newGate(goruntime.GOMAXPROCS(0)),
		containers: newContainers(c.Runtime, c.Logger), workers: map[types.UID]*worker{}, listed: make(chan struct{}),
	}
	m.allListed = sync.OnceFunc(func() { close(m.listed) })
	m.rooms = newRooms(filepath.Join(c.DataDir, "rooms.json"), c.Logger)
	m.guard = process.Guard{Log: c.Logger, Component: "pods"}
	m.metrics = newMetrics(c.Metrics, m)
	m.images = images.New(c.Runtime.Images(), filepath.Join(c.DataDir, "pulled-images"))
	m.images.Elsewhere = c.NodesWith
	m.probes = probe.New(probe.Config{Runtime: c.Runtime, Changed: m.wake, Client: m.probing, Logger: c.Logger})
	if c.Metrics != nil {
		c.Metrics.MustRegister(m.probes.Metrics())
	}
	m.volumes = volume.New(volume.Config{
		Client: c.Client, Dir: filepath.Join(c.DataDir, "pods"), MemoryDir: filepath.Join(c.RunDir, "volumes"),
		LocalDir: LocalVolumes(c.DataDir), Node: c.Node, Changed: m.objectChanged, HostIP: c.HostIP,
		Allocatable: c.Allocatable, Images: c.Runtime.Images(), Plugins: c.VolumePlugins, Logger: c.Logger,
		Failpoints: c.Failpoints,
	})
	return m
}

// Start lists the runtime's containers. Call Update only after it returns. When ctx is done, containers keep running.
func (m *Manager) Start(ctx context.Context) error {
	m.ctx, m.began = ctx, time.Now()
	if err := m.volumes.Start(); err != nil {
		return err
	}
	if err := m.images.Start(ctx); err != nil {
		return fmt.Errorf("records of pulled images: %w", err)
	}
	changes := m.c.Runtime.Changes(ctx)
	if err := m.list(ctx); err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	m.goRun(func() { m.guard.Loop(ctx, "objects of pods", m.volumes.Objects().Run) })
	m.goRun(func() { m.follow(ctx, changes) })
	return nil
}

// Wait returns when the context of Start is done and all goroutines of the Manager have ended. Containers keep running.
func (m *Manager) Wait() error {
	<-m.ctx.Done()
	m.mu.Lock()
	m.stopped = true
	m.mu.Unlock()
	for _, w := range m.all() {
		w.loop.stop()
	}
	m.probes.StopAll()
	m.wg.Wait()
	m.probing.CloseIdleConnections()
	return m.volumes.Close()
}

// goRun runs f in a goroutine, or returns false if the Manager has stopped.
func (m *Manager) goRun(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return false
	}
	m.wg.Go(func() { _ = m.guard.Do("work", f) })
	return true
}

func (m *Manager) follow(ctx context.Context, changes <-chan string) {
	for ctx.Err() == nil {
		for id := range changes {
			_ = m.guard.Do("container event", func() { m.refresh(ctx, id) }, "container", id)
		}
		if ctx.Err() != nil {
			return
		}
		changes = m.c.Runtime.Changes(ctx)
		if err := m.list(ctx); err != nil && ctx.Err() == nil {
			m.log.Warn("could not list containers, retrying", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func (m *Manager) list(ctx context.Context) error {
	if err := m.containers.list(ctx); err != nil {
		return err
	}
	for _, w := range m.all() {
		w.containersChanged()
	}
	return nil
}

func (m *Manager) refresh(ctx context.Context, id string) {
	if w := m.worker(m.containers.refresh(ctx, id)); w != nil {
		w.containersChanged()
	}
}

// Update handles an added or changed pod of this node in the API. It does not modify p.
func (m *Manager) Update(p *corev1.Pod) {
	m.mu.Lock()
	w := m.workers[p.UID]
	if w == nil && m.draining {
		m.mu.Unlock()
		return
	}
	if w == nil {
		w = newWorker(m, p)
		m.workers[p.UID] = w
		m.mu.Unlock()
		m.begin(w)
		return
	}
	m.mu.Unlock()
	w.update(p)
}

func (m *Manager) begin(w *worker) {
	err := m.guard.Do("pod admission", func() {
		w.loadAllocation()
		if a := w.admitAndAllocate(); a != nil {
			w.recordFirst(*a)
		}
	}, "uid", w.uid)
	if err != nil {
		w.refuseUnchecked()
	}
	w.goOnWaiting()
	w.loop.wake()
}

// Delete handles the deletion of a pod from the API.
func (m *Manager) Delete(p *corev1.Pod) {
	m.mu.Lock()
	w := m.workers[p.UID]
	m.mu.Unlock()
	if w != nil {
		w.removed(p)
	}
}

// Sync releases pods that are not in the API. Call it once, after Update was called for each pod of the first list.
func (m *Manager) Sync(ctx context.Context) error {
	orphans := m.containers.pods()
	blank := func(uid types.UID) {
		if orphans[uid] == nil {
			orphans[uid] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}
		}
	}
	logs, err := os.ReadDir(m.c.LogDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, d := range logs {
		if p := podOfLogDir(d.Name()); p != nil && orphans[p.UID] == nil {
			orphans[p.UID] = p
		}
	}
	sandboxes, err := m.c.Network.List(ctx)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	for _, s := range sandboxes {
		blank(types.UID(s.UID))
	}
	dirs, err := m.volumes.List()
	if err != nil {
		return err
	}
	if m.c.Devices != nil {
		dirs = append(dirs, m.c.Devices.Pods()...)
	}
	if m.c.Claims != nil {
		dirs = append(dirs, m.c.Claims.Pods()...)
	}
	for _, uid := range dirs {
		blank(uid)
	}
	for _, part := range m.c.Parts {
		part.Synced(func(uid types.UID) bool { return m.worker(uid) != nil })
	}
	if m.c.StaticPods {
		for uid := range m.LeftStatic() {
			delete(orphans, uid)
		}
	}
	for uid, p := range orphans {
		m.mu.Lock()
		w := m.workers[uid]
		if w == nil {
			w = newWorker(m, p)
			w.api.gone = true
			m.workers[uid] = w
		} else {
			w = nil
		}
		m.mu.Unlock()
		if w != nil {
			m.log.Info("releasing resources of orphaned pod", "pod", p.Namespace+"/"+p.Name, "uid", uid)
			w.loop.wake()
		} else {
			delete(orphans, uid)
		}
	}
	m.rooms.keep(func(uid types.UID) bool { return m.worker(uid) != nil && orphans[uid] == nil })
	m.allListed()
	m.allocatePending()
	return nil
}

// Retry retries failed sandbox setups immediately.
func (m *Manager) Retry() {
	for _, w := range m.all() {
		w.retryNow(string(SetupSandbox))
	}
}

// RetryVolumes retries failed volume operations immediately.
func (m *Manager) RetryVolumes() {
	for _, w := range m.all() {
		w.retryNow(string(MountVolumes))
		w.retryNow(string(Release))
	}
}

func (m *Manager) all() []*worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.workers))
}

func (m *Manager) worker(uid types.UID) *worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.workers[uid]
}

// ConditionChanged is called when the result of a part's Condition has changed.
func (m *Manager) ConditionChanged(uid types.UID) { m.wake(uid) }

// DevicesChanged updates the status of pods whose devices changed health.
func (m *Manager) DevicesChanged(pods []types.UID) {
	for _, uid := range pods {
		m.wake(uid)
	}
}

func (m *Manager) wake(uid types.UID) {
	if w := m.worker(uid); w != nil {
		w.loop.wake()
	}
}

func (m *Manager) objectChanged(uid types.UID) {
	if w := m.worker(uid); w != nil {
		w.objectChanged()
	}
}

func (m *Manager) forget(w *worker) {
	m.mu.Lock()
	if m.workers[w.uid] == w {
		delete(m.workers, w.uid)
	}
	m.mu.Unlock()
	w.mu.Lock()
	closeOnce(w.end.drained)
	closeOnce(w.end.evicted)
	closeOnce(w.end.down)
	w.mu.Unlock()
	if m.c.StaticEnded != nil {
		m.c.StaticEnded(w.uid)
	}
	m.allocatePending()
}

// Probes returns the counts of container probes.
func (m *Manager) Probes() []probe.Count { return m.probes.Counts() }

// Images returns the image manager.
func (m *Manager) Images() *images.Manager { return m.images }

// event records an event on a pod or, if container is set, on that container.
func (m *Manager) event(p *corev1.Pod, container, kind, reason, message string) {
	ref := corev1.ObjectReference{
		APIVersion:      "v1",
		Kind:            "Pod",
		Namespace:       p.Namespace,
		Name:            p.Name,
		UID:             p.UID,
		ResourceVersion: p.ResourceVersion,
	}
	if container != "" {
		field := "containers"
		switch _, init, ephemeral := containerOf(p, container); {
		case init:
			field = "initContainers"
		case ephemeral:
			field = "ephemeralContainers"
		}
		ref.FieldPath = fmt.Sprintf("spec.%s{%s}", field, container)
	}
	if p.Namespace != "" {
		m.c.Recorder.About(ref, kind, reason, message)
	}
}

// LocalVolumes returns the directory of the volumes provisioned on this node.
func LocalVolumes(dataDir string) string { return filepath.Join(dataDir, "local-volumes") }

// Directories returns the volumes provisioned on this node.
func (m *Manager) Directories() *volume.Directories { return m.volumes.Directories() }

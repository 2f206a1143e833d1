// Package static runs the pods whose manifests are files of a folder of the node, without an API server, and shows them in the API as mirror pods,
// as the kubelet does.
//
// It may import client, bounded and run. Its invariants: of each namespace and name at most one pod runs, so that a changed manifest's pod starts
// when nothing is left of the former one. The API never decides about these pods: whatever happens to a mirror, the pod runs, and its mirror is
// made again.
package static

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/run"
)

// Pods runs pods; pod.Manager implements it.
type Pods interface {
	// StartStatic runs a pod, StopStatic stops it and releases all that it has. They return at once. Manager.Ended is called when nothing is left.
	StartStatic(p *corev1.Pod)
	StopStatic(uid types.UID)
	// SetMirror sets the pod in the API to which the status is written; nil for none.
	SetMirror(uid types.UID, mirror *corev1.Pod)
	// LeftStatic returns the names of the static pods of which an earlier process left containers.
	LeftStatic() map[types.UID]types.NamespacedName
}

// Config of a Manager. All fields are required.
type Config struct {
	// Dir is the folder; it is made if it is missing.
	Dir      string
	NodeName string
	// Decode decodes the one pod of a manifest, calls complete with it before it is defaulted, and validates the result.
	Decode func(data []byte, complete func(*corev1.Pod) error) (*corev1.Pod, error)
	Pods   Pods
	Client client.Interface
	// Node returns this node's object, or nil while it is not registered.
	Node func() *corev1.Node
	// Event records an event on the node.
	Event  func(kind, reason, message string)
	Logger *slog.Logger
}

// Manager runs the pods of the folder. Call Start once pods can run, Run, and Seen, Gone and Synced for the mirrors in the API.
type Manager struct {
	c       Config
	folder  folder
	mirrors *mirrors
	guard   run.Guard

	mu     sync.Mutex
	wanted map[types.NamespacedName]*corev1.Pod
	// runs are the pods that run, also those that are being stopped.
	runs map[types.NamespacedName]*running
}

// running is a pod of which something is on the node.
type running struct {
	uid      types.UID
	pod      *corev1.Pod // nil for one of an earlier process whose manifest is gone
	stopping bool
}

// New returns a Manager.
func New(c Config) *Manager {
	m := &Manager{c: c, runs: map[types.NamespacedName]*running{}, wanted: map[types.NamespacedName]*corev1.Pod{}}
	m.folder = folder{dir: c.Dir, decode: m.decode, files: map[string]*manifest{}}
	m.guard = run.Guard{Log: c.Logger, Component: "static pods"}
	m.mirrors = newMirrors(c, m.state)
	return m
}

// Start reads the folder and starts its pods; pods that an earlier process left running are continued, or stopped if their manifests are gone. While
// the folder cannot be read, they run on. It must be called before other leftovers are released. Run follows changes.
func (m *Manager) Start() {
	w, err := m.folder.open()
	if err != nil { // Run tries again, and says so
		w = unwatched()
	}
	for uid, name := range m.c.Pods.LeftStatic() {
		if old := m.runs[name]; old != nil { // killed between the end of one and the start of the next
			m.c.Pods.StopStatic(uid)
			continue
		}
		m.runs[name] = &running{uid: uid}
	}
	m.folder.watch = w
	m.read()
}

// Run follows the folder and keeps the mirrors until ctx is done. The pods keep running.
func (m *Manager) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { m.guard.Loop(ctx, "mirror pods", m.mirrors.run) })
	m.guard.Loop(ctx, "manifests", func(ctx context.Context) { m.folder.follow(ctx, m.c.Logger, m.read) })
}

// read reads what changed in the folder, reports what is refused, and starts and stops pods accordingly.
func (m *Manager) read() {
	m.mu.Lock()
	runs := map[types.UID]bool{}
	for _, r := range m.runs {
		runs[r.uid] = !r.stopping
	}
	m.mu.Unlock()
	pods, refused, ok := m.folder.read(func(uid types.UID) bool { return runs[uid] })
	for _, r := range refused {
		m.c.Logger.Error("refused the manifest of a static pod", "file", r.file, "error", r.err)
		m.c.Event(corev1.EventTypeWarning, "InvalidStaticPod", fmt.Sprintf("%s: %v", r.file, r.err))
	}
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted = pods
	m.reconcile()
}

// Ended is called when nothing is left of a pod.
func (m *Manager) Ended(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, r := range m.runs {
		if r.uid == uid {
			delete(m.runs, name)
			m.reconcile()
			return
		}
	}
}

// reconcile starts and stops pods. Called with the lock held.
func (m *Manager) reconcile() {
	for name, r := range m.runs {
		if want := m.wanted[name]; r.stopping || want != nil && want.UID == r.uid {
			continue
		}
		r.stopping = true
		m.c.Pods.StopStatic(r.uid)
	}
	for _, name := range slices.SortedFunc(maps.Keys(m.wanted), compareNames) {
		p := m.wanted[name]
		r := m.runs[name]
		switch {
		case r == nil:
			m.runs[name] = &running{uid: p.UID, pod: p}
		case r.pod == nil && !r.stopping: // of an earlier process
			r.pod = p
		default:
			continue
		}
		m.c.Pods.StartStatic(p)
	}
	m.mirrors.mark()
}

// state is what mirrors are planned by.
func (m *Manager) state() State {
	s := State{Pods: map[types.NamespacedName]*corev1.Pod{}, Ending: map[types.NamespacedName]bool{}}
	if n := m.c.Node(); n != nil {
		s.Node = n.UID
	}
	s.NodeName = m.c.NodeName
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, r := range m.runs {
		if r.stopping || r.pod == nil {
			s.Ending[name] = true
			continue
		}
		s.Pods[name] = r.pod
	}
	return s
}

// Seen handles an added or changed mirror pod of this node in the API, Gone its deletion.
func (m *Manager) Seen(p *corev1.Pod) { m.mirrors.seen(p) }

// Gone handles the deletion of a mirror pod from the API.
func (m *Manager) Gone(p *corev1.Pod) { m.mirrors.gone(p) }

// Synced is called when Seen was called for all mirrors that exist. None is made before.
func (m *Manager) Synced() { m.mirrors.synced() }

// NodeChanged is called when what Node returns changed.
func (m *Manager) NodeChanged() { m.mirrors.nodeChanged() }

// IsMirror reports whether a pod of the API is the mirror of a static pod, of which nothing is run.
func IsMirror(p *corev1.Pod) bool {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

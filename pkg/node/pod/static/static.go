// Package static runs the pods whose manifests are files in a folder of the node, without an API server. Like the
// kubelet it shows them in the API as mirror pods.
//
// Invariants: at most one pod per namespace and name runs, so the pod of a changed manifest starts when nothing is
// left of the previous one. The API never decides about these pods: whatever happens to a mirror, the pod keeps
// running and its mirror is created again.
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

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
)

// Pods runs pods; pod.Manager implements it.
type Pods interface {
	// StartStatic runs a pod; file is its manifest's name. StopStatic stops a pod and releases its resources. Both
	// return immediately; Manager.Ended is called when nothing of a pod is left.
	StartStatic(p *corev1.Pod, file string)
	StopStatic(uid types.UID)
	// SetMirror sets the pod in the API that the status is written to; nil means none.
	SetMirror(uid types.UID, mirror *corev1.Pod)
	// LeftStatic returns the static pods that still have containers of an earlier process.
	LeftStatic() map[types.UID]Left
}

// Left is a static pod of an earlier process. File is the name of its manifest in the folder.
type Left struct {
	Name types.NamespacedName
	File string
}

// Config configures a Manager. All fields are required.
type Config struct {
	// Dir is the folder. It is created if it does not exist.
	Dir      string
	NodeName string
	// Decode decodes the only pod of a manifest, calls complete with it before defaulting, and validates the result.
	Decode func(data []byte, complete func(*corev1.Pod) error) (*corev1.Pod, error)
	Pods   Pods
	Client client.Interface
	// Node returns this node's object, or nil while it is not registered.
	Node func() *corev1.Node
	// Event records an event on the node.
	Event  func(kind, reason, message string)
	Logger *slog.Logger
}

// Manager runs the pods of the folder. Call Start once pods can run, then Run. Report the mirrors in the API with
// Seen, Gone and Synced.
type Manager struct {
	c       Config
	folder  folder
	mirrors *mirrors
	guard   run.Guard

	mu     sync.Mutex
	wanted map[types.NamespacedName]source
	// runs holds the pods that run or are being stopped.
	runs map[types.NamespacedName]*running
	// todo holds the planned steps; acting is set while a goroutine carries them out.
	todo   []step
	acting bool
}

type running struct {
	uid      types.UID
	pod      *corev1.Pod // nil for a pod of an earlier process without a usable manifest
	stopping bool
	started  bool // Pods.StartStatic was called
}

// New returns a Manager. It reads nothing before Run.
func New(c Config) *Manager {
	m := &Manager{c: c, runs: map[types.NamespacedName]*running{}, wanted: map[types.NamespacedName]source{}}
	m.folder = newFolder(c.Dir, m.decode)
	m.guard = run.Guard{Log: c.Logger, Component: "static pods"}
	m.mirrors = newMirrors(c, m.state)
	return m
}

// Start reads the folder and starts its pods. Pods of an earlier process are resumed, or stopped if their manifests are
// gone; they keep running while manifests cannot be read. Call it before releasing other leftovers.
func (m *Manager) Start() {
	w, err := m.folder.open()
	if err != nil { // Run retries and logs the error
		w = unwatched()
	}
	m.folder.watch = w
	for _, uid := range m.adopt(m.c.Pods.LeftStatic()) {
		m.c.Pods.StopStatic(uid)
	}
	m.read()
}

// adopt resumes the pods that the previous process left running. It returns the UIDs of duplicates: pods whose name
// another running pod already has.
func (m *Manager) adopt(left map[types.UID]Left) (second []types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(left)) {
		name := left[uid].Name
		if m.runs[name] != nil { // the process died while one pod replaced another
			second = append(second, uid)
			continue
		}
		m.runs[name] = &running{uid: uid}
		m.folder.from[name] = left[uid].File
	}
	return second
}

// Run follows the folder and maintains the mirrors until ctx is done. The pods keep running.
func (m *Manager) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { m.guard.Loop(ctx, "mirror pods", m.mirrors.run) })
	m.guard.Loop(ctx, "manifests", func(ctx context.Context) { m.folder.follow(ctx, m.c.Logger, m.read) })
}

func (m *Manager) read() {
	pods, refused, ok := m.folder.read()
	for _, r := range refused {
		m.c.Logger.Error("refused the manifest of a static pod", "file", r.file, "error", r.err)
		m.c.Event(corev1.EventTypeWarning, "InvalidStaticPod", fmt.Sprintf("%s: %v", r.file, r.err))
	}
	if !ok {
		return
	}
	m.change(func() bool { m.wanted = pods; return true })
}

// Ended is called when nothing is left of a pod. It ignores pods that are not static.
func (m *Manager) Ended(uid types.UID) {
	m.change(func() bool {
		for name, r := range m.runs {
			if r.uid == uid {
				delete(m.runs, name)
				return true
			}
		}
		return false
	})
}

// Restart stops pods and starts them again. It ignores pods that do not run.
func (m *Manager) Restart(uids []types.UID) {
	m.change(func() bool {
		for _, r := range m.runs {
			if !r.stopping && slices.Contains(uids, r.uid) {
				r.stopping = true
				m.todo = append(m.todo, step{of: r})
			}
		}
		return true
	})
}

// step is a call of Pods that starts or stops a pod.
type step struct {
	of    *running
	start bool
	file  string
}

// change runs f, which changes the wanted or running pods, and carries out the resulting plan. Pods is called without
// the lock, in the order of the plans, by one goroutine at a time, which also takes steps added meanwhile.
func (m *Manager) change(f func() (changed bool)) {
	defer m.mirrors.mark()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !f() {
		return
	}
	m.todo = append(m.todo, m.plan()...)
	if m.acting {
		return
	}
	m.acting = true
	for len(m.todo) > 0 {
		next := m.todo[0]
		m.todo = m.todo[1:]
		m.mu.Unlock()
		_ = m.guard.Do("static pod", func() { m.act(next) }, "uid", next.of.uid)
		m.mu.Lock()
		next.of.started = next.start
	}
	m.acting = false
}

func (m *Manager) act(s step) {
	if s.start {
		m.c.Pods.StartStatic(s.of.pod, s.file)
	} else {
		m.c.Pods.StopStatic(s.of.uid)
	}
}

// plan returns the steps that make the wanted pods run, and records them in runs. Called with the lock held.
func (m *Manager) plan() (steps []step) {
	for name, r := range m.runs {
		want, has := m.wanted[name]
		if r.stopping || has && (want.pod == nil || want.pod.UID == r.uid) {
			continue
		}
		r.stopping = true
		steps = append(steps, step{of: r})
	}
	for _, name := range slices.SortedFunc(maps.Keys(m.wanted), compareNames) {
		want, r := m.wanted[name], m.runs[name]
		switch {
		case want.pod == nil:
			continue
		case r == nil:
			p := *want.pod // a new object per run: mirrors.shown is keyed by it
			r = &running{uid: p.UID, pod: &p}
			m.runs[name] = r
		case r.pod == nil && !r.stopping: // resume a pod of an earlier process
			r.pod = want.pod
		default:
			continue
		}
		steps = append(steps, step{r, true, want.file})
	}
	return steps
}

// state returns the input for planning mirrors.
func (m *Manager) state() State {
	s := State{Pods: map[types.NamespacedName]*corev1.Pod{}, Ending: map[types.NamespacedName]bool{}}
	if n := m.c.Node(); n != nil {
		s.Node = n.UID
	}
	s.NodeName = m.c.NodeName
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, r := range m.runs {
		if r.stopping || !r.started {
			s.Ending[name] = true
			continue
		}
		s.Pods[name] = r.pod
	}
	return s
}

// Seen handles an added or changed mirror pod of this node in the API.
func (m *Manager) Seen(p *corev1.Pod) { m.mirrors.seen(p) }

// Gone handles the deletion of a mirror pod from the API.
func (m *Manager) Gone(p *corev1.Pod) { m.mirrors.gone(p) }

// Synced is called after Seen was called for all existing mirrors. No mirror is created or deleted before.
func (m *Manager) Synced() { m.mirrors.synced() }

// NodeChanged is called when the result of Node has changed.
func (m *Manager) NodeChanged() { m.mirrors.nodeChanged() }

// IsMirror reports whether a pod of the API is the mirror of a static pod, which the agent must not run.
func IsMirror(p *corev1.Pod) bool {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

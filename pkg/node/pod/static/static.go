// Package static runs the pods whose manifests are files of a folder of the node, without an API server, and shows them
// in the API as mirror pods, as the kubelet does.
//
// Its invariants: of each namespace and name at most one pod runs, so that a changed manifest's pod starts when
// nothing is left of the former one. The API never decides about these pods: whatever happens to a mirror, the pod
// runs, and its mirror is made again.
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
	// StartStatic runs the pod of a file, StopStatic stops it and releases all that it has. They return at once.
	// Manager.Ended is called when nothing is left.
	StartStatic(p *corev1.Pod, file string)
	StopStatic(uid types.UID)
	// SetMirror sets the pod in the API to which the status is written; nil for none.
	SetMirror(uid types.UID, mirror *corev1.Pod)
	// LeftStatic returns the static pods of which an earlier process left containers.
	LeftStatic() map[types.UID]Left
}

// Left is a static pod of an earlier process. File is its manifest's name in the folder.
type Left struct {
	Name types.NamespacedName
	File string
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

// Manager runs the pods of the folder. Call Start once pods can run, Run, and Seen, Gone and Synced for the mirrors in
// the API.
type Manager struct {
	c       Config
	folder  folder
	mirrors *mirrors
	guard   run.Guard

	mu     sync.Mutex
	wanted map[types.NamespacedName]source
	// runs are the pods that run, also those that are being stopped.
	runs map[types.NamespacedName]*running
	// todo are the steps that were planned, and acting is set while a goroutine takes them.
	todo   []step
	acting bool
}

// running is a pod of which something is on the node.
type running struct {
	uid      types.UID
	pod      *corev1.Pod // nil for one of an earlier process whose manifest is gone or cannot be used
	stopping bool
	started  bool // Pods has it
}

// New returns a Manager.
func New(c Config) *Manager {
	m := &Manager{c: c, runs: map[types.NamespacedName]*running{}, wanted: map[types.NamespacedName]source{}}
	m.folder = newFolder(c.Dir, m.decode)
	m.guard = run.Guard{Log: c.Logger, Component: "static pods"}
	m.mirrors = newMirrors(c, m.state)
	return m
}

// Start reads the folder and starts its pods; pods that an earlier process left running are continued, or stopped if
// their manifests are gone. While the folder or their manifests cannot be used, they run on. It must be called before
// other leftovers are released. Run follows changes.
func (m *Manager) Start() {
	w, err := m.folder.open()
	if err != nil { // Run tries again, and says so
		w = unwatched()
	}
	m.folder.watch = w
	for _, uid := range m.adopt(m.c.Pods.LeftStatic()) {
		m.c.Pods.StopStatic(uid)
	}
	m.read()
}

// adopt takes over what an earlier process left running. It returns those of which another pod of that name was left
// too.
func (m *Manager) adopt(left map[types.UID]Left) (second []types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(left)) {
		name := left[uid].Name
		if m.runs[name] != nil { // killed between the end of one and the start of the next
			second = append(second, uid)
			continue
		}
		m.runs[name] = &running{uid: uid}
		m.folder.from[name] = left[uid].File
	}
	return second
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

// Ended is called when nothing is left of a pod. Other pods than static ones are ignored.
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

// Restart stops pods and starts them again. Others than those that run are ignored.
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

// step is a call of Pods: a pod is started, or stopped.
type step struct {
	of    *running
	start bool
	file  string
}

// change changes what is wanted or what runs, and acts accordingly. Pods are called without the lock, and in the order
// of the plans: by one goroutine at a time, which also carries out what others plan meanwhile.
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

// plan returns what is to be stopped and started so that what is wanted runs, and records it in runs. Called with the
// lock held.
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
			p := *want.pod // one for each run: mirrors go by the object
			r = &running{uid: p.UID, pod: &p}
			m.runs[name] = r
		case r.pod == nil && !r.stopping: // of an earlier process
			r.pod = want.pod
		default:
			continue
		}
		steps = append(steps, step{r, true, want.file})
	}
	return steps
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
		if r.stopping || !r.started {
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

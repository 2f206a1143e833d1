package pod

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// worker runs one pod.
//
//	event -> wake -> step: observe, Plan, launch actions, compute status -> (timer | action done | event) -> wake
//
// Three kinds of goroutines use it: callers that deliver events (update, removed, ...), at most one sync loop, which
// plans, and one goroutine per action in flight. mu guards their shared state. It is held briefly: never while
// reading files, while Plan runs, or during calls to the runtime, the network or the API.
type worker struct {
	m     *Manager
	uid   types.UID
	start time.Time // the pod's startTime

	loop       syncLoop     // calls step
	birth      birth        // for the metrics of the pod's start
	containers notifier     // signals changes of the pod's containers
	seen       seen         // owned by the sync loop
	filesMu    sync.Mutex   // guards /etc/hosts and similar files, which each start may write
	postMu     sync.Mutex   // serializes writes of the status
	recordMu   sync.Mutex   // serializes writes of the allocation's file
	cgroups    sync.RWMutex // locked to change the pod's cgroups, read-locked by starts

	mu      sync.Mutex
	api     apiState
	end     termination
	held    holdings
	actions actions
	status  published
}

// apiState is the pod in the API server. Events and the responses to the agent's writes set it.
type apiState struct {
	pod     *corev1.Pod // newest known version
	static  bool        // the pod is not in the API; set before the worker runs
	file    string      // the name of a static pod's manifest file
	mirror  *corev1.Pod // newest known version of a static pod's mirror; nil without one
	gone    bool        // the pod was deleted from the API, or a static pod's manifest is gone
	deleted bool        // the agent deleted the pod; the watch event follows
}

// termination is why the agent terminates the pod. Admission, eviction, draining and the sync loop set it.
type termination struct {
	verdict *Verdict
	drained chan struct{} // set by Drain; closed when nothing of the pod runs
	evicted chan struct{} // closed when an evicted or deleted pod's resources are released
	by      time.Time     // deadline while the machine shuts down; zero otherwise
	down    chan struct{} // set with by; closed when the pod has stopped and is released
	waits   bool          // the pod waits for victims of its preemption to end
}

// holdings are the pod's resources on the node except for its containers, which the runtime knows. Actions set them.
type holdings struct {
	sandbox  *network.Sandbox
	volumes  *volume.Ready
	stale    bool // a source of the volumes changed
	released bool // only containers are left
	erased   bool // nothing is left

	allocation allocation
	unsure     bool // the state of the cgroups is unknown
	limited    bool // the pod's cgroup has its limits
}

// actions holds the actions in flight and the failures of earlier ones. The sync loop adds to inFlight, and each action
// removes itself.
type actions struct {
	inFlight map[string]*op
	failures map[string]Failure
}

// published is the state of writing the pod's status. The sync loop sets want, the writing goroutine the rest.
type published struct {
	want    *corev1.PodStatus // the computed status
	sent    *corev1.PodStatus // last written; the server may store less
	answer  corev1.PodStatus  // the status in the response
	at      time.Time         // time of the last write
	writing bool
}

// seen is the sync loop's own state. Maps are by container ID.
type seen struct {
	health   map[string]Health
	messages map[string]string // termination messages
	panics   int               // consecutive steps that panicked
}

func newWorker(m *Manager, p *corev1.Pod) *worker {
	w := &worker{m: m, uid: p.UID, start: time.Now(), api: apiState{pod: p}, birth: birth{seen: time.Now()},
		seen:    seen{health: map[string]Health{}, messages: map[string]string{}},
		actions: actions{inFlight: map[string]*op{}, failures: map[string]Failure{}},
	}
	w.loop = syncLoop{ctx: m.ctx, run: m.goRun, step: w.stepGuarded, gone: func() { m.forget(w) }}
	w.containers.changed = make(chan struct{})
	w.end.evicted = make(chan struct{})
	if p.Status.StartTime != nil {
		w.start = p.Status.StartTime.Time
	}
	if p.Status.Reason == eviction.Reason && !isTerminal(p) { // an earlier process began to evict it
		w.end.verdict = &Verdict{Reason: eviction.Reason, Message: p.Status.Message, Evicted: true}
	}
	if p.Status.Reason == preempting && !isTerminal(p) {
		w.end.verdict = &Verdict{
			Reason:    preempting,
			Message:   p.Status.Message,
			Evicted:   true,
			Preempted: true,
			Disrupted: true,
		}
	}
	// the machine or the agent stopped before the pod had ended
	if p.Status.Reason == shutdownReason && !isTerminal(p) {
		w.end.verdict = &Verdict{Reason: shutdownReason, Message: shutdownMessage, Disrupted: true}
	}
	return w
}

func (w *worker) update(p *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.api.pod
	if older(p.ResourceVersion, old.ResourceVersion) {
		return
	}
	w.api.pod = p
	if w.status.sent != nil && !apiequality.Semantic.DeepEqual(p.Status, w.status.answer) {
		w.status.sent = nil // someone else wrote the status; ours is written again
	}
	if !maps.Equal(old.Labels, p.Labels) || !maps.Equal(old.Annotations, p.Annotations) {
		w.held.stale = true
		clear(w.actions.failures)
	}
	if old.Generation != p.Generation {
		clear(w.actions.failures)
		w.held.allocation.compare(p)
	}
	w.loop.wake()
}

// older compares resource versions of one object, which are comparable numbers (KEP-5504).
func older(a, b string) bool {
	return len(a) < len(b) || len(a) == len(b) && a < b
}

// removed handles the deletion of the pod from the API; p is the last known version.
func (w *worker) removed(p *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !older(p.ResourceVersion, w.api.pod.ResourceVersion) {
		w.api.pod = p
	}
	w.api.gone = true
	w.loop.wake()
}

func (w *worker) containersChanged() {
	w.containers.notify()
	w.loop.wake()
}

// objectChanged is called when a ConfigMap or Secret that the pod refers to has changed.
func (w *worker) objectChanged() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held.stale = true
	maps.DeleteFunc(w.actions.failures, func(k string, f Failure) bool {
		return k == string(MountVolumes) || f.Reason == "CreateContainerConfigError"
	})
	w.loop.wake()
}

func (w *worker) retryNow(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, has := w.actions.failures[key]; has {
		delete(w.actions.failures, key)
		w.loop.wake()
	}
}

// view returns the pod with the agent's status of it. Called with the lock held.
func (w *worker) view() *corev1.Pod {
	if w.status.want == nil {
		return w.api.pod
	}
	p := *w.api.pod
	p.Status = overlay(&w.api.pod.Status, w.status.want, w.m.c.Parts)
	return &p
}

// ended reports whether view's phase is terminal. Called with the lock held.
func (w *worker) ended() bool {
	return isTerminal(w.api.pod) || w.status.want != nil && hasEnded(w.status.want.Phase)
}

// current returns a copy of view, or nil for an orphan, whose UID alone is known.
func (w *worker) current() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.api.gone && w.api.pod.Spec.NodeName == "" {
		return nil
	}
	return w.view().DeepCopy()
}

// podIP returns the pod's address, or "". Called with the lock held.
func (w *worker) podIP() string {
	if w.api.pod.Spec.HostNetwork {
		return w.m.c.HostIP
	}
	if w.held.sandbox != nil && w.held.sandbox.IP.IsValid() {
		return w.held.sandbox.IP.String()
	}
	return ""
}

type notifier struct {
	mu      sync.Mutex
	changed chan struct{}
}

// wait returns a channel that is closed at the next change. Call it before reading the state that may change.
func (n *notifier) wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

func (n *notifier) notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.changed)
	n.changed = make(chan struct{})
}

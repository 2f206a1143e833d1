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
// Three kinds of goroutines use it: those that deliver events (update, removed, ...), at most one sync loop, which
// plans, and one per action in flight, which executes it. mu guards what they share. It is held briefly: never while
// files are read, Plan runs, or the runtime, the network or the API are called.
type worker struct {
	m     *Manager
	uid   types.UID
	start time.Time // the pod's startTime

	loop       syncLoop     // of step
	birth      birth        // for the metrics of its start
	containers notifier     // of changes of the pod's containers
	seen       seen         // owned by the sync loop
	filesMu    sync.Mutex   // of the pod's /etc/hosts and its like, which each start of a container may write
	postMu     sync.Mutex   // one status is written at a time
	recordMu   sync.Mutex   // held while the allocation's file is written
	cgroups    sync.RWMutex // held by those who change the pod's cgroups, and shared by containers that start

	mu      sync.Mutex
	api     apiState
	end     termination
	held    holdings
	actions actions
	status  published
}

// apiState is the pod in the API server. Events and responses to our own writes set it.
type apiState struct {
	pod     *corev1.Pod // newest known version
	static  bool        // the pod is not in the API; set before the worker runs
	file    string      // of a static pod: its manifest's name in the folder
	mirror  *corev1.Pod // newest known version of a static pod's mirror; nil without one
	gone    bool        // the API does not have the pod any more, or a static pod's manifest is gone
	deleted bool        // the agent deleted it; the event follows
}

// termination is why the agent terminates the pod. Admission, eviction, draining and the sync loop set it.
type termination struct {
	verdict *Verdict
	drained chan struct{} // set while the node stops; closed when nothing of the pod runs
	evicted chan struct{} // closed when all resources of the pod are released, after it was evicted or is gone
	by      time.Time     // when the machine shuts down: nothing of the pod runs later; zero otherwise
	down    chan struct{} // set with by; closed when nothing of the pod runs and what it used is released
	waits   bool          // others end first, to make room for the pod
}

// holdings are the pod's resources on the node, except for its containers, which the runtime knows. Actions set them.
type holdings struct {
	sandbox  *network.Sandbox
	volumes  *volume.Ready
	stale    bool // a source of the volumes changed
	released bool // only containers are left
	erased   bool // nothing is left

	allocation allocation
	unsure     bool // it is not known what the cgroups have
	limited    bool // the pod's cgroup has its limits
}

// actions are those in flight and the results of earlier ones. The sync loop adds to inFlight, and each action removes
// itself.
type actions struct {
	inFlight map[string]*op
	failures map[string]Failure
}

// published is the state of writing the pod's status. The sync loop sets want, the writing goroutine the rest.
type published struct {
	want    *corev1.PodStatus // what the API should show
	sent    *corev1.PodStatus // what was last written; the server may not store all of it
	answer  corev1.PodStatus  // the status in the response
	at      time.Time         // of that write
	writing bool
}

// seen is the sync loop's own state. Maps are by container ID.
type seen struct {
	health   map[string]Health
	messages map[string]string // termination messages
	panics   int               // of steps, in a row
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
	if p.Status.Reason == eviction.Reason && !isTerminal(p) { // an earlier agent began to evict it
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
	// the machine, or the agent, went down before the pod had ended
	if p.Status.Reason == shutdownReason && !isTerminal(p) {
		w.end.verdict = &Verdict{Reason: shutdownReason, Message: shutdownMessage, Disrupted: true}
	}
	return w
}

// update handles a newer version of the pod.
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

// older compares resource versions of one object (KEP-5504: they are comparable numbers).
func older(a, b string) bool {
	return len(a) < len(b) || len(a) == len(b) && a < b
}

// removed handles the deletion of the pod from the API; p is its last version.
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

// objectChanged is called when a config map or secret that the pod refers to changed.
func (w *worker) objectChanged() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held.stale = true
	for k, f := range w.actions.failures {
		if k == string(MountVolumes) || f.Reason == "CreateContainerConfigError" {
			delete(w.actions.failures, k)
		}
	}
	w.loop.wake()
}

// retryNow ends the back-off of an action that failed.
func (w *worker) retryNow(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, has := w.actions.failures[key]; has {
		delete(w.actions.failures, key)
		w.loop.wake()
	}
}

// view is the pod with the status that the agent knows. Called with the lock held.
func (w *worker) view() *corev1.Pod {
	if w.status.want == nil {
		return w.api.pod
	}
	p := *w.api.pod
	p.Status = overlay(&w.api.pod.Status, w.status.want, w.m.c.Parts)
	return &p
}

// ended reports whether the pod has ended, as view has it. Called with the lock held.
func (w *worker) ended() bool {
	return isTerminal(w.api.pod) || w.status.want != nil && hasEnded(w.status.want.Phase)
}

// current returns a copy of view, or nil for an orphan, of which only the UID is known.
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

// notifier wakes all waiters when something changed.
type notifier struct {
	mu      sync.Mutex
	changed chan struct{}
}

// wait returns a channel that is closed at the next change. Take it before looking at what may change.
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

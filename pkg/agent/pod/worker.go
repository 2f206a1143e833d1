package pod

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/agent/eviction"
	"github.com/coracle-dev/coracle/pkg/agent/network"
	"github.com/coracle-dev/coracle/pkg/agent/probe"
	"github.com/coracle-dev/coracle/pkg/agent/runtime"
	"github.com/coracle-dev/coracle/pkg/agent/volume"
)

// worker holds one pod. It has a goroutine only while there is something to decide.
//
//	event -> wake -> step: observe, Plan, launch actions, compute status -> (timer | action done | event) -> wake
type worker struct {
	m   *Manager
	uid types.UID

	mu       sync.Mutex
	pod      *corev1.Pod // as the API gave it last
	gone     bool
	drained  chan struct{} // not nil while the node stops; closed once nothing of the pod runs
	ended    chan struct{} // not nil once evicted; closed when all that it took is given back
	verdict  *Verdict
	start    time.Time
	active   bool // a goroutine is stepping
	dirty    bool
	panics   int  // of steps, in a row
	resting  bool // until a timer wakes it, since a step panicked
	timer    *time.Timer
	sandbox  *network.Sandbox
	volumes  *volume.Ready
	stale    bool
	released bool // what the pod shared is given back
	erased   bool // and its containers too
	deleted  bool // the API was told; its event is on the way
	busy     map[string]*op
	failures map[string]Failure
	health   map[string]Health
	applied  map[string]corev1.ResourceRequirements // by container ID
	messages map[string]string
	changed  chan struct{} // closed and made anew when a container changed

	want    *corev1.PodStatus // what the API should show
	sent    *corev1.PodStatus // what was written last; a server may not keep all of it
	answer  corev1.PodStatus  // what the API made of it
	posting bool
	postMu  sync.Mutex

	filesMu sync.Mutex
}

// op is an action in flight.
type op struct {
	Action
	cancel context.CancelFunc

	mu       sync.Mutex
	deadline time.Time
	sooner   chan struct{} // signalled when deadline moved
	final    bool          // SIGKILL is sent; there is nothing left to hurry
}

func newWorker(m *Manager, p *corev1.Pod) *worker {
	w := &worker{m: m, uid: p.UID, pod: p, busy: map[string]*op{}, failures: map[string]Failure{},
		health: map[string]Health{}, applied: map[string]corev1.ResourceRequirements{}, messages: map[string]string{}, changed: make(chan struct{}), start: time.Now()}
	if p.Status.StartTime != nil {
		w.start = p.Status.StartTime.Time
	}
	if p.Status.Reason == eviction.Reason && !isTerminal(p) { // an agent before this one had begun to
		w.verdict = &Verdict{Reason: eviction.Reason, Message: p.Status.Message, Evicted: true}
	}
	return w
}

func (w *worker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakeLocked()
}

func (w *worker) wakeLocked() {
	w.dirty = true
	if w.active || w.resting {
		return
	}
	w.active = true
	if !w.m.goRun(w.loop) {
		w.active = false
	}
}

func (w *worker) loop() {
	for {
		w.mu.Lock()
		if !w.dirty || w.resting || w.m.ctx.Err() != nil {
			w.active = false
			w.mu.Unlock()
			return
		}
		w.dirty = false
		gone := w.safely()
		if gone || w.resting {
			w.active = false
		}
		w.mu.Unlock()
		if gone {
			w.m.forget(w)
			return
		}
	}
}

// The pause after a step that panicked, doubled with each that follows.
const (
	firstRest = time.Second
	mostRest  = 5 * time.Minute
)

// safely is step. A pod with which it panics rests, whatever happens to it meanwhile, and the others go on. Called with the
// lock held.
func (w *worker) safely() (gone bool) {
	err := w.m.guard.Do("pod sync", func() { gone = w.step() }, "pod", w.pod.Namespace+"/"+w.pod.Name)
	if err == nil {
		w.panics = 0
		return gone
	}
	w.dirty, w.resting = true, true
	rest := min(firstRest<<min(w.panics, 10), mostRest)
	w.panics++
	if w.timer != nil {
		w.timer.Stop()
	}
	w.timer = time.AfterFunc(rest, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.resting = false
		w.wakeLocked()
	})
	return false
}

// update takes a newer version of the pod.
func (w *worker) update(p *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.pod
	if older(p.ResourceVersion, old.ResourceVersion) {
		return
	}
	w.pod = p
	if w.sent != nil && !apiequality.Semantic.DeepEqual(p.Status, w.answer) {
		w.sent = nil // someone else wrote the status; ours is written again
	}
	if !maps.Equal(old.Labels, p.Labels) || !maps.Equal(old.Annotations, p.Annotations) {
		w.stale = true
		clear(w.failures)
	}
	if old.Generation != p.Generation {
		clear(w.failures)
	}
	w.wakeLocked()
}

// older compares resource versions of one object (KEP-5504: they are comparable numbers).
func older(a, b string) bool {
	return len(a) < len(b) || len(a) == len(b) && a < b
}

func (w *worker) vanish(p *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !older(p.ResourceVersion, w.pod.ResourceVersion) {
		w.pod = p
	}
	w.gone = true
	w.wakeLocked()
}

func (w *worker) containersChanged() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
	w.wakeLocked()
}

func (w *worker) objectChanged() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stale = true
	for k, f := range w.failures {
		if k == string(MountVolumes) || f.Reason == "CreateContainerConfigError" {
			delete(w.failures, k)
		}
	}
	w.wakeLocked()
}

func (w *worker) forgive(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, has := w.failures[key]; has {
		delete(w.failures, key)
		w.wakeLocked()
	}
}

func (w *worker) stopTimer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
}

// view is the pod with the status that the agent knows. Called with the lock held.
func (w *worker) view() *corev1.Pod {
	if w.want == nil {
		return w.pod
	}
	p := *w.pod
	p.Status = overlay(&w.pod.Status, w.want)
	return &p
}

// overlay keeps of the API's status what others write.
func overlay(api, ours *corev1.PodStatus) corev1.PodStatus {
	s := *ours
	s.QOSClass, s.NominatedNodeName, s.ResourceClaimStatuses = api.QOSClass, api.NominatedNodeName, api.ResourceClaimStatuses
	s.Conditions = nil
	disrupted := false
	for _, c := range ours.Conditions {
		by := c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonTerminationByKubelet
		disrupted = disrupted || by
		if owned(c.Type) || by {
			s.Conditions = append(s.Conditions, c)
		}
	}
	for _, c := range api.Conditions {
		if !owned(c.Type) && !(disrupted && c.Type == corev1.DisruptionTarget) {
			s.Conditions = append(s.Conditions, c)
		}
	}
	return s
}

func owned(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodResizePending, corev1.PodResizeInProgress, corev1.PodScheduled, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodReadyToStartContainers:
		return true
	}
	return false
}

func (w *worker) current() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone && w.pod.Spec.NodeName == "" {
		return nil // an orphan, of which only the UID is known
	}
	return w.view().DeepCopy()
}

// observe collects what Plan looks at. Called with the lock held.
func (w *worker) observe(p *corev1.Pod) Observed {
	o := Observed{
		Gone: w.gone, Began: w.m.began, Deleted: w.deleted, Draining: w.drained != nil, Verdict: w.verdict, Sandbox: w.sandbox != nil, Volumes: w.volumes != nil, Stale: w.stale,
		Released: w.released, Containers: group(w.m.containersOf(w.uid)), Busy: make(map[string]Kind, len(w.busy)),
		Failures: w.failures, Health: w.health, Applied: w.applied,
	}
	if w.gone || p.DeletionTimestamp != nil {
		o.Released = w.erased
	}
	if w.volumes != nil {
		o.Refresh = w.volumes.Refresh
	}
	for k, b := range w.busy {
		o.Busy[k] = b.Kind
	}
	ending := w.gone || p.DeletionTimestamp != nil || w.verdict != nil || w.drained != nil || isTerminal(p)
	known := map[string]bool{}
	for name, list := range o.Containers {
		c := list[0]
		known[c.ID] = true
		if _, has := w.applied[c.ID]; !has {
			if r := toldResources(p, c); r != nil { // by an agent before this one
				w.applied[c.ID] = *r
			}
		}
		if c.State != runtime.Running {
			w.m.probes.Stop(c.ID)
			continue
		}
		if w.sandbox == nil { // just after a start of the agent: nothing is known to have changed
			w.health[c.ID] = told(p, c)
			continue
		}
		if o.Busy[name] == Start { // its postStart hook runs; probes begin after it
			w.health[c.ID] = Health{}
			continue
		}
		w.health[c.ID] = w.probe(p, c, ending || o.Busy[name] == Kill)
	}
	for id := range w.applied {
		if !known[id] {
			delete(w.applied, id)
		}
	}
	for id := range w.health {
		if !known[id] {
			w.m.probes.Stop(id)
			delete(w.health, id)
		}
	}
	return o
}

// probe returns the health of a running container. For a container that is ending only the readiness probe runs.
func (w *worker) probe(p *corev1.Pod, c Instance, ending bool) Health {
	spec, _, ephemeral := containerOf(p, c.Name)
	if spec == nil || ephemeral {
		return Health{Started: true, Ready: true}
	}
	t := probe.Target{UID: w.uid, Container: spec, ContainerID: c.ID, PodIP: w.podIP(), StartedAt: c.StartedAt, Ending: ending,
		Event: func(kind, reason, message string) { w.m.event(p, c.Name, kind, reason, message) }}
	before := told(p, c)
	t.Ready, t.Started = before.Ready, before.Started
	r := w.m.probes.Watch(w.m.ctx, t)
	h := Health{Started: r.Started, Ready: r.Ready, Failed: r.Failed, Why: r.Why, Grace: r.Grace}
	if h.Failed {
		h.Why += ", will be restarted"
	}
	return h
}

func toldResources(p *corev1.Pod, c Instance) *corev1.ResourceRequirements {
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for _, s := range list {
			if s.ContainerID == "containerd://"+c.ID && s.Name == c.Name {
				return s.Resources
			}
		}
	}
	return nil
}

// told is what the status says of this very instance.
func told(p *corev1.Pod, c Instance) Health {
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for _, s := range list {
			if s.ContainerID == "containerd://"+c.ID && s.Name == c.Name {
				return Health{Ready: s.Ready, Started: s.Started != nil && *s.Started}
			}
		}
	}
	return Health{}
}

func (w *worker) podIP() string {
	if w.pod.Spec.HostNetwork {
		return w.m.c.HostIP
	}
	if w.sandbox != nil && w.sandbox.IP.IsValid() {
		return w.sandbox.IP.String()
	}
	return ""
}

// step decides and launches. It returns true once nothing of the pod is left. Called with the lock held.
func (w *worker) step() bool {
	p := w.view()
	now := time.Now()
	o := w.observe(p)
	d := Plan(p, o, now)
	if d.Verdict != nil && w.verdict == nil {
		w.verdict = d.Verdict
		w.m.event(p, "", corev1.EventTypeNormal, d.Verdict.Reason, d.Verdict.Message)
	}
	for _, a := range d.Actions {
		if a.Kind == Cancel {
			if b := w.busy[a.Target]; b != nil {
				b.cancel()
			}
			continue
		}
		w.launch(p, a)
		o.Busy[a.Target] = a.Kind
	}
	if d.Stopping {
		for _, b := range w.busy {
			if b.Kind == Kill {
				b.hurry(now.Add(d.Grace))
			}
		}
	}
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	if !d.Wake.IsZero() {
		w.timer = time.AfterFunc(max(time.Until(d.Wake), 0), w.wake)
	}
	if o.Draining && d.Stopped && o.Released {
		closeOnce(w.drained)
	}
	if d.Stopped && o.Released && len(o.Containers) == 0 {
		closeOnce(w.ended)
	}
	if d.Forgotten {
		return !w.dirty && len(w.busy) == 0
	}
	// A node that stops says nothing of its containers' ends: the pod is not over.
	if !w.gone && !o.Draining {
		w.report(p, o, d, now)
	}
	return false
}

func (w *worker) report(p *corev1.Pod, o Observed, d Decision, now time.Time) {
	s := Status(p, o, d, Facts{PodIP: w.podIP(), HostIP: w.m.c.HostIP, Start: w.start, Message: w.message}, now)
	if until := replaced(p, o, now); !until.IsZero() {
		if w.timer == nil {
			w.timer = time.AfterFunc(time.Until(until), w.wake)
		}
		return
	}
	w.backOffEvents(p, &s)
	w.want = &s
	w.post()
}

// replaced tells until when the status should wait for a container that is on its way to a changed
// specification: the change is told once it is done, or a second after the old one ended.
func replaced(p *corev1.Pod, o Observed, now time.Time) time.Time {
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		l := o.latest(c.Name)
		if l == nil || l.State != runtime.Exited || o.Busy[c.Name] != Start || !changed(l, c) {
			continue
		}
		if until := l.FinishedAt.Add(time.Second); now.Before(until) {
			return until
		}
	}
	return time.Time{}
}

// post writes the status in the background if it differs. Called with the lock held.
func (w *worker) post() {
	full := overlay(&w.pod.Status, w.want)
	if w.posting || w.gone || apiequality.Semantic.DeepEqual(w.pod.Status, full) ||
		w.sent != nil && apiequality.Semantic.DeepEqual(*w.sent, full) {
		return
	}
	w.posting = true
	if !w.m.goRun(w.postLoop) {
		w.posting = false
	}
}

func (w *worker) backOffEvents(p *corev1.Pod, s *corev1.PodStatus) {
	waiting := func(list []corev1.ContainerStatus) map[string]bool {
		m := map[string]bool{}
		for _, c := range list {
			m[c.Name] = c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff"
		}
		return m
	}
	for i, now := range [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses} {
		before := waiting([][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses}[i])
		after := waiting(now)
		for _, name := range sortedKeys(after) {
			if after[name] && !before[name] {
				w.m.event(p, name, corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container "+name+
					" in pod "+p.Name+"_"+p.Namespace+"("+string(p.UID)+")")
			}
		}
	}
}

func (o *op) hurry(t time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t.Before(o.deadline) && !o.final {
		o.deadline = t
		select {
		case o.sooner <- struct{}{}:
		default:
		}
	}
}

func (o *op) end() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.deadline
}

// doSafely is do. An action that panics has failed.
func (w *worker) doSafely(ctx context.Context, p *corev1.Pod, b *op) (f *Failure) {
	err := w.m.guard.Do("pod action", func() { f = w.do(ctx, p, b) }, "pod", p.Namespace+"/"+p.Name, "action", b.Kind, "on", b.Target)
	if err != nil {
		w.m.event(p, "", corev1.EventTypeWarning, "InternalError", "internal error of the node's agent: "+err.Error())
		return w.fail(b.Target, "InternalError", err, time.Second)
	}
	return f
}

// launch runs an action in the background and wakes the worker when it is done. Called with the lock held.
func (w *worker) launch(p *corev1.Pod, a Action) {
	ctx, cancel := context.WithCancel(w.m.ctx)
	b := &op{Action: a, cancel: cancel, sooner: make(chan struct{}, 1), deadline: time.Now().Add(a.Grace)}
	w.busy[a.Target] = b
	if !w.m.goRun(func() {
		defer cancel()
		began := time.Now()
		f := w.doSafely(ctx, p, b)
		w.m.log.Debug("pod action", "pod", p.Namespace+"/"+p.Name, "action", a.Kind, "on", a.Target, "took", time.Since(began), "failure", f)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.busy, a.Target)
		switch {
		case f != nil && ctx.Err() == nil:
			w.failures[a.Target] = *f
		case ctx.Err() == nil:
			delete(w.failures, a.Target)
		}
		w.wakeLocked()
	}) {
		cancel()
		delete(w.busy, a.Target)
	}
}

package pod

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/devices/dra"
	"github.com/coracle-dev/coracle/pkg/node/pod/probe"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// The pause after a step that panicked, doubled with each consecutive panic.
const (
	firstPause = time.Second
	maxPause   = 5 * time.Minute
)

// stepGuarded calls step. A panic pauses only this pod, and no event ends the pause early.
func (w *worker) stepGuarded() (o outcome) {
	w.mu.Lock()
	p := w.api.pod
	w.mu.Unlock()
	if err := w.m.guard.Do("pod sync", func() { o.done = w.step() }, "pod", p.Namespace+"/"+p.Name); err != nil {
		o.pause = min(firstPause<<min(w.seen.panics, 10), maxPause)
		w.seen.panics++
		return o
	}
	w.seen.panics = 0
	return o
}

// snapshot copies the shared state that Plan needs. observe adds the rest.
func (w *worker) snapshot() (*corev1.Pod, Observed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, a := w.allocated(), &w.held.allocation
	o := Observed{
		Gone: w.api.gone, Began: w.m.began, Boot: w.m.c.BootID, Deleted: w.api.deleted, Draining: w.end.drained != nil,
		Waiting: w.end.waits || w.m.shuttingDown(), Verdict: w.end.verdict, By: w.end.by,
		Sandbox: w.held.sandbox != nil, Volumes: w.held.volumes != nil, Stale: w.held.stale, Released: w.held.released,
		Busy: make(map[string]Kind, len(w.actions.inFlight)), Failures: maps.Clone(w.actions.failures),
		Unallocated: a.desires(w.api.pod), Share: a.share, Generation: a.Generation, Limits: a.Limits, Amounts: a.Amounts,
		Resizing: a.Resizing,
		podIP:    w.podIP(),
	}
	if w.api.gone || p.DeletionTimestamp != nil {
		o.Released = w.held.erased
	}
	if w.held.volumes != nil {
		o.Refresh = w.held.volumes.Refresh
	}
	for k, a := range w.actions.inFlight {
		o.Busy[k] = a.Kind
	}
	return p, o
}

func (w *worker) observe(p *corev1.Pod, o *Observed) {
	o.Containers = group(w.m.containers.of(w.uid))
	health, have := map[string]Health{}, map[string]amounts{}
	ending := o.Gone || p.DeletionTimestamp != nil || o.Verdict != nil || o.Draining || isTerminal(p)
	for name, list := range o.Containers {
		c := list[0]
		have[c.ID] = amountsGiven(p, c, o.Amounts)
		switch before, has := w.seen.health[c.ID]; {
		case c.State != runtime.Running:
			w.m.probes.Stop(c.ID)
			if has {
				health[c.ID] = before
			}
		case !o.Sandbox: // the agent has just started: the last reported health holds
			health[c.ID] = healthInStatus(p, c)
		case o.Busy[name] == Start && hooked(p, name): // its postStart hook runs; probes begin after it
			health[c.ID] = Health{}
		default:
			health[c.ID] = w.probe(p, c, o.podIP, ending || o.Busy[name] == Kill)
		}
	}
	o.Claimed = w.m.c.Claims != nil && dra.Uses(p) && w.m.c.Claims.Holds(w.uid)
	w.observeParts(p, o, ending)
	for id := range w.seen.health {
		if _, known := health[id]; !known {
			w.m.probes.Stop(id)
		}
	}
	w.seen.health, o.Health, o.Amounts = health, health, have
	known := map[string]bool{}
	for _, instances := range o.Containers {
		for _, c := range instances {
			known[c.ID] = true
		}
	}
	maps.DeleteFunc(w.seen.messages, func(id, _ string) bool { return !known[id] })
}

// observeParts reports the newest instance of the pod's first container to the parts.
func (w *worker) observeParts(p *corev1.Pod, o *Observed, ending bool) {
	if len(p.Spec.Containers) == 0 {
		return
	}
	l := o.latest(p.Spec.Containers[0].Name)
	for _, part := range w.m.c.Parts {
		if ending {
			part.Close(w.uid)
		}
		if l != nil {
			part.Observe(w.uid, l.ID, l.State == runtime.Running)
		}
	}
}

// probe returns the health of a running container. For a container that is ending only the readiness probe runs.
func (w *worker) probe(p *corev1.Pod, c Instance, podIP string, ending bool) Health {
	spec, _, ephemeral := containerOf(p, c.Name)
	if spec == nil || ephemeral {
		return Health{Started: true, Ready: true}
	}
	t := probe.Target{UID: w.uid, Container: spec, ContainerID: c.ID, PodIP: podIP, StartedAt: c.StartedAt, Ending: ending,
		HostNetwork: p.Spec.HostNetwork,
		Expand:      func(command []string) ([]string, error) { return expandStatic(command, spec.Env) },
		Event:       func(kind, reason, message string) { w.m.event(p, c.Name, kind, reason, message) }}
	before := healthInStatus(p, c)
	t.Ready, t.Started = before.Ready, before.Started
	r := w.m.probes.Watch(w.m.ctx, t)
	return Health{Started: r.Started, Ready: r.Ready, Failed: r.Failed, Why: r.Why, Grace: r.Grace}
}

func healthInStatus(p *corev1.Pod, c Instance) Health {
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for _, s := range list {
			if s.ContainerID == "containerd://"+c.ID && s.Name == c.Name {
				return Health{Ready: s.Ready, Started: s.Started != nil && *s.Started}
			}
		}
	}
	return Health{}
}

// step observes, plans, launches actions and computes the status. It returns true when nothing of the pod is left.
func (w *worker) step() bool {
	p, o := w.snapshot()
	w.observe(p, &o)
	now := time.Now()
	d := Plan(p, o, now)
	w.execute(p, &o, d, now)
	wake := d.Wake
	if o.Draining && d.Stopped && o.Released {
		w.mu.Lock()
		closeOnce(w.end.drained)
		w.mu.Unlock()
	}
	if d.Stopped && o.Released && len(o.Containers) == 0 {
		w.mu.Lock()
		closeOnce(w.end.evicted)
		w.mu.Unlock()
	}
	// Containers that exit because the node stops do not terminate the pod, so its status stays as it is.
	if !d.Forgotten && !o.Gone && !o.Draining {
		if until := w.report(p, o, d, now); wake.IsZero() || !until.IsZero() && until.Before(wake) {
			wake = until
		}
	}
	w.loop.wakeAt(wake)
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.Stopped && o.Released {
		closeOnce(w.end.down)
	}
	if !d.Forgotten {
		return false
	}
	return w.loop.quiet() && len(w.actions.inFlight) == 0
}

func (w *worker) execute(p *corev1.Pod, o *Observed, d Decision, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.Verdict != nil && w.end.verdict == nil {
		w.end.verdict = d.Verdict
		w.m.event(p, "", corev1.EventTypeNormal, d.Verdict.Reason, d.Verdict.Message)
	}
	for _, a := range d.Actions {
		if a.Kind == Cancel {
			if b := w.actions.inFlight[a.Target]; b != nil {
				b.cancel()
			}
			continue
		}
		w.launch(p, a)
		o.Busy[a.Target] = a.Kind
	}
	if d.Stopping || d.Resetting {
		for _, b := range w.actions.inFlight {
			if b.Kind == Kill {
				b.hurry(now.Add(d.Grace), o.By)
			}
		}
	}
}

// report computes the status and posts it unless it is held back. It returns when to compute it again, or zero.
func (w *worker) report(p *corev1.Pod, o Observed, d Decision, now time.Time) time.Time {
	if o.undecided() {
		return time.Time{}
	}
	f := Facts{
		PodIP:   o.podIP,
		HostIP:  w.m.c.HostIP,
		Start:   w.start,
		Message: func(i Instance) string { return w.message(p, i) },
	}
	f.Devices, f.Owned = w.m.deviceHealth(p), w.m.owner(p) != ""
	for _, part := range w.m.c.Parts {
		if c := part.Condition(w.uid); c != nil {
			f.Conditions = append(f.Conditions, *c)
		}
	}
	s := Status(p, o, d, f, now)
	if until := replaced(p, o, now); !until.IsZero() {
		return until
	}
	w.backOffEvents(p, &s)
	w.resizeEvents(p, &s)
	w.reported(p, s.Phase)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.want = &s
	first, again := settleFor(f.Owned)
	until := w.birth.seen.Add(first)
	if w.status.sent != nil {
		until = w.status.at.Add(again)
	}
	// conditions of parts are written without delay
	if now.Before(until) && len(o.Failures) == 0 && len(f.Conditions) == 0 && starting(p, &s) {
		return until
	}
	if until := brief(w.api.pod, f.Owned, w.birth.seen, &o, &s, now); !until.IsZero() {
		return until
	}
	w.post()
	return time.Time{}
}

// settle delays the first status of a pod, since most pods run by then. Later progress is written every settleAgain.
const (
	settle      = 200 * time.Millisecond
	settleAgain = 5 * time.Second
)

func starting(p *corev1.Pod, s *corev1.PodStatus) bool {
	if s.Phase != corev1.PodPending || p.DeletionTimestamp != nil {
		return false
	}
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses) {
		if w := c.State.Waiting; w == nil || w.Message != "" ||
			w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return false
		}
	}
	return true
}

// hooked reports whether a container has a postStart hook, which delays its readiness.
func hooked(p *corev1.Pod, name string) bool {
	c, _, _ := containerOf(p, name)
	return c != nil && c.Lifecycle != nil && c.Lifecycle.PostStart != nil
}

// replaced returns until when the status is withheld because a container restarts with a changed specification:
// until the new instance runs, but at most a second. Otherwise it returns zero.
func replaced(p *corev1.Pod, o Observed, now time.Time) time.Time {
	if p.DeletionTimestamp != nil {
		return time.Time{}
	}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		instances, doing := o.Containers[c.Name], o.Busy[c.Name]
		if len(instances) > 1 && instances[0].State == runtime.Created {
			instances = instances[1:] // the replacement is created but not running
		}
		if len(instances) == 0 || doing != Kill && doing != Start {
			continue
		}
		l := &instances[0]
		if l.State != runtime.Exited || !changed(l, c) {
			continue
		}
		if until := l.FinishedAt.Add(time.Second); now.Before(until) {
			return until
		}
	}
	return time.Time{}
}

// ended returns ": Error, exit code 3".
func ended(t *corev1.ContainerStateTerminated) string {
	if t.Reason == "" {
		return ""
	}
	return fmt.Sprintf(": %s, exit code %d", t.Reason, t.ExitCode)
}

func (w *worker) backOffEvents(p *corev1.Pod, s *corev1.PodStatus) {
	waiting := func(list []corev1.ContainerStatus) map[string]*corev1.ContainerStateTerminated {
		m := map[string]*corev1.ContainerStateTerminated{}
		for _, c := range list {
			if c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff" {
				m[c.Name] = cmp.Or(c.LastTerminationState.Terminated, &corev1.ContainerStateTerminated{})
			}
		}
		return m
	}
	for i, now := range [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses} {
		before := waiting([][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses}[i])
		after := waiting(now)
		for _, name := range slices.Sorted(maps.Keys(after)) {
			if before[name] == nil {
				w.m.event(p, name, corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container "+name+
					" in pod "+p.Name+"_"+p.Namespace+"("+string(p.UID)+")"+ended(after[name]))
			}
		}
	}
}

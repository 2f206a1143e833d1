package pod

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Kind is the kind of an action.
type Kind string

const (
	// SetupSandbox and MountVolumes prepare the pod; they may run concurrently.
	SetupSandbox Kind = "sandbox"
	MountVolumes Kind = "volumes"
	// Start pulls, creates and starts one instance and runs its postStart hook.
	Start  Kind = "start"
	Cancel Kind = "cancel"
	// Kill stops one instance gracefully.
	Kill Kind = "kill"
	// Allocate requests the specification's resize. Resize sets the cgroups to the allocated resources.
	Allocate Kind = "allocate"
	Resize   Kind = "resize"
	// Remove removes an old instance.
	Remove Kind = "remove"
	// Release releases network and volumes, and with Forget also the containers.
	Release Kind = "release"
	// Delete deletes the pod from the API after writing its final status.
	Delete Kind = "delete"
)

// The targets of Allocate and Resize, which no container name can equal.
const (
	allocateTarget = "#allocate"
	resizeTarget   = "#resize"
)

// Action is one step. At most one action per Target is in flight.
type Action struct {
	Kind    Kind
	Target  string // a container's name, or the Kind itself
	ID      string
	Attempt int
	BackOff time.Duration
	Round   int // of a Start: the instance's round
	Grace   time.Duration
	By      time.Time // of a Kill: the latest time for SIGKILL; zero for none
	NoHook  bool      // of a Kill: skip the preStop hook
	Reason  string    // of a Kill, for its event
	Forget  bool
}

// Decision is what to do now, and when to plan again if nothing changes before.
type Decision struct {
	Actions []Action
	Wake    time.Time
	// Stopping means that the pod is being terminated, Stopped that nothing of it runs any more.
	Stopping, Stopped bool
	// Initialized means that a main container was created since the init containers last ran.
	Initialized bool
	// Round is the current or beginning round of the pod's containers. Source is the instance whose exit ended the
	// previous round, until the next one begins. Resetting means that containers of the ended round still run.
	Round     int
	Source    *Instance
	Resetting bool
	// Grace is the containers' grace period while the pod is stopping or resetting.
	Grace time.Duration
	// Forgotten means that nothing of the pod is left on the node or in the API.
	Forgotten bool
	Verdict   *Verdict
}

const killFailed = "KillContainerError"

type planner struct {
	pod *corev1.Pod
	o   Observed
	now time.Time
	d   Decision

	resizing bool // a resize is in flight or about to start
}

// Plan returns all actions for a pod that can start now; none if it waits. It is a pure function.
func Plan(p *corev1.Pod, o Observed, now time.Time) Decision {
	pl := &planner{pod: p, o: o, now: now}
	r := roundOf(p, o)
	pl.d.Round, pl.d.Source = r.number, r.source
	pl.d.Verdict = o.Verdict
	if pl.d.Verdict == nil {
		pl.d.Verdict = pl.deadline()
	}
	if o.Gone || o.Draining || p.DeletionTimestamp != nil || pl.d.Verdict != nil || isTerminal(p) || pl.finished() {
		pl.stop()
	} else {
		pl.run()
	}
	pl.d.Initialized = pl.initialized()
	return pl.d
}

func (pl *planner) add(a Action) {
	if _, busy := pl.o.Busy[a.Target]; !busy {
		pl.d.Actions = append(pl.d.Actions, a)
	}
}

func (pl *planner) wake(t time.Time) {
	if pl.d.Wake.IsZero() || t.Before(pl.d.Wake) {
		pl.d.Wake = t
	}
}

func (pl *planner) deadline() *Verdict {
	p := pl.pod
	if p.Spec.ActiveDeadlineSeconds == nil || p.Status.StartTime == nil || isTerminal(p) {
		return nil
	}
	end := p.Status.StartTime.Add(time.Duration(*p.Spec.ActiveDeadlineSeconds) * time.Second)
	if pl.now.Before(end) {
		pl.wake(end)
		return nil
	}
	return &Verdict{Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline"}
}

// finished reports whether all containers have ended for good, or initialization has failed for good.
func (pl *planner) finished() bool {
	p, o := pl.pod, pl.o
	if pl.d.Source != nil {
		return false
	}
	ended := func(c *corev1.Container, init bool) bool {
		l := pl.inRound(c.Name)
		return l != nil && l.State == runtime.Exited && !busy(o, c.Name) && !o.restarts(p, c, l, init) && !changed(l, c)
	}
	created, left := false, len(p.Spec.Containers)
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		created = created || pl.inRound(c.Name) != nil
		if ended(c, false) {
			left--
		}
	}
	if created && left == 0 {
		return true
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if !pl.initialized() && !isSidecar(c) && ended(c, true) && pl.inRound(c.Name).ExitCode != 0 {
			return true
		}
	}
	return false
}

func busy(o Observed, name string) bool { _, b := o.Busy[name]; return b }

func (pl *planner) run() {
	o := pl.o
	if o.Waiting {
		return
	}
	if o.Unallocated {
		pl.retry(allocateTarget, Action{Kind: Allocate, Target: allocateTarget})
	}
	if !o.Sandbox {
		pl.retry(string(SetupSandbox), Action{Kind: SetupSandbox, Target: string(SetupSandbox)})
	}
	if !o.Volumes || o.Stale {
		pl.retry(string(MountVolumes), Action{Kind: MountVolumes, Target: string(MountVolumes)})
	} else if !o.Refresh.IsZero() {
		if pl.now.Before(o.Refresh) {
			pl.wake(o.Refresh)
		} else {
			pl.retry(string(MountVolumes), Action{Kind: MountVolumes, Target: string(MountVolumes)})
		}
	}
	if !o.Sandbox || !o.Volumes {
		return
	}
	pl.resize()
	if pl.nextRound() && pl.initialize() {
		for i := range pl.pod.Spec.Containers {
			pl.keepRunning(&pl.pod.Spec.Containers[i], false)
		}
	}
	for i := range pl.pod.Spec.EphemeralContainers {
		e := corev1.Container(pl.pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		if o.latest(e.Name) == nil {
			pl.start(&e, nil)
		}
	}
	for name, l := range o.Containers {
		for _, old := range l[min(2, len(l)):] {
			if old.State == runtime.Exited {
				pl.add(Action{Kind: Remove, Target: name + "#" + old.ID, ID: old.ID})
			}
		}
	}
}

// kill plans to stop an instance. It backs off only after a failed kill.
func (pl *planner) kill(a Action) {
	if f, failed := pl.o.Failures[a.Target]; failed && f.Reason == killFailed && pl.now.Before(f.Until) {
		pl.wake(f.Until)
		return
	}
	a.Kind, a.By = Kill, pl.o.By
	pl.add(a)
}

func (pl *planner) resize() {
	if pl.o.resizable(pl.pod) {
		pl.retry(resizeTarget, Action{Kind: Resize, Target: resizeTarget})
	}
	pl.resizing = busy(pl.o, resizeTarget) ||
		slices.ContainsFunc(pl.d.Actions, func(a Action) bool { return a.Kind == Resize })
}

func (pl *planner) retry(key string, a Action) {
	if f, failed := pl.o.Failures[key]; failed && pl.now.Before(f.Until) {
		pl.wake(f.Until)
		return
	}
	pl.add(a)
}

// initialize plans the next steps of the init containers and reports whether the main containers may run. The last
// init container that was created shows how far initialization is: those before it have succeeded or started once,
// even if the runtime has lost them. Their sidecars are kept running, and nothing waits for them again.
func (pl *planner) initialize() bool {
	o, list, next := pl.o, pl.pod.Spec.InitContainers, 0
	for i := range list {
		if pl.current(list[i].Name) != nil {
			next = i
		}
	}
	if pl.initialized() {
		next = len(list)
	}
	for i := range list {
		c := &list[i]
		l := pl.current(c.Name)
		if isSidecar(c) {
			pl.keepRunning(c, true)
			if i < next {
				continue
			}
			if l == nil || l.State != runtime.Running || busy(o, c.Name) || !o.Health[l.ID].Started {
				return false
			}
			continue
		}
		if i < next || l != nil && l.State == runtime.Exited && l.ExitCode == 0 {
			continue
		}
		pl.keepRunning(c, true)
		return false
	}
	return true
}

// initialized reports whether a main container was created in this round and boot, so that initialization is complete.
func (pl *planner) initialized() bool {
	for i := range pl.pod.Spec.Containers {
		if pl.current(pl.pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

// keepRunning starts a container, and restarts it when it exited, failed a probe, or its specification changed.
func (pl *planner) keepRunning(c *corev1.Container, init bool) {
	l := pl.o.latest(c.Name)
	if l == nil {
		pl.start(c, nil)
		return
	}
	if l.Round < pl.d.Round {
		wait := l.BackOff // restarted for another container's exit: its back-off stays
		if endsRound(c, l) {
			wait = nextBackOff(l)
		}
		pl.startAt(c, l.Attempt+1, wait)
		return
	}
	if init && l.State == runtime.Exited && pl.stale(l) { // also if it has succeeded
		pl.startAt(c, l.Attempt+1, l.BackOff)
		return
	}
	switch l.State {
	case runtime.Created:
		// The start was interrupted: continue with the same attempt.
		pl.startAt(c, l.Attempt, l.BackOff)
	case runtime.Running:
		h := pl.o.Health[l.ID]
		switch {
		case h.Failed:
			grace := graceOf(pl.pod)
			if h.Grace != nil {
				grace = time.Duration(*h.Grace) * time.Second
			}
			why := fmt.Sprintf("Container %s failed %s", c.Name, h.Why)
			if restartsKilled(pl.pod, c) {
				why += ", will be restarted"
			}
			pl.kill(Action{Target: c.Name, ID: l.ID, Grace: grace, Reason: why})
		case changed(l, c):
			pl.kill(Action{
				Target: c.Name,
				ID:     l.ID,
				Grace:  graceOf(pl.pod),
				Reason: fmt.Sprintf("Container %s definition changed, will be restarted", c.Name),
			})
		case pl.o.restartForResize(pl.pod, l, c):
			pl.kill(Action{
				Target: c.Name,
				ID:     l.ID,
				Grace:  graceOf(pl.pod),
				Reason: fmt.Sprintf("Container %s resize requires restart", c.Name),
			})
		}
	case runtime.Exited:
		if changed(l, c) || pl.o.restartForResize(pl.pod, l, c) { // the back-off was for another specification
			pl.startAt(c, l.Attempt+1, 0)
			return
		}
		if !pl.o.restarts(pl.pod, c, l, init) {
			return
		}
		// A container that exited before the agent started did not crash: the node was stopped or restarted.
		if at := l.FinishedAt.Add(waitOf(l)); pl.now.Before(at) && !l.FinishedAt.Before(pl.o.Began) {
			pl.wake(at)
			return
		}
		pl.start(c, l)
	}
}

func (pl *planner) start(c *corev1.Container, old *Instance) {
	attempt := nextAttempt(pl.pod, c.Name)
	if old != nil {
		attempt = old.Attempt + 1
	}
	pl.startAt(c, attempt, nextBackOff(old))
}

// nextAttempt returns the number of the next instance of a container that the runtime does not know.
func nextAttempt(p *corev1.Pod, name string) int {
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if list[i].Name == name && !neverRan(list[i]) {
				return int(list[i].RestartCount) + 1
			}
		}
	}
	return 0
}

func (pl *planner) startAt(c *corev1.Container, attempt int, backOff time.Duration) {
	if pl.resizing { // wait, so that the container starts with its new resources
		return
	}
	pl.retry(c.Name, Action{Kind: Start, Target: c.Name, Attempt: attempt, BackOff: backOff, Round: pl.d.Round})
}

// evictionGrace is short, since the node needs the resources of evicted pods.
const evictionGrace = time.Second

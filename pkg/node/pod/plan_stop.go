package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// clear plans to remove an evicted pod's containers once its final status is written. It returns true if none is left.
func (pl *planner) clear() bool {
	if !isTerminal(pl.pod) {
		pl.wake(pl.now)
		return false
	}
	done := true
	for name, list := range pl.o.Containers {
		for _, c := range list {
			done = false
			target := name + "#" + c.ID
			pl.retry(target, Action{Kind: Remove, Target: target, ID: c.ID})
		}
	}
	return done
}

func graceOf(p *corev1.Pod) time.Duration {
	if p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil {
		return time.Duration(*p.DeletionGracePeriodSeconds) * time.Second
	}
	if p.Spec.TerminationGracePeriodSeconds != nil {
		return time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	return 30 * time.Second
}

// stop plans the end of a pod: main containers first, then sidecars in reverse order, then shared resources.
func (pl *planner) stop() {
	p, o := pl.pod, pl.o
	pl.d.Stopping = true
	pl.d.Wake = time.Time{}
	for target, kind := range o.Busy {
		if kind == Start {
			pl.d.Actions = append(pl.d.Actions, Action{Kind: Cancel, Target: target})
		}
	}
	grace := graceOf(p)
	if o.Gone && p.DeletionTimestamp != nil {
		grace = min(grace, 2*time.Second)
	}
	evicted := pl.d.Verdict != nil && pl.d.Verdict.Evicted ||
		p.Status.Phase == corev1.PodFailed && (p.Status.Reason == eviction.Reason || p.Status.Reason == preempting)
	if evicted && (pl.d.Verdict == nil || !pl.d.Verdict.Preempted) {
		grace = min(grace, evictionGrace)
	}
	if !o.By.IsZero() {
		grace = max(min(grace, o.By.Sub(pl.now)), 0)
	}
	pl.d.Grace = grace
	sidecars := map[string]bool{}
	for i := range p.Spec.InitContainers {
		sidecars[p.Spec.InitContainers[i].Name] = isSidecar(&p.Spec.InitContainers[i])
	}
	left := false
	kill := func(name string) {
		for _, c := range o.Containers[name] {
			if c.State == runtime.Running {
				left = true
				pl.kill(Action{Target: name, ID: c.ID, Grace: grace, Reason: "Stopping container " + name})
			}
		}
		left = left || o.Busy[name] == Start || o.Busy[name] == Kill
	}
	for name := range o.Containers {
		if !sidecars[name] {
			kill(name)
		}
	}
	for name, kind := range o.Busy {
		left = left || kind == Start && !sidecars[name]
	}
	for i := len(p.Spec.InitContainers) - 1; i >= 0 && !left; i-- {
		if name := p.Spec.InitContainers[i].Name; sidecars[name] {
			kill(name)
		}
	}
	pl.d.Stopped = !left
	if left {
		return
	}
	forget := o.Gone || p.DeletionTimestamp != nil
	if evicted && !forget && !o.Draining && !pl.clear() {
		return
	}
	if busy(o, string(SetupSandbox)) || busy(o, string(MountVolumes)) || busy(o, allocateTarget) || busy(o, resizeTarget) {
		return // wait for them: what they acquire must be released
	}
	if !o.Released {
		pl.retry(string(Release), Action{Kind: Release, Target: string(Release), Forget: forget})
		return
	}
	if !o.Gone && !o.Deleted && p.DeletionTimestamp != nil {
		pl.retry(string(Delete), Action{Kind: Delete, Target: string(Delete)})
		return
	}
	pl.d.Forgotten = o.Gone && !o.anyBusy()
}

package pod

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// A container's restart rule can have the action RestartAllContainers (KEP-5532). When it matches an exit, all
// containers of the pod except ephemeral ones end and start again in the same sandbox with the same volumes.
// Instances are numbered by rounds: a round begins with the init containers after every container of the previous
// round has ended. The number is a label of each instance, so that a new agent continues where a killed one stopped.

const (
	// resetGrace is the grace period for ending a round. As in the kubelet, it replaces the pod's own and preStop
	// hooks.
	resetGrace = 2 * time.Second
	// resetReason is the kubelet's reason for containers that such a restart ends or delays.
	resetReason = "RestartingAllContainers"
)

type round struct {
	number int
	// source is the instance whose exit ends the round, or nil; of several, the one whose back-off ends last.
	source *Instance
}

func roundOf(p *corev1.Pod, o Observed) (r round) {
	if !mayRestartAll(p) {
		return r
	}
	for c := range containersOf(p) {
		if l := o.latest(c.Name); l != nil {
			r.number = max(r.number, l.Round)
		}
	}
	for c := range containersOf(p) {
		l := o.latest(c.Name)
		if l == nil || l.Round < r.number || !endsRound(c, l) || changed(l, c) || o.restartForResize(p, l, c) {
			continue
		}
		if r.source == nil || r.source.FinishedAt.Add(waitOf(r.source)).Before(l.FinishedAt.Add(waitOf(l))) {
			r.source = l
		}
	}
	return r
}

// containersOf yields a pod's init containers, then its main ones.
func containersOf(p *corev1.Pod) func(func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

func mayRestartAll(p *corev1.Pod) bool {
	for c := range containersOf(p) {
		if slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		}) {
			return true
		}
	}
	return false
}

// ruleFor returns the action of the container's first rule that matches the exit code, or "".
func ruleFor(c *corev1.Container, exit int) corev1.ContainerRestartRuleAction {
	for _, r := range c.RestartPolicyRules {
		if r.ExitCodes == nil {
			continue
		}
		in := slices.Contains(r.ExitCodes.Values, int32(exit))
		if in == (r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
			return r.Action
		}
	}
	return ""
}

func endsRound(c *corev1.Container, i *Instance) bool {
	return i.State == runtime.Exited && ruleFor(c, i.ExitCode) == corev1.ContainerRestartRuleActionRestartAllContainers
}

// nextRound plans the end of a round whose source has exited. It reports whether containers may start.
func (pl *planner) nextRound() bool {
	source := pl.d.Source
	if source == nil {
		return true
	}
	why := fmt.Sprintf("container %s exited with code %d, all containers of the pod will be restarted", source.Name,
		source.ExitCode)
	left := false
	for c := range containersOf(pl.pod) {
		if kind, busy := pl.o.Busy[c.Name]; busy {
			left = true
			if kind == Start {
				pl.d.Actions = append(pl.d.Actions, Action{Kind: Cancel, Target: c.Name})
			}
		}
		for _, i := range pl.o.Containers[c.Name] {
			switch i.State {
			case runtime.Running:
				left = true
				pl.kill(Action{
					Target: c.Name,
					ID:     i.ID,
					Grace:  resetGrace,
					NoHook: true,
					Reason: "Stopping container " + c.Name + ": " + why,
				})
			case runtime.Created: // never started
				left = true
				target := c.Name + "#" + i.ID
				pl.retry(target, Action{Kind: Remove, Target: target, ID: i.ID})
			}
		}
	}
	if left {
		pl.d.Resetting, pl.d.Grace = true, resetGrace
		return false
	}
	// After a restart of the agent or the machine there is no crash loop to slow down.
	if at := source.FinishedAt.Add(waitOf(source)); pl.now.Before(at) && !source.FinishedAt.Before(pl.o.Began) {
		pl.wake(at)
		return false
	}
	pl.d.Round++
	return true
}

// inRound returns a container's newest instance, or nil if it is of an earlier round.
func (pl *planner) inRound(name string) *Instance {
	if l := pl.o.latest(name); l != nil && l.Round >= pl.d.Round {
		return l
	}
	return nil
}

// current is inRound without instances of an earlier boot: their sandbox is gone, so the init containers run again.
func (pl *planner) current(name string) *Instance {
	if l := pl.inRound(name); l != nil && !pl.stale(l) {
		return l
	}
	return nil
}

func (pl *planner) stale(l *Instance) bool {
	return l.Boot != "" && pl.o.Boot != "" && l.Boot != pl.o.Boot
}

// sources returns, by round, when its first source exited, for rounds whose instances the runtime still has.
func sources(p *corev1.Pod, o Observed) map[int]time.Time {
	if !mayRestartAll(p) {
		return nil
	}
	all := map[int]time.Time{}
	for c := range containersOf(p) {
		for _, i := range o.Containers[c.Name] {
			if at, has := all[i.Round]; endsRound(c, &i) && (!has || i.FinishedAt.Before(at)) {
				all[i.Round] = i.FinishedAt
			}
		}
	}
	return all
}

// reset reports whether an instance ended because another one's exit restarted all containers of the pod.
func (b statusBuilder) reset(l Instance) bool {
	at, ended := b.sources[l.Round]
	if !ended || l.FinishedAt.Before(at) {
		return false
	}
	c, _, ephemeral := containerOf(b.p, l.Name)
	return c != nil && !ephemeral && !endsRound(c, &l)
}

func (b statusBuilder) betweenRounds(c *corev1.Container, l Instance, s *corev1.ContainerStatus) {
	s.LastTerminationState = corev1.ContainerState{Terminated: b.terminated(l)}
	w := &corev1.ContainerStateWaiting{Reason: resetReason, Message: "all containers of the pod are restarted"}
	source := b.d.Source
	switch f, failed := b.o.Failures[c.Name]; {
	case failed:
		w.Reason, w.Message = f.Reason, f.Message
	case l.Round < b.d.Round && len(b.p.Spec.InitContainers) > 0:
		w.Reason, w.Message = "PodInitializing", ""
	case l.Round < b.d.Round:
		w.Reason, w.Message = "ContainerCreating", ""
	case source != nil && source.ID == l.ID && !b.d.Resetting && waitOf(source) > 0:
		w = b.backOff(c, waitOf(source))
	}
	s.State.Waiting = w
}

// restartingCondition sets AllContainersRestarting, which is True while the containers of a round are being ended.
func restartingCondition(p *corev1.Pod, s *corev1.PodStatus, d Decision, now time.Time) {
	if !mayRestartAll(p) {
		return
	}
	c := corev1.PodCondition{
		Type:               corev1.AllContainersRestarting,
		Status:             corev1.ConditionFalse,
		ObservedGeneration: p.Generation,
		LastTransitionTime: stamp(now),
	}
	switch {
	case s.Phase == corev1.PodSucceeded:
		c.Reason = "PodCompleted"
	case s.Phase == corev1.PodFailed:
		c.Reason = "PodFailed"
	case d.Resetting:
		c.Status, c.Reason = corev1.ConditionTrue, "RestartAllContainersStarted"
		c.Message = fmt.Sprintf("Container %s exited with code %d, triggering a restart of all containers", d.Source.Name,
			d.Source.ExitCode)
	}
	SetCondition(s, c)
}

package externalworker

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/engine/podstate"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
)

// Assigned is the condition of a pod on an external worker. It is False from the announcement on, when the worker may
// have got the pod, and True once the worker has accepted it.
const Assigned corev1.PodConditionType = "tasks.coracle.dev/Assigned"

// The reasons of the condition once a worker has accepted a pod. A worker that has the paths of Podling's design need
// not report: the design draws no path for reports, but one where the state of a task is read.
const (
	reportReason = "Accepted"
	readReason   = "AcceptedToBeRead"
)

// assignPatience is how long a worker may fail to accept a pod before the pod fails.
const assignPatience = 30 * time.Second

// Action is the next step for a pod.
type Action int

const (
	// Wait waits for the worker's reports, or for the worker to come back.
	Wait Action = iota
	// Announce records in the status that the worker may get the pod.
	Announce
	// Assign sends the worker the pod, unless the worker has it.
	Assign
	// Fail fails a pod that the worker cannot run or did not accept.
	Fail
	// Read reads the state of an assigned task from a worker that does not report it.
	Read
	// Release removes a deleted pod, from the worker as well.
	Release
)

// Plan returns the next step for a pod of a worker, and the reason if it fails.
func Plan(p *corev1.Pod, online bool, now time.Time) (Action, string) {
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	assigned := condition(p)
	switch {
	case p.DeletionTimestamp != nil:
		return Release, ""
	case !ended && online && assigned != nil && assigned.Reason == readReason:
		return Read, ""
	case ended || assigned != nil && assigned.Status == corev1.ConditionTrue || p.Status.Phase == corev1.PodRunning:
		return Wait, ""
	case assigned == nil:
		if err := view.Assignable(p); err != nil {
			return Fail, err.Error()
		}
		if !online {
			return Wait, ""
		}
		return Announce, ""
	case !now.Before(assigned.LastTransitionTime.Add(assignPatience)):
		return Fail, "the worker did not accept the pod within " + assignPatience.String() + ": " + assigned.Message
	case !online:
		return Wait, ""
	}
	return Assign, ""
}

func condition(p *corev1.Pod) *corev1.PodCondition { return podstate.Condition(p, Assigned) }

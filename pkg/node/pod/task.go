package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Tasks come by the thousand, and many end within moments. What is written about their pods is what somebody waits for; the rest is in the status of
// the task itself.

// settleTask is how long a task's container runs before the status says so, and how long the pod has to end with it: one that ends meanwhile
// is reported once. On a node with much to do, where the container took longer to start, it may take as long to be reported, up to slowSettleTask.
const (
	settleTask     = 150 * time.Millisecond
	slowSettleTask = time.Second
)

// settleFor returns how long the status of a new pod that starts as usual may go unwritten, and how long what changed of it since. A task says
// itself that its node was chosen, and of a hundred that start at once each takes a while.
func settleFor(p *corev1.Pod) (first, again time.Duration) {
	if taskOf(p) != "" {
		return taskStarts, taskStarts
	}
	return settle, settleAgain
}

// taskStarts is how long a task's container may take to start before the pod's status says how far it has come. What fails is written at once.
const taskStarts = 20 * time.Second

// brief returns until when a report is held back, zero if none is: the first one that a task's container runs, and that it has ended while
// the pod has not yet. p is the pod as the API server has it, seen when the agent saw it first.
func brief(p *corev1.Pod, seen time.Time, o *Observed, s *corev1.PodStatus, now time.Time) time.Time {
	if s.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || taskOf(p) == "" || len(p.Spec.Containers) != 1 {
		return time.Time{}
	}
	l := o.latest(p.Spec.Containers[0].Name)
	if l == nil {
		return time.Time{}
	}
	wait := min(max(l.StartedAt.Sub(seen), settleTask), slowSettleTask)
	var until time.Time
	switch {
	case l.State == runtime.Running && !hasRun(&p.Status):
		until = l.StartedAt.Add(wait)
	case l.State == runtime.Exited:
		until = l.FinishedAt.Add(wait)
	}
	if left := until.Sub(now); left <= 0 || left > wait { // more is left if the clock was set back
		return time.Time{}
	}
	return until
}

// hasRun reports whether a status says that a container runs or has run.
func hasRun(s *corev1.PodStatus) bool {
	for _, c := range s.ContainerStatuses {
		if c.State.Running != nil || c.State.Terminated != nil {
			return true
		}
	}
	return false
}

// unprepared returns why the network or the volumes of a pod are not there; "" if that has not failed. In the status of other pods it is left out,
// as in the kubelet's: their events have it.
func (o *Observed) unprepared() string {
	for _, kind := range []Kind{SetupSandbox, MountVolumes} {
		if f, failed := o.Failures[string(kind)]; failed {
			return f.Message
		}
	}
	return ""
}

// starter returns what records the events of a container's start. Of a task's container only those that are not the usual course are: its image is
// pulled, or something fails. When it was started, and where, is in the task.
func (m *Manager) starter(p *corev1.Pod, container string) func(kind, reason, message string) {
	task, pulls := taskOf(p) != "", false
	return func(kind, reason, message string) {
		if task && kind == corev1.EventTypeNormal {
			switch reason {
			case "Pulling":
				pulls = true
			case "Pulled":
				if !pulls {
					return
				}
			case "Created", "Started":
				return
			}
		}
		m.event(p, container, kind, reason, message)
	}
}

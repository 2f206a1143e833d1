package pod

import (
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// A pod can have an owner that reports its state to users in its place: the pod of a task has (part.Part). Such pods
// come by the thousand and many end within moments, so the agent writes only what a client waits for to their status.

// settleOwned is how long a container of an owned pod runs before the status says so, and how long the pod has to end
// after it: what ends within that time is reported once. On a busy node, where the start took longer, the time grows
// with it, up to slowSettleOwned.
const (
	settleOwned     = 150 * time.Millisecond
	slowSettleOwned = time.Second
)

// ownedStarts is how long a container of an owned pod may take to start before the pod's status says how far it has
// come. A failure is written at once.
const ownedStarts = 20 * time.Second

// owner returns the UID of the object of a system that tells users about a pod; empty if there is none.
func (m *Manager) owner(p *corev1.Pod) string {
	for _, part := range m.c.Parts {
		if uid := part.Owner(p); uid != "" {
			return uid
		}
	}
	return ""
}

// keepLogs passes the logs of an owned pod to the parts before the agent removes anything of the pod.
func (w *worker) keepLogs(p *corev1.Pod) error {
	owner := w.m.owner(p)
	// If the pod was deleted while no agent ran, only the labels of its containers name the owner.
	for _, c := range w.m.containers.of(w.uid) {
		if owner == "" {
			owner = c.Labels[labelOwner]
		}
	}
	if owner == "" || p.Name == "" {
		return nil
	}
	for _, part := range w.m.c.Parts {
		if err := part.Keep(filepath.Join(w.m.c.LogDir, logDirName(p)), owner, w.uid, p.Name); err != nil {
			return err
		}
	}
	return nil
}

// settleFor returns how long the status of a new pod that starts as usual may stay unwritten, and how long later
// changes may.
func settleFor(owned bool) (first, again time.Duration) {
	if owned {
		return ownedStarts, ownedStarts
	}
	return settle, settleAgain
}

// brief returns until when a report is held back; zero if it is not. It holds back the first report that the container
// of an owned pod runs, and the report that it has ended while the pod has not yet. p is the pod as the API server has
// it; seen is when the agent saw it first.
func brief(p *corev1.Pod, owned bool, seen time.Time, o *Observed, s *corev1.PodStatus, now time.Time) time.Time {
	if s.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || !owned || len(p.Spec.Containers) != 1 {
		return time.Time{}
	}
	l := o.latest(p.Spec.Containers[0].Name)
	if l == nil {
		return time.Time{}
	}
	wait := min(max(l.StartedAt.Sub(seen), settleOwned), slowSettleOwned)
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

// unprepared returns why the pod has no network or no volumes; "" if neither has failed. Only the status of an owned
// pod contains it: as with the kubelet, users of other pods find it in the events.
func (o *Observed) unprepared() string {
	for _, kind := range []Kind{SetupSandbox, MountVolumes} {
		if f, failed := o.Failures[string(kind)]; failed {
			return f.Message
		}
	}
	return ""
}

// starter returns what records the events of a container's start. For an owned pod it records only what is not the
// usual course: an image is pulled, or a step fails. The owner says when and where the container started.
func (m *Manager) starter(p *corev1.Pod, container string) func(kind, reason, message string) {
	owned, pulls := m.owner(p) != "", false
	return func(kind, reason, message string) {
		if owned && kind == corev1.EventTypeNormal {
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

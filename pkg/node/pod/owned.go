package pod

import (
	"cmp"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/part"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// An extension can report a pod's state to users through an owner object, as a task does (part.Part). Such owned
// pods come in thousands and many end within moments, so the agent writes only the status that a client waits for.

// settleOwned delays two reports of an owned pod, so that a short run is written once: that its container runs, and
// that the container has ended before the pod has. After a slow start the delay is longer, up to slowSettleOwned.
const (
	settleOwned     = 150 * time.Millisecond
	slowSettleOwned = time.Second
)

// ownedStarts is how long an owned pod may start before its progress is written. Failures are written at once.
const ownedStarts = 20 * time.Second

func (m *Manager) owner(p *corev1.Pod) string {
	for _, part := range m.c.Parts {
		if uid := part.Owner(p); uid != "" {
			return uid
		}
	}
	return ""
}

// keepLogs passes the logs of an owned pod to the parts. It is called before anything of the pod is removed.
func (w *worker) keepLogs(p *corev1.Pod, owner string) error {
	if owner == "" {
		return nil
	}
	for _, part := range w.m.c.Parts {
		if err := part.Keep(filepath.Join(w.m.c.LogDir, logDirName(p)), owner, w.uid, p.Name); err != nil {
			return err
		}
	}
	return nil
}

// keepFiles lets the parts keep files of an owned pod. It is called before the pod's volumes are removed.
func (w *worker) keepFiles(p *corev1.Pod, owner string) {
	if owner == "" {
		return
	}
	for _, extension := range w.m.c.Parts {
		if k, ok := extension.(part.FileKeeper); ok {
			k.KeepFiles(filepath.Join(w.m.c.LogDir, logDirName(p)), owner, w.uid)
		}
	}
}

// keptFor returns the owner of a pod of which something may be kept, or "".
func (w *worker) keptFor(p *corev1.Pod) string {
	owner := w.m.owner(p)
	// If the pod was deleted while no agent ran, only the labels of its containers name the owner.
	for _, c := range w.m.containers.of(w.uid) {
		owner = cmp.Or(owner, c.Labels[labelOwner])
	}
	if p.Name == "" {
		return ""
	}
	return owner
}

// settleFor returns how long the first status of a pod that starts normally may be delayed, and how long later ones.
func settleFor(owned bool) (first, again time.Duration) {
	if owned {
		return ownedStarts, ownedStarts
	}
	return settle, settleAgain
}

// brief returns until when a report is held back (see settleOwned), or zero. p is the pod in the API.
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
	if left := until.Sub(now); left <= 0 || left > wait { // more than wait is left if the clock was set back
		return time.Time{}
	}
	return until
}

func hasRun(s *corev1.PodStatus) bool {
	return slices.ContainsFunc(s.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil || c.State.Terminated != nil
	})
}

// unprepared returns why the network or the volumes failed, or "". For pods without owner only the events say it.
func (o *Observed) unprepared() string {
	for _, kind := range []Kind{SetupSandbox, MountVolumes} {
		if f, failed := o.Failures[string(kind)]; failed {
			return f.Message
		}
	}
	return ""
}

// starter returns a function that records events of a container's start. For an owned pod it drops normal events except
// pulls, because the owner reports when and where the container started.
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

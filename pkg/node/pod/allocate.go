package pod

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	resizeFailed = "ResizeError"
	// retryResize is the delay before a refused resize is tried again, if no room has become free before.
	retryResize = 3 * time.Minute
	// allocationFile is the name of the allocation's file in the pod's directory, at most maxAllocation bytes long.
	allocationFile = "resources.json"
	maxAllocation  = 4 << 20
)

func (w *worker) loadAllocation() {
	data, err := bounded.File(filepath.Join(w.m.volumes.PodDir(w.uid), allocationFile), maxAllocation)
	var a allocation
	if err == nil {
		err = json.Unmarshal(data, &a)
	}
	if err == nil && a.Containers != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		// After a restore of the API's data, the same generation may request something else.
		a.share, a.same = shareOf(a.in(w.api.pod)), -1
		a.compare(w.api.pod)
		w.held.allocation, w.held.unsure = a, a.Resizing
		return
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.m.log.Warn("could not read resources allocated to pod", "uid", w.uid, "error", err)
	}
}

// admitAndAllocate admits a pod and reserves its resources. It returns a new allocation, which must be recorded.
func (w *worker) admitAndAllocate() *allocation {
	w.m.allocating.Lock()
	defer w.m.allocating.Unlock()
	w.admit()
	return w.allocate()
}

// allocate reserves an admitted pod's resources if no earlier process did. Old agents recorded them only in the status.
func (w *worker) allocate() *allocation {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.api.pod
	if w.held.allocation.Containers != nil || w.end.verdict != nil || w.api.gone || isTerminal(p) {
		return nil
	}
	a := allocationOf(p)
	if left := w.m.containers.of(w.uid); len(left) > 0 {
		for c := range containersOf(p) {
			if r := resourcesInStatus(p, c.Name); r != nil {
				a.Containers[c.Name] = *r.DeepCopy()
			}
		}
		a.Generation, a.same = -1, -1 // an unknown generation
		a.share = shareOf(a.in(p))
		a.Limits = a.share.limits
	}
	w.held.allocation = a
	return &a
}

// recordFirst must be called before anything of the pod starts.
func (w *worker) recordFirst(a allocation) {
	err := os.MkdirAll(w.m.volumes.PodDir(w.uid), 0o750)
	if err == nil {
		err = atomicfile.WriteJSON(filepath.Join(w.m.volumes.PodDir(w.uid), allocationFile), a)
	}
	if err == nil {
		err = w.m.c.Failpoints.At("pod.allocated")
	}
	if err != nil { // the allocation still holds until the agent stops
		w.m.log.Warn("could not record resources allocated to pod", "uid", w.uid, "error", err)
	}
}

func resourcesInStatus(p *corev1.Pod, name string) *corev1.ResourceRequirements {
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == name && list[i].State.Running != nil {
				return list[i].Resources
			}
		}
	}
	return nil
}

// allocated returns view with the allocated resources. Called with the lock held.
func (w *worker) allocated() *corev1.Pod { return w.held.allocation.of(w.view()) }

func (w *worker) pending() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.view()
	if w.api.gone || p.DeletionTimestamp != nil || w.end.verdict != nil || w.ended() || !w.held.allocation.desires(p) {
		return nil
	}
	return p
}

type resizer struct {
	w         *worker
	pod       *corev1.Pod
	now, next corev1.ResourceList // requests
	since     time.Time
}

// allocatePending grants pending resizes for which the node has room. It is called when a pod requests one and
// whenever room may have become free. Each grant is on the disk before the next one is considered: otherwise a crash
// or a full disk could take back room that another pod has been given by then.
func (m *Manager) allocatePending() {
	m.allocating.Lock()
	defer m.allocating.Unlock()
	node := m.c.Node()
	if node == nil {
		return
	}
	all := m.all()
	var waiting []resizer
	for _, w := range all {
		if desired := w.pending(); desired != nil {
			waiting = append(waiting, resizer{w: w, pod: desired, next: nodeRequests(desired), since: pendingSince(desired)})
		}
	}
	if len(waiting) == 0 {
		return
	}
	select {
	case <-m.listed:
	default: // after a restart, the room of pods not listed yet looks free
		for _, r := range waiting {
			r.w.refuseResize(corev1.PodReasonDeferred, "the other pods of the node are not known yet")
		}
		return
	}
	used := corev1.ResourceList{}
	for _, w := range all {
		p := w.counted()
		if p == nil {
			continue
		}
		now := nodeRequests(p)
		add(used, now, false)
		if i := slices.IndexFunc(waiting, func(r resizer) bool { return r.w == w }); i >= 0 {
			waiting[i].now = now
		}
	}
	slices.SortStableFunc(waiting, before)
	for _, r := range waiting {
		add(used, r.now, true)
		got := r.now
		if why, never := roomFor(r.now, r.next, used, node.Status.Allocatable); why != "" {
			reason := corev1.PodReasonDeferred
			if never {
				reason = corev1.PodReasonInfeasible
			}
			r.w.refuseResize(reason, why)
		} else if err := r.w.reallocate(r.pod); err != nil {
			r.w.refuseResize(corev1.PodReasonDeferred, "could not record the allocation: "+err.Error())
		} else {
			got = r.next
		}
		add(used, got, false)
	}
}

func add(sum, b corev1.ResourceList, subtract bool) {
	for name, q := range b {
		have := sum[name]
		if subtract {
			have.Sub(q)
		} else {
			have.Add(q)
		}
		sum[name] = have
	}
}

// before orders resizes as the kubelet does: shrinking first, then by priority, QoS class (Guaranteed first) and age.
func before(a, b resizer) int {
	rank := func(r resizer) int {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if next, now := r.next[name], r.now[name]; next.Cmp(now) > 0 {
				return 1
			}
		}
		return 0
	}
	guaranteed := func(r resizer) int {
		if r.pod.Status.QOSClass == corev1.PodQOSGuaranteed {
			return 0
		}
		return 1
	}
	return cmp.Or(rank(a)-rank(b), cmp.Compare(priority(b.pod), priority(a.pod)), guaranteed(a)-guaranteed(b),
		a.since.Compare(b.since))
}

// pendingSince returns when the pod's status began to report a pending resize, or the end of time.
func pendingSince(p *corev1.Pod) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodResizePending {
			return c.LastTransitionTime.Time
		}
	}
	return time.Unix(1<<62, 0)
}

// reallocate grants the resources that the pod requests. The allocation is on the disk before any cgroup changes.
func (w *worker) reallocate(p *corev1.Pod) error {
	w.recordMu.Lock()
	defer w.recordMu.Unlock()
	next := allocationOf(p)
	keep := func() { // keeps what is actuated; before the first container that is nothing
		a := &w.held.allocation
		if next.serial = a.serial + 1; w.held.limited || len(w.m.containers.of(w.uid)) > 0 {
			next.Resizing, next.Limits, next.Amounts = true, a.Limits, a.Amounts
		}
	}
	w.mu.Lock()
	keep()
	w.mu.Unlock()
	data, err := json.Marshal(next)
	if err == nil {
		err = atomicfile.WriteDurably(filepath.Join(w.m.volumes.PodDir(w.uid), allocationFile), data)
	}
	if err == nil {
		err = w.m.c.Failpoints.At("pod.reallocated")
	}
	if err != nil {
		return err
	}
	w.mu.Lock()
	keep()                                       // again: a resize may have changed it meanwhile
	w.held.allocation, w.held.stale = next, true // stale: downwardAPI volumes may show resources
	delete(w.actions.failures, allocateTarget)
	delete(w.actions.failures, resizeTarget)
	w.mu.Unlock()
	w.m.event(p, "", corev1.EventTypeNormal, "ResizeStarted", resizeMessage("Pod resize started", p, ""))
	w.loop.wake()
	return nil
}

func (w *worker) refuseResize(reason, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.actions.failures[allocateTarget] = Failure{Reason: reason, Message: why, Until: time.Now().Add(retryResize)}
	w.loop.wake()
}

// askForMore tries to get the pod's resize granted, and returns why it is not.
func (w *worker) askForMore() *Failure {
	w.m.allocatePending()
	if w.pending() == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if f, refused := w.actions.failures[allocateTarget]; refused {
		return &f
	}
	return &Failure{
		Reason:  corev1.PodReasonDeferred,
		Message: "the node is not registered yet",
		Until:   time.Now().Add(time.Second),
	}
}

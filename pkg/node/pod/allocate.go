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
	// resizeFailed is the reason of a Failure when cgroups could not be changed.
	resizeFailed = "ResizeError"
	// retryResize is how long a resize that the node has no room for waits if nothing happens that may make room.
	retryResize = 3 * time.Minute
	// allocationFile is the name of an allocation's file in the pod's directory; maxAllocation limits it, in bytes.
	allocationFile = "resources.json"
	maxAllocation  = 4 << 20
)

// loadAllocation reads what an earlier process allocated to the pod.
func (w *worker) loadAllocation() {
	data, err := bounded.File(filepath.Join(w.m.volumes.PodDir(w.uid), allocationFile), maxAllocation)
	var a allocation
	if err == nil {
		err = json.Unmarshal(data, &a)
	}
	if err == nil && a.Containers != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		// the same generation may ask for something else if the API's data was restored meanwhile
		a.share, a.same = shareOf(a.in(w.api.pod)), -1
		a.compare(w.api.pod)
		w.held.allocation, w.held.unsure = a, a.Resizing
		return
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.m.log.Warn("could not read resources allocated to pod", "uid", w.uid, "error", err)
	}
}

// admitAndAllocate admits a pod and allocates what it asks for, which no other pod gets from then on. It returns the
// allocation if an earlier process did not make it.
func (w *worker) admitAndAllocate() *allocation {
	w.m.allocating.Lock()
	defer w.m.allocating.Unlock()
	w.admit()
	return w.allocate()
}

// allocate allocates what an admitted pod asks for, unless an earlier process did. A pod that an earlier version
// started has what its status says.
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
		a.Generation, a.same = -1, -1 // as of none that is known
		a.share = shareOf(a.in(p))
		a.Limits = a.share.limits
	}
	w.held.allocation = a
	return &a
}

// recordFirst records a pod's first allocation, before anything of the pod starts.
func (w *worker) recordFirst(a allocation) {
	err := os.MkdirAll(w.m.volumes.PodDir(w.uid), 0o750)
	if err == nil {
		err = atomicfile.WriteJSON(filepath.Join(w.m.volumes.PodDir(w.uid), allocationFile), a)
	}
	if err == nil {
		err = w.m.c.Failpoints.At("pod.allocated")
	}
	if err != nil { // the pod has it all the same, until the agent ends
		w.m.log.Warn("could not record resources allocated to pod", "uid", w.uid, "error", err)
	}
}

// resourcesInStatus returns the resources of a container in the pod's status, or nil.
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

// allocated returns the pod with its allocated resources, and with the status that the agent knows. Called with the
// lock held.
func (w *worker) allocated() *corev1.Pod { return w.held.allocation.of(w.view()) }

// pending returns the pod if it asks for other resources than it has, else nil.
func (w *worker) pending() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.view()
	if w.api.gone || p.DeletionTimestamp != nil || w.end.verdict != nil || w.ended() || !w.held.allocation.desires(p) {
		return nil
	}
	return p
}

// resizer is a pod that waits for other resources.
type resizer struct {
	w         *worker
	pod       *corev1.Pod
	now, next corev1.ResourceList // requests
	since     time.Time
}

// allocatePending allocates to pods what they have come to ask for, as far as the node has room. It is called when one
// asks, and whenever there may be more room. What is granted is recorded before anybody else is: otherwise a crash, or
// a disk that is full, would give back room that another pod has by then.
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
	default: // after a restart, pods that are not known yet have room that looks free
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

// add adds b to sum, or subtracts it.
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

// before orders resizes as the kubelet does: those that ask for no more come first, then by priority, guaranteed pods,
// and the time that they have waited.
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

// pendingSince returns since when the status says that the pod waits, or the end of time.
func pendingSince(p *corev1.Pod) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodResizePending {
			return c.LastTransitionTime.Time
		}
	}
	return time.Unix(1<<62, 0)
}

// reallocate allocates what the pod asks for. It is on the disk before any cgroup changes.
func (w *worker) reallocate(p *corev1.Pod) error {
	w.recordMu.Lock()
	defer w.recordMu.Unlock()
	next := allocationOf(p)
	keep := func() { // what is actuated stays so; before the first container there is nothing
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
	keep()                                       // as it is now: a resize may be under way
	w.held.allocation, w.held.stale = next, true // downwardAPI volumes may show resources
	delete(w.actions.failures, allocateTarget)
	delete(w.actions.failures, resizeTarget)
	w.mu.Unlock()
	w.m.event(p, "", corev1.EventTypeNormal, "ResizeStarted", resizeMessage("Pod resize started", p, ""))
	w.loop.wake()
	return nil
}

// refuseResize notes why the pod does not get what it asks for.
func (w *worker) refuseResize(reason, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.actions.failures[allocateTarget] = Failure{Reason: reason, Message: why, Until: time.Now().Add(retryResize)}
	w.loop.wake()
}

// askForMore asks the node for what the pod has come to ask for. It returns why it does not get that.
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

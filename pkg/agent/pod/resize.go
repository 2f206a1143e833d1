package pod

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/agent/runtime"
	"github.com/coracle-dev/coracle/pkg/atomicfile"
	"github.com/coracle-dev/coracle/pkg/bounded"
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
		a.share, a.same = shareOf(a.in(w.api.pod)), -1 // the same generation may ask for something else if the API's data was restored meanwhile
		a.compare(w.api.pod)
		w.held.allocation, w.held.unsure = a, a.Resizing
		return
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.m.log.Warn("could not read resources allocated to pod", "uid", w.uid, "error", err)
	}
}

// allocate allocates what an admitted pod asks for, unless an earlier process did. A pod that an earlier version started has what its status says.
func (w *worker) allocate() {
	w.mu.Lock()
	p := w.api.pod
	done := w.held.allocation.Containers != nil || w.end.verdict != nil || w.api.gone || isTerminal(p)
	w.mu.Unlock()
	if done {
		return
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
	err := os.MkdirAll(w.m.volumes.PodDir(w.uid), 0o750)
	if err == nil {
		err = atomicfile.WriteJSON(filepath.Join(w.m.volumes.PodDir(w.uid), allocationFile), a)
	}
	if err == nil {
		err = w.m.c.Failpoints.At("pod.allocated")
	}
	if err != nil { // the pod has it all the same, until the agent ends
		w.m.log.Warn("could not record resources allocated to pod", "pod", p.Namespace+"/"+p.Name, "error", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held.allocation = a
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

// allocated returns the pod with its allocated resources, and with the status that the agent knows. Called with the lock held.
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

// allocatePending allocates to pods what they have come to ask for, as far as the node has room. It is called when one asks, and whenever there may be more room.
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

// before orders resizes as the kubelet does: those that ask for no more come first, then by priority, guaranteed pods, and the time that they have waited.
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
	return cmp.Or(rank(a)-rank(b), cmp.Compare(priority(b.pod), priority(a.pod)), guaranteed(a)-guaranteed(b), a.since.Compare(b.since))
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
	return &Failure{Reason: corev1.PodReasonDeferred, Message: "the node is not registered yet", Until: time.Now().Add(time.Second)}
}

// limitPod gives the pod's cgroup its limits, before the first container that this process starts.
func (w *worker) limitPod(ctx context.Context) error {
	look := func() (limits runtime.PodLimits, done bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.held.allocation.Limits, w.held.limited
	}
	if _, done := look(); done { // before the lock, which another container of the pod may share until it has started
		return nil
	}
	w.cgroups.Lock()
	defer w.cgroups.Unlock()
	limits, done := look()
	if done {
		return nil
	}
	if err := w.m.c.Runtime.UpdatePod(ctx, w.m.cgroup(w.uid), limits); err != nil {
		return fmt.Errorf("limit the pod's containers together: %w", err)
	}
	w.mu.Lock()
	w.held.limited = true
	w.mu.Unlock()
	return w.m.c.Failpoints.At("pod.limited")
}

// settleAmounts completes the specification of an instance with what it may use now. No cgroup of the pod changes until the function that it returns is called.
func (w *worker) settleAmounts(p *corev1.Pod, name string, s *runtime.Spec) (settled func()) {
	w.cgroups.RLock()
	w.mu.Lock()
	defer w.mu.Unlock()
	p = w.held.allocation.in(p) // which may have changed while an image was pulled
	c, _, _ := containerOf(p, name)
	a := amountsOf(p, c).within(w.held.allocation.Limits)
	s.Resources, s.Labels[labelAmounts] = resources(p, c, a, w.m.c.MemoryCapacity), a.label()
	return sync.OnceFunc(w.cgroups.RUnlock)
}

// resize changes the cgroups of the pod and its containers to what is allocated. Each step is idempotent, and those that a failure leaves out are made again.
func (w *worker) resize(ctx context.Context) *Failure {
	w.cgroups.Lock()
	defer w.cgroups.Unlock()
	w.mu.Lock()
	p, have, want, unsure := w.allocated(), w.held.allocation.Limits, w.held.allocation.share.limits, w.held.unsure
	serial := w.held.allocation.serial
	w.mu.Unlock()
	members := w.members(p)
	err := w.checkMemory(ctx, have, want, members, unsure)
	if err == nil {
		for _, s := range resizeSteps(have, want, members, unsure) {
			if err = w.resizeOne(ctx, p, s); err != nil && !s.attempt {
				break
			}
			err = nil
		}
	}
	w.recordMu.Lock()
	defer w.recordMu.Unlock()
	w.mu.Lock()
	a := &w.held.allocation
	if err == nil {
		w.held.limited, w.held.unsure = true, false
		a.Resizing = a.Resizing && a.serial != serial
	}
	late := a.serial != serial // something else was allocated meanwhile
	a.Amounts = w.running(a.Amounts)
	data, broken := json.Marshal(a)
	w.mu.Unlock()
	// What is lost of this is done again by the next process.
	if broken = errors.Join(broken, atomicfile.Write(filepath.Join(w.m.volumes.PodDir(w.uid), allocationFile), data)); broken != nil && err == nil {
		w.m.log.Warn("could not record resize of pod", "pod", p.Namespace+"/"+p.Name, "error", broken)
	}
	if late {
		return nil
	}
	if err != nil && ctx.Err() == nil {
		w.m.log.Warn("could not resize pod, retrying", "pod", p.Namespace+"/"+p.Name, "error", err)
	}
	return w.fail(resizeTarget, resizeFailed, err, time.Second)
}

// members returns the pod's instances that run, except those that will be replaced.
func (w *worker) members(p *corev1.Pod) (all []member) {
	w.mu.Lock()
	given := w.held.allocation.Amounts
	w.mu.Unlock()
	for name, list := range group(w.m.containers.of(w.uid)) {
		c, _, _ := containerOf(p, name)
		if c == nil || list[0].State != runtime.Running {
			continue
		}
		m := member{name: name, id: list[0].ID, have: amountsGiven(p, list[0], given), want: amountsOf(p, c)}
		if !restartsFor(c, m.have, m.want) {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	return all
}

// amountsGiven returns what an instance has: what it was last given, or was created with. One of an earlier version has what is allocated.
func amountsGiven(p *corev1.Pod, i Instance, given map[string]amounts) amounts {
	if a, has := given[i.ID]; has {
		return a
	}
	if a, ok := amountsIn(i.Labels[labelAmounts]); ok {
		return a
	}
	if c, _, _ := containerOf(p, i.Name); c != nil {
		return amountsOf(p, c)
	}
	return amounts{}
}

// running returns the amounts of instances that have not exited.
func (w *worker) running(given map[string]amounts) map[string]amounts {
	out := map[string]amounts{}
	for id, a := range given {
		if c, ok := w.m.containers.get(w.uid, id); ok && c.State != runtime.Exited {
			out[id] = a
		}
	}
	return out
}

// resizeOne makes a step, and notes what is there then.
func (w *worker) resizeOne(ctx context.Context, p *corev1.Pod, s resizeStep) error {
	if s.of.id == "" {
		if err := w.m.c.Runtime.UpdatePod(ctx, w.m.cgroup(w.uid), s.pod); err != nil {
			return err
		}
		w.mu.Lock()
		w.held.allocation.Limits = merge(w.held.allocation.Limits, s.pod)
		w.mu.Unlock()
		return w.m.c.Failpoints.At("pod.resized")
	}
	c, _, _ := containerOf(p, s.of.name)
	r := resources(p, c, s.amounts, w.m.c.MemoryCapacity)
	r.CPUQuota, r.MemoryBytes = orUnlimited(r.CPUQuota), orUnlimited(r.MemoryBytes)
	err := w.m.c.Runtime.Update(ctx, s.of.id, r)
	if gone(err) { // it has exited meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	w.mu.Lock()
	next := map[string]amounts{s.of.id: s.amounts} // the map that is there may be in use
	for id, a := range w.held.allocation.Amounts {
		if id != s.of.id {
			next[id] = a
		}
	}
	w.held.allocation.Amounts = next
	w.mu.Unlock()
	return w.m.c.Failpoints.At("pod.container-resized")
}

// checkMemory returns an error if less memory would be allowed than is used, which ends processes, or is refused by the kernel after a part was done.
func (w *worker) checkMemory(ctx context.Context, have, want runtime.PodLimits, members []member, unsure bool) error {
	var errs []error
	check := func(id, what string, before, after int64) {
		if after == 0 || !unsure && after >= noLimit(before) {
			return
		}
		limit := after
		if unsure { // what uses just as much as it is to be allowed, as one full of page cache, may have that limit already
			after++
		}
		usage, err := w.m.c.Runtime.MemoryUsage(ctx, w.m.cgroup(w.uid), id)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("missing %s memory usage: %w", what, err))
		} else if usage >= uint64(after) {
			errs = append(errs, fmt.Errorf("attempting to set %s memory limit (%d) below current usage (%d)", what, limit, usage))
		}
	}
	check("", "pod", have.MemoryBytes, want.MemoryBytes)
	for _, m := range members {
		check(m.id, fmt.Sprintf("container %q", m.name), m.have.MemoryLimit, m.want.MemoryLimit)
	}
	if len(errs) > 0 {
		return fmt.Errorf("cannot decrease memory limits: %w", errors.Join(errs...))
	}
	return nil
}

// resizeMessage returns the message of an event about a resize, in the kubelet's form.
func resizeMessage(what string, p *corev1.Pod, failure string) string {
	type share struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	all := struct {
		Resources      *corev1.ResourceRequirements `json:"resources,omitempty"`
		InitContainers []share                      `json:"initContainers,omitempty"`
		Containers     []share                      `json:"containers,omitempty"`
		Generation     int64                        `json:"generation"`
		Error          string                       `json:"error,omitempty"`
	}{Resources: p.Spec.Resources, Generation: p.Generation, Error: failure}
	for _, c := range p.Spec.InitContainers {
		all.InitContainers = append(all.InitContainers, share{c.Name, c.Resources})
	}
	for _, c := range p.Spec.Containers {
		all.Containers = append(all.Containers, share{c.Name, c.Resources})
	}
	text, err := json.Marshal(all)
	if err != nil {
		return what
	}
	return what + ": " + string(text)
}

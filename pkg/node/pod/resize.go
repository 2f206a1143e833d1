package pod

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// limitPod sets the limits of the pod's cgroup before this process starts the first container in it.
func (w *worker) limitPod(ctx context.Context) error {
	look := func() (limits runtime.PodLimits, done bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.held.allocation.Limits, w.held.limited
	}
	if _, done := look(); done { // checked first: a starting container may hold cgroups for long
		return nil
	}
	w.cgroups.Lock()
	defer w.cgroups.Unlock()
	limits, done := look()
	if done {
		return nil
	}
	if err := w.m.c.Runtime.UpdatePod(ctx, w.m.cgroup(w.uid), limits); err != nil {
		return fmt.Errorf("set the limits of the pod's cgroup: %w", err)
	}
	w.mu.Lock()
	w.held.limited = true
	w.mu.Unlock()
	return w.m.c.Failpoints.At("pod.limited")
}

// settleAmounts adds the instance's resources to s. The pod's cgroups are locked until settled is called (repeatable).
func (w *worker) settleAmounts(p *corev1.Pod, name string, s *runtime.Spec) (settled func()) {
	w.cgroups.RLock()
	w.mu.Lock()
	defer w.mu.Unlock()
	p = w.held.allocation.in(p) // the allocation may have changed while an image was pulled
	c, _, _ := containerOf(p, name)
	a := amountsOf(p, c).within(w.held.allocation.Limits)
	s.Resources, s.Labels[labelAmounts] = resources(p, c, a, w.m.c.memory()), a.label()
	return sync.OnceFunc(w.cgroups.RUnlock)
}

// resize sets the pod's cgroups to the allocated resources. Steps are idempotent; after a failure, call it again.
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
	a.Amounts = w.running(a.Amounts)
	data, broken := json.Marshal(a)
	w.mu.Unlock()
	// If the record is lost, the next process sets the cgroups again.
	if broken =
		errors.Join(broken, atomicfile.Write(filepath.Join(w.m.volumes.PodDir(w.uid), allocationFile), data)); broken !=
		nil && err == nil {
		w.m.log.Warn("could not record resize of pod", "pod", p.Namespace+"/"+p.Name, "error", broken)
	}
	if err != nil && ctx.Err() == nil {
		w.m.log.Warn("could not resize pod, retrying", "pod", p.Namespace+"/"+p.Name, "error", err)
	}
	return w.fail(resizeTarget, resizeFailed, err, time.Second)
}

// members returns the pod's running instances, except for instances that the resize will replace.
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

// amountsGiven returns an instance's amounts: those set last, or at its creation, or (old agents) the allocated ones.
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

func (w *worker) running(given map[string]amounts) map[string]amounts {
	out := map[string]amounts{}
	for id, a := range given {
		if c, ok := w.m.containers.get(w.uid, id); ok && c.State != runtime.Exited {
			out[id] = a
		}
	}
	return out
}

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
	r := resources(p, c, s.amounts, w.m.c.memory())
	r.CPUQuota, r.MemoryBytes = orUnlimited(r.CPUQuota), orUnlimited(r.MemoryBytes)
	err := w.m.c.Runtime.Update(ctx, s.of.id, r)
	if gone(err) { // the container exited
		return nil
	}
	if err != nil {
		return err
	}
	w.mu.Lock()
	next := map[string]amounts{s.of.id: s.amounts} // a copy: snapshots share the map
	for id, a := range w.held.allocation.Amounts {
		if id != s.of.id {
			next[id] = a
		}
	}
	w.held.allocation.Amounts = next
	w.mu.Unlock()
	return w.m.c.Failpoints.At("pod.container-resized")
}

// checkMemory rejects a memory limit below the usage: the kernel would kill processes, or refuse it after other steps.
func (w *worker) checkMemory(ctx context.Context, have, want runtime.PodLimits, members []member, unsure bool) error {
	var errs []error
	check := func(id, what string, before, after int64) {
		if after == 0 || !unsure && after >= noLimit(before) {
			return
		}
		limit := after
		if unsure { // usage equal to the limit, as with a full page cache, may mean that it is set already
			after++
		}
		usage, err := w.m.c.Runtime.MemoryUsage(ctx, w.m.cgroup(w.uid), id)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("missing %s memory usage: %w", what, err))
		} else if usage >= uint64(after) {
			errs = append(errs,
				fmt.Errorf("attempting to set %s memory limit (%d) below current usage (%d)", what, limit, usage))
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

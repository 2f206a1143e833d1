package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// Devices with binding conditions (KEP-5007) are ready only when their driver says so in the claim's status. Until
// then, the pod stays reserved on its node without occupying one of Config.Binders. It is bound after the driver's
// update.

// bindingTimeout is how long devices may take to become ready, as upstream.
const bindingTimeout = 10 * time.Minute

var errNotReady = errors.New("its devices are not ready yet")

// readiness reports whether the devices of an allocated claim are ready. It returns an error if a driver reports a
// failure or the deadline has passed. deadline is zero if no device is waited for. The errors are upstream's.
func readiness(c *resourcev1.ResourceClaim, timeout time.Duration,
	now time.Time) (ready bool, deadline time.Time, err error) {
	ready = true
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		at := slices.IndexFunc(c.Status.Devices, func(d resourcev1.AllocatedDeviceStatus) bool {
			return d.Driver == r.Driver && d.Pool == r.Pool && d.Device == r.Device &&
				(r.ShareID == nil || d.ShareID != nil && *d.ShareID == string(*r.ShareID))
		})
		if at < 0 {
			ready = false
			continue
		}
		said := c.Status.Devices[at].Conditions
		for _, name := range r.BindingFailureConditions {
			if f := meta.FindStatusCondition(said, name); f != nil && meta.IsStatusConditionTrue(said, name) {
				return false, time.Time{}, fmt.Errorf("device binding failed: claim=%s, reason=%s, message=%q", c.Name, f.Reason,
					f.Message)
			}
		}
		for _, name := range r.BindingConditions {
			ready = ready && meta.IsStatusConditionTrue(said, name)
		}
	}
	since := c.Status.Allocation.AllocationTimestamp
	if ready || since == nil {
		return ready, time.Time{}, nil
	}
	if deadline = since.Add(timeout); !now.Before(deadline) {
		return false, deadline, fmt.Errorf("device binding timeout: claim=%s", c.Name)
	}
	return false, deadline, nil
}

func hasConditions(a *resourcev1.AllocationResult) bool {
	return slices.ContainsFunc(a.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
		return len(r.BindingConditions) > 0
	})
}

// conclusive reports whether binding can continue, because all devices of the chosen claims are ready, or one has
// failed or its claim has changed. If not, at is the time to check again.
func (d *devices) conclusive(chosen []chosenClaim) (known bool, at time.Time) {
	known, at = true, now().Add(d.timeout)
	for i := range chosen {
		var claim resourcev1.ResourceClaim
		err := d.read.Get(context.Background(), chosen[i].key, &claim)
		if err != nil || claim.UID != chosen[i].uid || claim.Status.Allocation == nil {
			if chosen[i].shown {
				return true, at
			}
			known = false // the cache is behind
			continue
		}
		chosen[i].shown = true
		ready, deadline, err := readiness(&claim, d.timeout, now())
		if err != nil || !ready && deadline.IsZero() { // the binding has yet to write the time
			return true, at
		}
		known = known && ready
		if !ready && deadline.Before(at) {
			at = deadline
		}
	}
	return known, at
}

// await keeps a pod reserved on its node until its devices are ready or have failed. Then the binding continues.
func (s *Scheduler) await(ctx context.Context, p *pending, node string) {
	s.mu.Lock()
	pod := p.info.pod
	known, _ := s.state.devices.conclusive(s.state.devices.chosen[pod.UID])
	s.mu.Unlock()
	if !known {
		s.announce(ctx, p, node) // before it can be bound
	}
	s.mu.Lock()
	if s.queue.pods[pod.UID] != p { // it was deleted
		s.unreserve(p)
		s.mu.Unlock()
		return
	}
	s.queue.waiting[p] = struct{}{}
	s.resume(p)
	_, waits := s.queue.waiting[p]
	s.mu.Unlock()
	if waits {
		s.event(pod, corev1.EventTypeNormal, "BindingConditionsPending",
			"waiting for binding conditions for device on node %s", node)
	}
}

// resume continues the binding of a pod whose devices are ready or have failed. The caller holds the lock.
func (s *Scheduler) resume(p *pending) {
	if _, waits := s.queue.waiting[p]; !waits {
		return
	}
	known, at := s.state.devices.conclusive(s.state.devices.chosen[p.info.pod.UID])
	if known {
		s.queue.goOn(p)
		return
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	p.timer = time.AfterFunc(time.Until(at), func() {
		_ = s.guard.Do("device timeout", func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if _, waits := s.queue.waiting[p]; waits {
				s.queue.goOn(p)
			}
		})
	})
}

// resumeUsers resumes the pods that wait for a claim. The caller holds the lock.
func (s *Scheduler) resumeUsers(claim *resourcev1.ResourceClaim) {
	for p := range s.queue.waiting {
		if slices.ContainsFunc(s.state.devices.chosen[p.info.pod.UID], func(c chosenClaim) bool {
			return c.uid == claim.UID
		}) {
			s.resume(p)
		}
	}
}

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// claimWrites is the number of attempts to write a claim that changes concurrently. Then the pod backs off.
const claimWrites = 5

// bindDevices allocates and reserves the pod's claims, or returns errNotReady. It may be called again.
func (s *Scheduler) bindDevices(ctx context.Context, c client.Interface, pod *corev1.Pod, _ string) error {
	s.mu.Lock()
	chosen := slices.Clone(s.state.devices.chosen[pod.UID])
	s.mu.Unlock()
	waits := false
	for _, claim := range chosen {
		bind := reserveClaim
		if claim.key.Name == "" {
			bind = s.bindExtended
		}
		stored, err := bind(ctx, c, pod, claim)
		if err != nil {
			return fmt.Errorf("claim %s: %w", claim.key.Name, err)
		}
		ready, _, err := readiness(stored, s.state.devices.timeout, now())
		if err != nil {
			return err
		}
		waits = waits || !ready
	}
	if waits {
		return errNotReady
	}
	return nil
}

// reserveClaim allocates a claim if an allocation was chosen, reserves it for the pod, and returns the stored claim.
func reserveClaim(ctx context.Context, c client.Interface, pod *corev1.Pod,
	chosen chosenClaim) (stored *resourcev1.ResourceClaim, err error) {
	for range claimWrites { // other clients change the claim, too
		if stored, err = bindClaim(ctx, c, pod, chosen); !apierrors.IsConflict(err) {
			break
		}
	}
	return stored, err
}

func bindClaim(ctx context.Context, c client.Interface, pod *corev1.Pod,
	chosen chosenClaim) (*resourcev1.ResourceClaim, error) {
	var stored resourcev1.ResourceClaim
	if err := c.Get(ctx, chosen.key, &stored); err != nil {
		return nil, err
	}
	return writeClaim(ctx, c, pod, chosen, &stored)
}

// writeClaim does the work of reserveClaim for one stored version of the claim.
func writeClaim(ctx context.Context, c client.Interface, pod *corev1.Pod, chosen chosenClaim,
	stored *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	claim := stored.DeepCopy()
	switch {
	case claim.UID != chosen.uid:
		return nil, errors.New("it was replaced by another of its name")
	case claim.DeletionTimestamp != nil:
		return nil, fmt.Errorf("claim %s got deleted in the meantime", claim.Name)
	case chosen.allocation == nil && claim.Status.Allocation == nil:
		return nil, fmt.Errorf("claim %s got deallocated elsewhere in the meantime", claim.Name)
	case chosen.allocation != nil && claim.Status.Allocation != nil &&
		!equality.Semantic.DeepEqual(chosen.allocation, claim.Status.Allocation):
		return nil, fmt.Errorf("claim %s got allocated elsewhere in the meantime", claim.Name)
	}
	if chosen.allocation != nil && claim.Status.Allocation == nil {
		// Add the finalizer before the allocation, so that an allocated claim cannot be deleted.
		if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
			claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
			if err := c.Update(ctx, claim); err != nil {
				return nil, err
			}
		}
		claim.Status.Allocation = chosen.allocation.DeepCopy()
	}
	if a := claim.Status.Allocation; a.AllocationTimestamp == nil && hasConditions(a) { // by another scheduler
		a.AllocationTimestamp = new(metav1.Now())
	}
	if resourceclaim.IsReservedForPod(pod, claim, false) {
		if equality.Semantic.DeepEqual(stored.Status, claim.Status) {
			return claim, nil
		}
	} else {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: pod.Name, UID: pod.UID,
		})
	}
	return claim, c.Status().Update(ctx, claim)
}

// unusable returns a function that releases the devices of unused claims that keep the pod from being scheduled.
func (s *Scheduler) unusable(f *failure) func(context.Context) {
	d, pod := f.cycle.devices, f.cycle.pod
	if d == nil {
		return func(context.Context) {}
	}
	var refused []*nodeInfo
	for i, by := range f.refused {
		if f.active[by].name == dynamicResources {
			refused = append(refused, s.state.order[i])
		}
	}
	idle := d.idle(pod, refused)
	return func(ctx context.Context) {
		s.deallocate(ctx, pod, idle)
		if d.stale != nil && s.deleteExtended(ctx, pod, d.stale) != nil {
			s.retrySoon(pod) // no event will retry it
		}
	}
}

func (s *Scheduler) deallocate(ctx context.Context, pod *corev1.Pod, claims []types.NamespacedName) {
	for _, key := range claims {
		var stored resourcev1.ResourceClaim
		if s.client.Get(ctx, key, &stored) != nil || stored.Status.Allocation == nil ||
			slices.ContainsFunc(stored.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
				return r.UID != pod.UID
			}) {
			continue
		}
		claim := stored.DeepCopy()
		claim.Status.Allocation, claim.Status.ReservedFor, claim.Status.Devices = nil, nil, nil
		if err := s.client.Status().Update(ctx, claim); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) &&
			!apierrors.IsNotFound(err) {
			s.log.Warn("could not deallocate resource claim", "claim", key.String(), "error", err)
		}
	}
}

// watchDevices watches the objects that pods with resource claims depend on. It starts with the first such pod.
func (s *Scheduler) watchDevices(ctx context.Context, synced func()) error {
	var wait []toolscache.ResourceEventHandlerRegistration
	for _, o := range []ctrlclient.Object{
		&resourcev1.ResourceClaim{},
		&resourcev1.ResourceSlice{},
		&resourcev1.DeviceClass{},
		&resourcev1.DeviceTaintRule{},
	} {
		inf, err := s.client.Cache().GetInformer(ctx, o)
		if err != nil {
			return fmt.Errorf("informer of %T: %w", o, err)
		}
		reg, err := inf.AddEventHandler(deviceHandler{s})
		if err != nil {
			return fmt.Errorf("informer of %T: %w", o, err)
		}
		defer func() { _ = inf.RemoveEventHandler(reg) }() // fails only for a stopped informer, which has no handlers
		wait = append(wait, reg)
	}
	for _, reg := range wait {
		select {
		case <-reg.HasSyncedChecker().Done():
		case <-ctx.Done():
			return nil
		}
	}
	s.mu.Lock()
	synced()
	s.helpClaims("", "")
	s.mu.Unlock()
	<-ctx.Done()
	return nil
}

// useDevices makes the first pod with resource claims start watchDevices, which runs until ctx ends.
func (s *Scheduler) useDevices(ctx context.Context, wg *sync.WaitGroup) {
	d := s.state.devices
	d.start, d.synced = s.onDemand(ctx, wg, "resource claims", s.watchDevices)
}

// deviceHandler retries the pods that a change may make schedulable.
type deviceHandler struct{ s *Scheduler }

func (h deviceHandler) OnAdd(o any, _ bool) { h.s.handle(o, func() { h.changed(nil, o) }) }
func (h deviceHandler) OnUpdate(was, o any) { h.s.handle(o, func() { h.changed(was, o) }) }
func (h deviceHandler) OnDelete(o any) {
	if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = t.Obj
	}
	h.s.handle(o, func() { h.changed(o, nil) })
}

func (h deviceHandler) changed(was, is any) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	_, added := is.(*resourcev1.DeviceClass)
	_, removed := was.(*resourcev1.DeviceClass)
	if added || removed {
		h.s.state.devices.classes = nil
	}
	before, _ := was.(*resourcev1.ResourceClaim)
	after, _ := is.(*resourcev1.ResourceClaim)
	if after != nil {
		h.s.resumeUsers(after)
	} else if before != nil {
		h.s.resumeUsers(before)
	}
	freed := before != nil && before.Status.Allocation != nil && (after == nil || after.Status.Allocation == nil)
	if after == nil || freed {
		h.s.helpClaims("", "") // another kind, or devices that became free
		return
	}
	h.s.helpClaims(after.Namespace, after.Name)
}

// helpClaims retries the pods that use a claim or, without a name, any claim or extended resources.
func (s *Scheduler) helpClaims(namespace, name string) {
	at := now()
	for p := range s.queue.unschedulable {
		pod := p.info.pod
		if len(pod.Spec.ResourceClaims) == 0 && !p.info.need.maybeDevices() || name != "" && pod.Namespace != namespace {
			continue
		}
		uses := name == ""
		for of := range resourceclaim.PodClaims(pod) {
			uses = uses || of == name
		}
		if uses {
			s.queue.retry(p, at)
		}
	}
}

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
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// claimWrites is how often a claim that others change at the same time is written before the pod goes into back-off.
const claimWrites = 5

// bindDevices writes the allocations of the pod's claims, and reserves them for the pod.
func (s *Scheduler) bindDevices(ctx context.Context, c client.Interface, pod *corev1.Pod, _ string) error {
	s.mu.Lock()
	chosen := s.state.devices.chosen[pod.UID]
	s.mu.Unlock()
	for _, claim := range chosen {
		var err error
		for range claimWrites {
			if err = bindClaim(ctx, c, pod, claim); !apierrors.IsConflict(err) {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("claim %s: %w", claim.key.Name, err)
		}
	}
	return nil
}

func bindClaim(ctx context.Context, c client.Interface, pod *corev1.Pod, chosen chosenClaim) error {
	var stored resourcev1.ResourceClaim
	if err := c.Get(ctx, chosen.key, &stored); err != nil {
		return err
	}
	claim := stored.DeepCopy()
	switch {
	case claim.UID != chosen.uid:
		return errors.New("it was replaced by another of its name")
	case claim.DeletionTimestamp != nil:
		return fmt.Errorf("claim %s got deleted in the meantime", claim.Name)
	case chosen.allocation == nil && claim.Status.Allocation == nil:
		return fmt.Errorf("claim %s got deallocated elsewhere in the meantime", claim.Name)
	case chosen.allocation != nil && claim.Status.Allocation != nil && !equality.Semantic.DeepEqual(chosen.allocation, claim.Status.Allocation):
		return fmt.Errorf("claim %s got allocated elsewhere in the meantime", claim.Name)
	}
	if chosen.allocation != nil && claim.Status.Allocation == nil {
		// Before the allocation, so that an allocated claim is never deleted.
		if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
			claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
			if err := c.Update(ctx, claim); err != nil {
				return err
			}
		}
		claim.Status.Allocation = chosen.allocation.DeepCopy()
	}
	if resourceclaim.IsReservedForPod(pod, claim, false) {
		if equality.Semantic.DeepEqual(stored.Status, claim.Status) {
			return nil
		}
	} else {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	}
	return c.Status().Update(ctx, claim)
}

// deallocate releases the devices of claims that nobody uses, so that a pod can have others.
func (s *Scheduler) deallocate(ctx context.Context, pod *corev1.Pod, claims []types.NamespacedName) {
	for _, key := range claims {
		var stored resourcev1.ResourceClaim
		if s.client.Get(ctx, key, &stored) != nil || stored.Status.Allocation == nil ||
			slices.ContainsFunc(stored.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID != pod.UID }) {
			continue
		}
		claim := stored.DeepCopy()
		claim.Status.Allocation, claim.Status.ReservedFor = nil, nil
		if err := s.client.Status().Update(ctx, claim); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			s.log.Warn("could not deallocate resource claim", "claim", key.String(), "error", err)
		}
	}
}

// watchDevices watches what pods with resource claims depend on. It runs once there is such a pod.
func (s *Scheduler) watchDevices(ctx context.Context, synced func()) error {
	var wait []toolscache.ResourceEventHandlerRegistration
	for _, o := range []ctrlclient.Object{&resourcev1.ResourceClaim{}, &resourcev1.ResourceSlice{}, &resourcev1.DeviceClass{}, &resourcev1.DeviceTaintRule{}} {
		inf, err := s.client.Cache().GetInformer(ctx, o)
		if err != nil {
			return fmt.Errorf("informer of %T: %w", o, err)
		}
		reg, err := inf.AddEventHandler(deviceHandler{s})
		if err != nil {
			return fmt.Errorf("informer of %T: %w", o, err)
		}
		defer func() { _ = inf.RemoveEventHandler(reg) }() // a stopped informer has no handlers
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

// useDevices lets the first pod with resource claims begin to watch what such pods depend on, until ctx ends.
func (s *Scheduler) useDevices(ctx context.Context, wg *sync.WaitGroup) {
	d := s.state.devices
	d.start, d.synced = s.onDemand(ctx, wg, "resource claims", s.watchDevices)
}

// deviceHandler retries the pods that a change may help.
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
	before, _ := was.(*resourcev1.ResourceClaim)
	after, _ := is.(*resourcev1.ResourceClaim)
	freed := before != nil && before.Status.Allocation != nil && (after == nil || after.Status.Allocation == nil)
	if after == nil || freed {
		h.s.helpClaims("", "") // another kind, or devices that others may have now
		return
	}
	h.s.helpClaims(after.Namespace, after.Name)
}

// helpClaims retries the pods that use a claim, or all that use any.
func (s *Scheduler) helpClaims(namespace, name string) {
	at := now()
	for p := range s.queue.unschedulable {
		pod := p.info.pod
		if len(pod.Spec.ResourceClaims) == 0 || name != "" && pod.Namespace != namespace {
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

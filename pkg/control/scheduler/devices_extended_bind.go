package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// bindExtended stores the claim for a pod's extended resources, allocates and reserves it, and writes the
// containers' requests into the pod's status. It returns the stored claim.
func (s *Scheduler) bindExtended(ctx context.Context, c client.Interface, pod *corev1.Pod,
	chosen chosenClaim) (*resourcev1.ResourceClaim, error) {
	claim := chosen.extended.claim.DeepCopy()
	claim.Name, claim.UID = "", ""
	claim.Finalizers = []string{resourcev1.Finalizer} // saves a write that the cache would have to show
	if err := c.Create(ctx, claim); err != nil {
		return nil, fmt.Errorf("create claim for extended resources: %w", err)
	}
	chosen = s.stored(pod.UID, chosen, claim)
	stored, err := writeClaim(ctx, c, pod, chosen, claim)
	if apierrors.IsConflict(err) {
		stored, err = reserveClaim(ctx, c, pod, chosen)
	}
	if err != nil {
		return nil, err
	}
	// The resourceVersion makes the write fail if the pod was bound meanwhile: it must not get other devices than it
	// starts with.
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion}, "status": map[string]any{
			"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{
				RequestMappings: chosen.extended.mappings, ResourceClaimName: claim.Name,
			}},
	})
	if err != nil {
		return nil, err
	}
	if err := c.Status().Patch(ctx, reference(pod), ctrlclient.RawPatch(types.MergePatchType, body)); err != nil {
		return nil, fmt.Errorf("write the extended resource claim into the pod's status: %w", err)
	}
	return stored, nil
}

func (s *Scheduler) stored(pod types.UID, chosen chosenClaim, claim *resourcev1.ResourceClaim) chosenClaim {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.state.devices
	was := chosen.uid
	chosen.key, chosen.uid = ctrlclient.ObjectKeyFromObject(claim), claim.UID
	if i := slices.IndexFunc(d.chosen[pod], func(o chosenClaim) bool { return o.uid == was }); i >= 0 {
		d.chosen[pod][i] = chosen
	}
	if d.pending[was] == chosen.allocation {
		delete(d.pending, was)
		d.pending[chosen.uid] = chosen.allocation
	}
	return chosen
}

// abandonExtended deletes the stored claim of a pod that could not be bound, or leaves it to a later attempt.
func (s *Scheduler) abandonExtended(ctx context.Context, pod *corev1.Pod) {
	s.mu.Lock()
	chosen := s.state.devices.chosen[pod.UID]
	i := slices.IndexFunc(chosen, func(c chosenClaim) bool { return c.extended != nil && c.key.Name != "" })
	var claim *resourcev1.ResourceClaim
	if i >= 0 {
		claim = chosen[i].extended.claim.DeepCopy()
		claim.Name, claim.UID = chosen[i].key.Name, chosen[i].uid
	}
	s.mu.Unlock()
	if claim != nil {
		_ = s.deleteExtended(ctx, pod, claim) // it logs errors, and the pod is retried
	}
}

// deleteExtended deletes the claim unless the pod was bound with it, according to the API server, not the cache.
func (s *Scheduler) deleteExtended(ctx context.Context, pod *corev1.Pod, claim *resourcev1.ResourceClaim) error {
	err := s.tryDeleteExtended(ctx, pod, claim)
	if err != nil && ctx.Err() == nil {
		s.log.Warn("could not delete the claim of a pod that was not bound, retrying with the pod", "namespace",
			claim.Namespace, "claim", claim.Name, "pod", pod.Name, "error", err)
	}
	return err
}

func (s *Scheduler) tryDeleteExtended(ctx context.Context, pod *corev1.Pod, claim *resourcev1.ResourceClaim) error {
	now := reference(pod)
	asked, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}})
	if err != nil {
		return err
	}
	// The response to a patch without changes is the stored pod.
	switch err := s.client.Status().Patch(ctx, now, ctrlclient.RawPatch(types.MergePatchType, asked)); {
	case err == nil && now.Spec.NodeName != "" && now.Status.ExtendedResourceClaimStatus != nil &&
		now.Status.ExtendedResourceClaimStatus.ResourceClaimName == claim.Name:
		return nil
	case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err): // the pod was deleted or recreated
		return err
	}
	finalizers := slices.DeleteFunc(slices.Clone(claim.Finalizers), func(f string) bool {
		return f == resourcev1.Finalizer
	})
	free, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": claim.UID, "finalizers": finalizers}})
	if err != nil {
		return err
	}
	of := &resourcev1.ResourceClaim{}
	of.Namespace, of.Name = claim.Namespace, claim.Name
	if err := s.client.Patch(ctx, of, ctrlclient.RawPatch(types.MergePatchType, free)); err != nil &&
		!apierrors.IsConflict(err) {
		return ctrlclient.IgnoreNotFound(err)
	}
	return ctrlclient.IgnoreNotFound(s.client.Delete(ctx, of, ctrlclient.Preconditions{UID: &claim.UID}))
}

// retrySoon retries a pod after its back-off, without waiting for an event.
func (s *Scheduler) retrySoon(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.queue.pods[pod.UID]; p != nil {
		s.queue.retry(p, now())
	}
}

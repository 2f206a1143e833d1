package csi

import (
	"context"
	"fmt"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// expand has the driver expand the file system or device of a volume, after the resizer has done its part. The
// progress is in the claim's status (KEP-1790): an expansion that the driver calls infeasible is not retried until
// the resizer asks again, perhaps for a smaller size. The events are the kubelet's.
func (m *Manager) expand(ctx context.Context, c *connection, p volume.Pod, r *request, target string) error {
	size := r.persistent.Spec.Capacity[corev1.ResourceStorage]
	if allocated, has := r.claim.Status.AllocatedResources[corev1.ResourceStorage]; has {
		size = allocated // smaller than the volume's capacity if the first request was infeasible
	}
	have, known := r.claim.Status.Capacity[corev1.ResourceStorage]
	if !known || size.Cmp(have) <= 0 || !c.can[spec.NodeServiceCapability_RPC_EXPAND_VOLUME] || !leftToNode(r.claim) {
		return nil
	}
	both := func(kind, reason, message string) {
		m.about(p, kind, reason, message)
		m.c.Event(corev1.ObjectReference{
			APIVersion: "v1",
			Kind:       "PersistentVolumeClaim",
			Namespace:  r.claim.Namespace,
			Name:       r.claim.Name,
			UID:        r.claim.UID,
		}, kind, reason, message)
	}
	if r.readOnly {
		both(corev1.EventTypeWarning, "FileSystemResizeFailed",
			fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q : requested read-only file system", p.Volume))
		return nil
	}
	secrets, err := m.secrets(ctx, "NodeExpandSecretRef", r.persistent.Spec.CSI.NodeExpandSecretRef)
	if err != nil {
		return err
	}
	claim, err := m.changeClaim(ctx, r.claim, func(s *corev1.PersistentVolumeClaimStatus) {
		setResize(s, corev1.PersistentVolumeClaimNodeResizeInProgress)
	})
	if apierrors.IsConflict(err) {
		return nil // the next Setup retries with the current claim
	}
	if err != nil {
		return err
	}
	_, err = c.NodeExpandVolume(ctx, &spec.NodeExpandVolumeRequest{
		VolumeId: r.handle, VolumePath: target, StagingTargetPath: r.staging,
		CapacityRange:    &spec.CapacityRange{RequiredBytes: size.Value()},
		VolumeCapability: capability(c, r), Secrets: secrets,
	})
	if err != nil {
		failure := fmt.Errorf("MountVolume.NodeExpandVolume failed for volume %q : %w", r.name, err)
		_, err = m.changeClaim(ctx, claim, func(s *corev1.PersistentVolumeClaimStatus) {
			if impossible(failure) {
				setResize(s, corev1.PersistentVolumeClaimNodeResizeInfeasible)
			}
			s.Conditions = append(withoutCondition(s.Conditions, corev1.PersistentVolumeClaimNodeResizeError),
				corev1.PersistentVolumeClaimCondition{
					Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
					Message: "failed to expand pvc with " + failure.Error(),
				})
		})
		if err != nil && !apierrors.IsConflict(err) {
			m.c.Logger.Warn("could not record that a volume was not expanded", "volume", r.name, "error", err)
		}
		return failure
	}
	_, err = m.changeClaim(ctx, claim, func(s *corev1.PersistentVolumeClaimStatus) {
		s.Capacity[corev1.ResourceStorage] = size
		s.Conditions = withoutCondition(s.Conditions, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimResizing,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError)
		delete(s.AllocatedResourceStatuses, corev1.ResourceStorage)
	})
	if apierrors.IsConflict(err) {
		return nil // the next Setup repeats the call, which is idempotent
	}
	if err == nil {
		both(corev1.EventTypeNormal, "FileSystemResizeSuccessful",
			fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", p.Volume, m.c.NodeName))
	}
	return err
}

func (m *Manager) about(p volume.Pod, kind, reason, message string) {
	m.c.Event(corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		kind, reason, message)
}

// leftToNode reports whether the resizer has left the expansion to the node. Old resizers set no status.
func leftToNode(c *corev1.PersistentVolumeClaim) bool {
	switch c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		return true
	case "":
		return len(c.Status.AllocatedResources) == 0
	}
	return false
}

// impossible reports whether the driver cannot give the volume its size, by the kubelet's list of codes.
func impossible(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return true
	}
	return false
}

func setResize(s *corev1.PersistentVolumeClaimStatus, to corev1.ClaimResourceStatus) {
	if s.AllocatedResourceStatuses == nil {
		s.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	s.AllocatedResourceStatuses[corev1.ResourceStorage] = to
}

func withoutCondition(all []corev1.PersistentVolumeClaimCondition,
	kinds ...corev1.PersistentVolumeClaimConditionType) []corev1.PersistentVolumeClaimCondition {
	return slices.DeleteFunc(slices.Clone(all), func(c corev1.PersistentVolumeClaimCondition) bool {
		return slices.Contains(kinds, c.Type)
	})
}

// changeClaim patches a claim's status. It fails with a conflict if the claim has changed since it was read.
func (m *Manager) changeClaim(ctx context.Context, was *corev1.PersistentVolumeClaim,
	change func(*corev1.PersistentVolumeClaimStatus)) (*corev1.PersistentVolumeClaim, error) {
	next := was.DeepCopy()
	change(&next.Status)
	return next, m.c.Client.Status().Patch(ctx, next, ctrl.MergeFromWithOptions(was, ctrl.MergeFromWithOptimisticLock{}))
}

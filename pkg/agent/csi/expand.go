package csi

import (
	"context"
	"fmt"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

// expand asks the driver to expand the file system of a volume that has grown, and writes its size into the claim's status.
func (m *Manager) expand(ctx context.Context, c *connection, r *request, target string) error {
	size := r.persistent.Spec.Capacity[corev1.ResourceStorage]
	have, known := r.claim.Status.Capacity[corev1.ResourceStorage]
	if !known || size.Cmp(have) <= 0 || r.readOnly || !c.can[spec.NodeServiceCapability_RPC_EXPAND_VOLUME] {
		return nil
	}
	_, err := c.NodeExpandVolume(ctx, &spec.NodeExpandVolumeRequest{
		VolumeId: r.handle, VolumePath: target, StagingTargetPath: r.staging, CapacityRange: &spec.CapacityRange{RequiredBytes: size.Value()},
		VolumeCapability: capability(c, r),
	})
	if err != nil {
		return fmt.Errorf("MountVolume.NodeExpandVolume failed for volume %q : %w", r.name, err)
	}
	claim := r.claim.DeepCopy()
	claim.Status.Capacity[corev1.ResourceStorage] = size
	claim.Status.Conditions = slices.DeleteFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending || c.Type == corev1.PersistentVolumeClaimResizing || c.Type == corev1.PersistentVolumeClaimNodeResizeError
	})
	delete(claim.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
	err = m.c.Client.Status().Patch(ctx, claim, ctrl.MergeFromWithOptions(r.claim, ctrl.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return nil // it is repeated with the newest claim
	}
	return err
}

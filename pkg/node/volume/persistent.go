package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"
	storage "k8s.io/component-helpers/storage/volume"
)

// PersistentPlugin is a Plugin that handles persistent volumes. Setup gets them in Pod.Persistent.
type PersistentPlugin interface {
	Plugin
	// CanSupportPersistent reports whether the plugin handles persistent volumes with this source.
	CanSupportPersistent(*corev1.PersistentVolumeSource) bool
}

// Persistent is the volume that is bound to a pod's claim. The objects are shared and must not be modified.
type Persistent struct {
	Volume *corev1.PersistentVolume
	Claim  *corev1.PersistentVolumeClaim
	// ReadOnly is set if the pod asks for a read-only volume.
	ReadOnly bool
}

// Block reports whether the volume is a block device (volumeMode Block).
func (p *Persistent) Block() bool {
	mode := p.Volume.Spec.VolumeMode
	return mode != nil && *mode == corev1.PersistentVolumeBlock
}

// usedAs checks that containers use the volume by its volumeMode. The error texts are the kubelet's.
func (p *Persistent) usedAs(pod *corev1.Pod, name string) error {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if p.Block() && slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name }) {
			return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeMounts", name,
				corev1.PersistentVolumeBlock)
		}
		if !p.Block() && slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == name }) {
			return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeDevices", name,
				corev1.PersistentVolumeFilesystem)
		}
	}
	return nil
}

// claimOf returns the name of a volume's claim, "" for none, and whether the pod uses it read-only.
func claimOf(p *corev1.Pod, v *corev1.Volume) (name string, readOnly bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, v.PersistentVolumeClaim.ReadOnly
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(p, v), false
	}
	return "", false
}

// persistent returns the volume bound to a claim of the pod, or nil if v has no claim. The error texts are the
// kubelet's. inUse means that the volume was already set up for this pod: then the claim may be terminating.
func (m *Manager) persistent(ctx context.Context, p *corev1.Pod, v *corev1.Volume, inUse bool) (*Persistent, error) {
	name, readOnly := claimOf(p, v)
	if name == "" {
		return nil, nil //nolint:nilnil // most volumes have no claim
	}
	out, err := m.bound(ctx, p, v, name, inUse)
	if err != nil {
		return nil, fmt.Errorf("error processing PVC %s/%s: %w", p.Namespace, name, err)
	}
	out.ReadOnly = readOnly
	return out, out.usedAs(p, v.Name)
}

func (m *Manager) bound(ctx context.Context, p *corev1.Pod, v *corev1.Volume, name string,
	inUse bool) (*Persistent, error) {
	var claim corev1.PersistentVolumeClaim
	if err := m.c.Client.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: name}, &claim); err != nil {
		return nil, fmt.Errorf("failed to fetch PVC from API server: %w", err)
	}
	if v.Ephemeral != nil {
		if err := ephemeral.VolumeIsForPod(p, &claim); err != nil {
			return nil, err
		}
	}
	switch {
	case claim.DeletionTimestamp != nil && !inUse:
		return nil, errors.New("PVC is being deleted")
	case claim.Status.Phase != corev1.ClaimBound:
		return nil, errors.New("PVC is not bound")
	case claim.Spec.VolumeName == "":
		return nil, errors.New("PVC has empty pvc.Spec.VolumeName")
	}
	var pv corev1.PersistentVolume
	if err := m.c.Client.Get(ctx, types.NamespacedName{Name: claim.Spec.VolumeName}, &pv); err != nil {
		return nil, fmt.Errorf("failed to fetch PV %s from API server: %w", claim.Spec.VolumeName, err)
	}
	if pv.Spec.ClaimRef == nil {
		return nil, fmt.Errorf("found PV object %s but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the "+
			"claim", pv.Name)
	}
	if pv.Spec.ClaimRef.UID != claim.UID {
		return nil, fmt.Errorf("found PV object %s but its pv.Spec.ClaimRef.UID %s does not point to claim.UID %s", pv.Name,
			pv.Spec.ClaimRef.UID, claim.UID)
	}
	return &Persistent{Volume: &pv, Claim: &claim}, m.mayUse(&pv)
}

// mayUse checks that the volume's node affinity allows this node.
func (m *Manager) mayUse(pv *corev1.PersistentVolume) error {
	if pv.Spec.NodeAffinity == nil || m.c.Node == nil {
		return nil
	}
	n := m.c.Node()
	if n == nil {
		return apierrors.NewServiceUnavailable("the node is not registered yet")
	}
	if err := storage.CheckNodeAffinity(pv, n.Labels); err != nil {
		return fmt.Errorf("MountVolume.NodeAffinity check failed for volume %q : %w", pv.Name, err)
	}
	return nil
}

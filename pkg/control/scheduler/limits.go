package scheduler

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	helpers "k8s.io/component-helpers/storage/volume"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// Messages of NodeVolumeLimits.
const (
	tooManyVolumes  = "node(s) exceed max volume count"
	driverIsMissing = "%s CSI driver is not installed on the node"
)

type csiVolumes map[string]string

// csiVolumesOf returns the CSI volumes of claims. An unbound claim counts for its class's provisioner.
func (v *volumes) csiVolumesOf(claims []types.NamespacedName) csiVolumes {
	var out csiVolumes
	for _, key := range claims {
		var claim corev1.PersistentVolumeClaim
		if v.read.Get(context.Background(), key, &claim) != nil {
			continue // VolumeBinding rejects the pod if it is new
		}
		driver, volume := v.csiVolume(&claim)
		if driver == "" {
			continue
		}
		if out == nil {
			out = csiVolumes{}
		}
		out[driver+"/"+volume] = driver
	}
	return out
}

func (v *volumes) csiVolume(claim *corev1.PersistentVolumeClaim) (driver, volume string) {
	ctx := context.Background()
	if name := claim.Spec.VolumeName; name != "" {
		var pv corev1.PersistentVolume
		if v.read.Get(ctx, ctrlclient.ObjectKey{Name: name}, &pv) == nil {
			if pv.Spec.CSI == nil {
				return "", ""
			}
			return pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle
		}
	}
	var class storagev1.StorageClass
	if name := helpers.GetPersistentVolumeClaimClass(claim); name == "" ||
		v.read.Get(ctx, ctrlclient.ObjectKey{Name: name}, &class) != nil {
		return "", ""
	}
	return class.Provisioner, "claim " + claim.Namespace + "/" + claim.Name
}

// prepareLimits finds the pod's volumes that count towards drivers' limits. It returns false if there are none.
func prepareLimits(c *cycle) bool {
	if len(c.claims) == 0 {
		return false
	}
	if c.csi == nil {
		if c.csi = c.state.volumes.csiVolumesOf(c.claims); c.csi == nil {
			c.csi = csiVolumes{}
		}
	}
	return len(c.csi) > 0
}

// limits returns a message if the node lacks a driver that must be installed for its pods, or if a driver
// would exceed the volume limit of the node's CSINode.
func limits(c *cycle, n *nodeInfo) []string {
	v := c.state.volumes
	var node storagev1.CSINode
	// A node without a CSINode has no drivers.
	_ = v.read.Get(context.Background(), ctrlclient.ObjectKey{Name: n.name}, &node)
	most, installed := map[string]int{}, map[string]bool{}
	for _, d := range node.Spec.Drivers {
		installed[d.Name] = true
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			most[d.Name] = int(*d.Allocatable.Count)
		}
	}
	limited := false
	for _, driver := range c.csi {
		if !installed[driver] && v.insists(driver) {
			return []string{fmt.Sprintf(driverIsMissing, driver)}
		}
		_, ok := most[driver]
		limited = limited || ok
	}
	if !limited {
		return nil
	}
	attached := maps.Clone(c.attachments()[n.name])
	if attached == nil {
		attached = csiVolumes{}
	}
	for _, p := range n.pods {
		maps.Copy(attached, v.csiVolumesOf(p.claims))
	}
	maps.Copy(attached, c.csi)
	count := map[string]int{}
	for _, driver := range attached {
		count[driver]++
	}
	for _, driver := range c.csi {
		if limit, ok := most[driver]; ok && count[driver] > limit {
			return []string{tooManyVolumes}
		}
	}
	return nil
}

// insists reports whether the driver allows its pods only on nodes where it is installed (KEP-5030).
func (v *volumes) insists(driver string) bool {
	var d storagev1.CSIDriver
	return v.read.Get(context.Background(), ctrlclient.ObjectKey{Name: driver}, &d) == nil &&
		d.Spec.PreventPodSchedulingIfMissing != nil && *d.Spec.PreventPodSchedulingIfMissing
}

// attachments returns the volumes that are attached to each node, including volumes of its pods.
func (c *cycle) attachments() map[string]csiVolumes {
	if c.attached != nil {
		return c.attached
	}
	c.attached = map[string]csiVolumes{}
	read := c.state.volumes.read
	var list storagev1.VolumeAttachmentList
	if read.List(context.Background(), &list) != nil {
		return c.attached // the cache is stopping
	}
	for i := range list.Items {
		a := &list.Items[i].Spec
		var pv corev1.PersistentVolume
		if a.Source.PersistentVolumeName == nil ||
			read.Get(context.Background(), ctrlclient.ObjectKey{
				Name: *a.Source.PersistentVolumeName,
			}, &pv) != nil || pv.Spec.CSI == nil {
			continue
		}
		if c.attached[a.NodeName] == nil {
			c.attached[a.NodeName] = csiVolumes{}
		}
		c.attached[a.NodeName][a.Attacher+"/"+pv.Spec.CSI.VolumeHandle] = a.Attacher
	}
	return c.attached
}

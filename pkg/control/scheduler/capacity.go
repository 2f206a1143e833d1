package scheduler

import (
	"context"
	"math"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

const notEnoughSpace = "node(s) did not have enough free storage"

// pool is storage of a driver for some nodes, in bytes (KEP-1472).
type pool struct {
	nodes    labels.Selector
	capacity int64
}

// pools returns the pools large enough for a claim's volume. A driver without published capacity counts as unlimited.
func (v *volumes) pools(claim *corev1.PersistentVolumeClaim,
	class *storagev1.StorageClass) (fitting []pool, published bool) {
	size, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	var driver storagev1.CSIDriver
	if !ok || v.read.Get(context.Background(), ctrlclient.ObjectKey{Name: class.Provisioner}, &driver) != nil ||
		!ptr.Deref(driver.Spec.StorageCapacity, false) {
		return nil, false
	}
	var list storagev1.CSIStorageCapacityList
	if v.read.List(context.Background(), &list) != nil {
		return nil, true
	}
	for i := range list.Items {
		c := &list.Items[i]
		most := c.Capacity
		if c.MaximumVolumeSize != nil {
			most = c.MaximumVolumeSize
		}
		if c.StorageClassName != class.Name || c.NodeTopology == nil || most == nil || most.Cmp(size) < 0 {
			continue
		}
		if c.Capacity != nil {
			most = c.Capacity
		}
		if nodes, err := metav1.LabelSelectorAsSelector(c.NodeTopology); err == nil {
			fitting = append(fitting, pool{nodes, most.Value()})
		}
	}
	return fitting, true
}

// pool returns a pool in which the claim's volume can be provisioned for a node, or nil.
func (d *delayedClaim) pool(n *nodeInfo) *pool {
	for i := range d.pools {
		if d.pools[i].nodes.Matches(labels.Set(n.node.Labels)) {
			return &d.pools[i]
		}
	}
	return nil
}

func prepareSpace(c *cycle) bool { return prepareVolumes(c) && len(c.volumes.delayed) > 0 }

// space prefers nodes with the largest fraction of free storage (StorageCapacityScoring), in the volumes to bind or,
// without any, in the pools to provision from. All classes have the same weight.
func space(c *cycle, n *nodeInfo) int64 {
	chosen := &choice{static: map[types.NamespacedName]string{}}
	if len(c.volumesUnfit(n, chosen)) > 0 {
		return 0
	}
	type use struct{ requested, capacity float64 } // floats: a claim may request any amount
	classes := map[string]use{}
	for i := range c.volumes.delayed {
		d := &c.volumes.delayed[i]
		u := classes[d.class.Name]
		if len(chosen.static) > 0 {
			pv := d.candidate(chosen.static[d.key])
			if pv == nil {
				continue
			}
			u.capacity += pv.Spec.Capacity.Storage().AsApproximateFloat64()
		} else {
			p := d.pool(n)
			if p == nil {
				continue
			}
			u.capacity = float64(p.capacity) // shared by all claims of the class
		}
		u.requested += d.Spec.Resources.Requests.Storage().AsApproximateFloat64()
		classes[d.class.Name] = u
	}
	if len(classes) == 0 {
		return 0
	}
	var sum float64
	for _, u := range classes {
		if u.capacity > 0 && u.requested <= u.capacity && !math.IsInf(u.capacity, 0) {
			sum += mostScore - math.Floor(u.requested*mostScore/u.capacity)
		}
	}
	return int64(math.Round(sum / float64(len(classes))))
}

func (d *delayedClaim) candidate(name string) *corev1.PersistentVolume {
	for _, pv := range d.candidates {
		if pv.Name == name {
			return pv
		}
	}
	return nil
}

package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
)

// annotationNodeID holds the node IDs that drivers use for this node, as JSON by driver.
const annotationNodeID = "csi.volume.kubernetes.io/nodeid"

const (
	maxTopology = 64 // per driver
	conflicts   = 6  // attempts to write an object despite conflicts
)

// publish writes a driver's node ID, topology and volume limit into the Node and the CSINode, like the kubelet.
func (m *Manager) publish(ctx context.Context, name string, info *spec.NodeGetInfoResponse) error {
	entry, err := entryOf(name, info)
	if err != nil {
		return err
	}
	topology := info.GetAccessibleTopology().GetSegments()
	m.node.Lock()
	defer m.node.Unlock()
	err = m.changeNode(ctx, func(n *corev1.Node, ids map[string]string) error {
		for key, value := range topology {
			if have, has := n.Labels[key]; has && have != value {
				return fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", key,
					value, key, have)
			}
			if errs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(errs) > 0 {
				return fmt.Errorf("the driver's topology %q:%q is not a label: %s", key, value, errs[0])
			}
			if n.Labels == nil {
				n.Labels = map[string]string{}
			}
			n.Labels[key] = value
		}
		ids[name] = info.GetNodeId()
		return nil
	})
	if err != nil {
		return fmt.Errorf("error updating Node object with CSI driver node info: %w", err)
	}
	if err := m.changeCSINode(ctx, name, &entry); err != nil {
		return fmt.Errorf("error updating CSINode object with CSI driver node info: %w", err)
	}
	return nil
}

func entryOf(name string, info *spec.NodeGetInfoResponse) (storagev1.CSINodeDriver, error) {
	topology := info.GetAccessibleTopology().GetSegments()
	entry := storagev1.CSINodeDriver{
		Name:         name,
		NodeID:       info.GetNodeId(),
		TopologyKeys: slices.Sorted(maps.Keys(topology)),
	}
	switch most := info.GetMaxVolumesPerNode(); {
	case entry.NodeID == "":
		return entry, errors.New("error adding CSI driver node info: driverNodeID must not be empty")
	case len(topology) > maxTopology:
		return entry, fmt.Errorf("the driver reports %d topology keys, at most %d are accepted", len(topology), maxTopology)
	case most > 0:
		entry.Allocatable = &storagev1.VolumeNodeResources{Count: new(int32(min(most, 1<<31-1)))}
	}
	return entry, nil
}

// withdraw undoes publish, except for the topology labels, which the node affinity of persistent volumes may use.
func (m *Manager) withdraw(ctx context.Context, name string) error {
	m.node.Lock()
	defer m.node.Unlock()
	return errors.Join(m.changeCSINode(ctx, name, nil),
		m.changeNode(ctx, func(_ *corev1.Node, ids map[string]string) error {
			delete(ids, name)
			return nil
		}))
}

// changeNode changes the Node's labels and the annotation with the drivers' node IDs.
func (m *Manager) changeNode(ctx context.Context, change func(*corev1.Node, map[string]string) error) error {
	return retry(ctx, func() error {
		var old corev1.Node
		if err := m.c.Client.Get(ctx, types.NamespacedName{Name: m.c.NodeName}, &old); err != nil {
			return err
		}
		n, ids := old.DeepCopy(), map[string]string{}
		if text := n.Annotations[annotationNodeID]; text != "" {
			if err := json.Unmarshal([]byte(text), &ids); err != nil {
				return fmt.Errorf("failed to parse node's %q annotation value (%q) err=%w", annotationNodeID, text, err)
			}
		}
		if err := change(n, ids); err != nil {
			return err
		}
		if len(ids) == 0 {
			delete(n.Annotations, annotationNodeID)
		} else {
			text, err := json.Marshal(ids)
			if err != nil {
				return err
			}
			if n.Annotations == nil {
				n.Annotations = map[string]string{}
			}
			n.Annotations[annotationNodeID] = string(text)
		}
		if maps.Equal(n.Labels, old.Labels) && maps.Equal(n.Annotations, old.Annotations) {
			return nil
		}
		return m.c.Client.Patch(ctx, n, ctrl.MergeFromWithOptions(&old, ctrl.MergeFromWithOptimisticLock{}))
	})
}

// changeCSINode replaces a driver's entry; nil removes it. The first entry creates the CSINode, owned by the Node.
func (m *Manager) changeCSINode(ctx context.Context, name string, entry *storagev1.CSINodeDriver) error {
	return retry(ctx, func() error {
		var old storagev1.CSINode
		err := m.c.Client.Get(ctx, types.NamespacedName{Name: m.c.NodeName}, &old)
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return err
		}
		n := old.DeepCopy()
		n.Spec.Drivers = slices.DeleteFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == name })
		if entry != nil {
			n.Spec.Drivers = append(n.Spec.Drivers, *entry)
		}
		switch {
		case missing && entry == nil:
			return nil
		case missing:
			node := m.c.Node()
			if node == nil {
				return errors.New("the node is not registered yet")
			}
			n.Name = m.c.NodeName
			n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
			return m.c.Client.Create(ctx, n)
		case apiequality.Semantic.DeepEqual(old.Spec, n.Spec):
			return nil
		}
		// Only an entry's count may be changed (KEP-4876). To change anything else, remove the entry first.
		if i := slices.IndexFunc(old.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == name }); i >= 0 &&
			entry != nil && !same(old.Spec.Drivers[i], *entry) {
			without := old.DeepCopy()
			without.Spec.Drivers = slices.Delete(without.Spec.Drivers, i, i+1)
			if err := m.c.Client.Update(ctx, without); err != nil {
				return err
			}
			n.ResourceVersion = without.ResourceVersion
		}
		return m.c.Client.Update(ctx, n)
	})
}

// same reports whether two entries differ at most in their Allocatable.
func same(a, b storagev1.CSINodeDriver) bool {
	a.Allocatable, b.Allocatable = nil, nil
	return apiequality.Semantic.DeepEqual(a, b)
}

func retry(ctx context.Context, write func() error) error {
	again := backoff.Backoff{First: 10 * time.Millisecond, Most: time.Minute}
	for attempt := 1; ; attempt++ {
		err := write()
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) || attempt == conflicts {
			return err
		}
		if !again.Wait(ctx) {
			return ctx.Err()
		}
	}
}

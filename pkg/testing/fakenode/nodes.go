package fakenode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var errForeign = errors.New("exists and is not a fake node: use another prefix")

func (n *Nodes) name(i int) string { return n.Prefix + strconv.Itoa(i) }

// number returns the number of a node by its name. It returns false for any other node.
func (n *Nodes) number(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, n.Prefix)
	if !ok || digits == "" || digits[0] == '+' || digits[0] == '-' || digits[0] == '0' && digits != "0" {
		return 0, false
	}
	i, err := strconv.Atoi(digits)
	return i, err == nil && i < n.Count
}

func (n *Nodes) selector() string { return Label + "=" + n.label() }

// each calls f with the numbers of all nodes from several workers, until a call fails or ctx is done. It waits for
// calls that have begun, because an abandoned request could take effect after the nodes have been removed.
func (n *Nodes) each(ctx context.Context, workers int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n.Count {
					return
				}
				request, done := context.WithTimeout(context.WithoutCancel(ctx), timeout)
				if err := f(request, i); err != nil {
					cancel(err)
				}
				done()
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// register creates the nodes and their leases. It adopts nodes with the same prefix that an earlier process could
// not delete.
func (n *Nodes) register(ctx context.Context) error {
	return n.each(ctx, registerWorkers, func(ctx context.Context, i int) error {
		node, err := n.client.CoreV1().Nodes().Create(ctx, n.node(i), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			if node, err = n.client.CoreV1().Nodes().Get(ctx, n.name(i), metav1.GetOptions{}); err == nil &&
				node.Labels[Label] != n.label() {
				return fmt.Errorf("node %s %w", node.Name, errForeign)
			}
			if err == nil {
				node, err = n.adopt(ctx, node, i)
			}
		}
		if err != nil {
			return fmt.Errorf("could not register node %s: %w", n.name(i), err)
		}
		n.ours[i].Store(true)
		return n.lease(ctx, node)
	})
}

func (n *Nodes) adopt(ctx context.Context, node *corev1.Node, i int) (*corev1.Node, error) {
	node.Status = n.node(i).Status
	return n.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
}

func (n *Nodes) lease(ctx context.Context, node *corev1.Node) error {
	seconds, now := int32(leaseSeconds), metav1.NowMicro()
	_, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: map[string]string{Label: n.label()},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node.Name, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // renew keeps it from now on
	}
	return err
}

func (n *Nodes) node(i int) *corev1.Node {
	now := metav1.Now()
	labels := map[string]string{
		corev1.LabelHostname:   n.name(i),
		corev1.LabelOSStable:   "linux",
		corev1.LabelArchStable: "amd64",
	}
	maps.Copy(labels, n.Labels)
	labels[Label] = n.label()
	room := corev1.ResourceList{
		corev1.ResourceCPU: n.CPU, corev1.ResourceMemory: n.Memory,
		corev1.ResourcePods:             *resource.NewQuantity(n.Pods, resource.DecimalSI),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
	var conditions []corev1.NodeCondition
	for _, c := range []struct {
		kind            corev1.NodeConditionType
		status          corev1.ConditionStatus
		reason, message string
	}{
		{corev1.NodeMemoryPressure, corev1.ConditionFalse, "FakeNode", "the node is fake"},
		{corev1.NodeDiskPressure, corev1.ConditionFalse, "FakeNode", "the node is fake"},
		{corev1.NodePIDPressure, corev1.ConditionFalse, "FakeNode", "the node is fake"},
		{corev1.NodeReady, corev1.ConditionTrue, "FakeNode", "the node is fake, and always ready"},
	} {
		conditions = append(conditions, corev1.NodeCondition{
			Type:               c.kind,
			Status:             c.status,
			Reason:             c.reason,
			Message:            c.message,
			LastHeartbeatTime:  now,
			LastTransitionTime: now,
		})
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name(i), Labels: labels},
		Spec:       corev1.NodeSpec{Taints: n.Taints},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: conditions,
			// No IP address: nothing can connect to the node, and routes to it would lead nowhere.
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.name(i)}},
			// The nodes declare all features that a pod may require (KEP-5328), since no container runs there.
			DeclaredFeatures: []string{
				"InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
				"RestartAllContainersOnContainerExits",
			},
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion:          "fake",
				OperatingSystem:         "linux",
				Architecture:            "amd64",
				OSImage:                 "none",
				ContainerRuntimeVersion: "fake://0",
			}},
	}
}

// renew renews the leases of all nodes repeatedly, evenly spread over renewPeriod.
func (n *Nodes) renew(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for w := range min(renewWorkers, n.Count) {
		all.Go(func() {
			pace := time.NewTicker(max(renewPeriod/time.Duration((n.Count+renewWorkers-1)/renewWorkers), time.Millisecond))
			defer pace.Stop()
			for {
				for i := w; i < n.Count; i += renewWorkers {
					select {
					case <-ctx.Done():
						return
					case <-pace.C:
					}
					if n.ours[i].Load() {
						n.renewOne(ctx, i)
					}
				}
			}
		})
	}
}

func (n *Nodes) renewOne(ctx context.Context, i int) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{
		"spec": map[string]any{
			"renewTime":            metav1.NowMicro(),
			"holderIdentity":       n.name(i),
			"leaseDurationSeconds": leaseSeconds,
		},
	})
	if err != nil {
		return
	}
	_, err = n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Patch(ctx, n.name(i), types.MergePatchType, patch,
		metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		var node *corev1.Node
		if node, err = n.client.CoreV1().Nodes().Get(ctx, n.name(i), metav1.GetOptions{}); apierrors.IsNotFound(err) {
			n.ours[i].Store(false) // deleted by another client: it stays deleted
			return
		} else if err == nil {
			err = n.lease(ctx, node)
		}
	}
	if err != nil {
		n.failed(ctx, "renew lease of "+n.name(i), err)
	}
}

// remove deletes the nodes, then the pods on them, and their leases.
func (n *Nodes) remove(ctx context.Context) error {
	n.Progress("Removing the nodes and their pods.")
	mine := metav1.ListOptions{LabelSelector: n.selector()}
	err := n.client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, mine)
	err = errors.Join(err, n.removePods(ctx))
	return errors.Join(err,
		n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).DeleteCollection(ctx, metav1.DeleteOptions{}, mine))
}

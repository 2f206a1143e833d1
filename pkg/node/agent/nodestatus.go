package agent

import (
	"context"
	"encoding/json"
	"maps"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/node/pod"
)

// postStatus writes the node's status if it changed, or with force as a heartbeat. It reports whether it wrote.
func (a *Agent) postStatus(ctx context.Context, force bool) (bool, error) {
	a.mu.Lock()
	n := a.node
	a.mu.Unlock()
	want := a.status(n.Status, force)
	if apiequality.Semantic.DeepEqual(n.Status, want) {
		return false, nil
	}
	before, err := json.Marshal(&corev1.Node{Status: n.Status})
	if err != nil {
		return false, err
	}
	after, err := json.Marshal(&corev1.Node{Status: want})
	if err != nil {
		return false, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Node{})
	if err != nil {
		return false, err
	}
	answer := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	if err := a.c.Client.Status().Patch(ctx, answer, ctrl.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
		if apierrors.IsNotFound(err) {
			a.nodeDeleted.Store(true)
			a.wakeStatus()
			return false, nil
		}
		return false, err
	}
	a.nodeChanged(ctx, answer)
	a.wakeNode()
	return true, nil
}

// status computes the node's status from the previous one. A heartbeat also renews heartbeat times and images.
func (a *Agent) status(old corev1.NodeStatus, heartbeat bool) corev1.NodeStatus {
	s := *old.DeepCopy()
	a.mu.Lock()
	up, port, refused := a.network, a.port, a.refused[a.c.NodeName]
	a.mu.Unlock()
	s.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: a.c.NodeIP.String()},
		{Type: corev1.NodeHostName, Address: a.c.NodeName}}
	s.Capacity, s.Allocatable = a.capacity(), a.allocatable()
	if a.devices != nil {
		all, healthy := a.devices.Resources()
		maps.Copy(s.Capacity, all)
		maps.Copy(s.Allocatable, healthy)
		s.VolumesInUse = a.csi.VolumesInUse()
	}
	for _, from := range []corev1.ResourceList{old.Capacity, old.Allocatable} {
		for name, q := range from { // other components set extended resources
			if _, own := s.Capacity[name]; !own && extended(name) {
				s.Capacity[name], s.Allocatable[name] = q, q
			}
		}
	}
	s.NodeInfo = a.machine.info
	s.NodeInfo.ContainerRuntimeVersion = a.c.Runtime.Version()
	s.NodeInfo.KubeletVersion = version.Kubernetes
	s.RuntimeHandlers = pod.RuntimeHandlers(a.c.UserNamespaces != nil && a.c.UserNamespaces() == nil)
	s.DeclaredFeatures, s.Features = pod.DeclaredFeatures(), &corev1.NodeFeatures{SupplementalGroupsPolicy: new(true)}
	s.DaemonEndpoints.KubeletEndpoint.Port = port
	if heartbeat {
		s.Images = a.imageList()
	}
	now := metav1.Now().Rfc3339Copy() // the API's resolution is seconds
	for _, c := range a.eviction.Conditions() {
		setNodeCondition(&s, c, now, heartbeat)
	}
	ready := corev1.NodeCondition{
		Type:    corev1.NodeReady,
		Status:  corev1.ConditionTrue,
		Reason:  "KubeletReady",
		Message: "the agent is posting ready status",
	}
	if a.shuttingDown() {
		ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "KubeletNotReady", "node is shutting down"
	} else if !up {
		ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "KubeletNotReady", "the pod network waits for "+
			"the node's podCIDR"
		if refused != "" {
			ready.Message = "the node's podCIDR is refused: " + refused
		}
	}
	setNodeCondition(&s, ready, now, heartbeat)
	return s
}

func extended(name corev1.ResourceName) bool { return strings.Contains(string(name), "/") }

func setNodeCondition(s *corev1.NodeStatus, c corev1.NodeCondition, now metav1.Time, heartbeat bool) {
	c.LastHeartbeatTime, c.LastTransitionTime = now, now
	for i := range s.Conditions {
		old := s.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
			if !heartbeat && old.Reason == c.Reason {
				c.LastHeartbeatTime = old.LastHeartbeatTime
			}
		}
		s.Conditions[i] = c
		return
	}
	s.Conditions = append(s.Conditions, c)
}

func (a *Agent) imageList() []corev1.ContainerImage {
	list, err := a.c.Runtime.Images().List(context.Background())
	if err != nil {
		return nil
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Size > list[j].Size })
	var out []corev1.ContainerImage
	for _, i := range list[:min(len(list), 50)] {
		names := append(append([]string{}, i.Digests...), i.Names...)
		if len(names) > 5 {
			names = names[:5]
		}
		out = append(out, corev1.ContainerImage{Names: names, SizeBytes: i.Size})
	}
	return out
}

func (a *Agent) capacity() corev1.ResourceList {
	l := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(a.machine.cpus), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(a.machine.memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(a.machine.disk, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(int64(a.c.MaxPods), resource.DecimalSI),
	}
	for size, bytes := range a.machine.hugePages {
		l[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size)] = *resource.NewQuantity(bytes, resource.BinarySI)
	}
	return l
}

func (a *Agent) allocatable() corev1.ResourceList {
	l, whole := a.capacity(), a.capacity()
	if r := a.c.Reserved; r.PIDs > 0 { // the zero value reserves nothing
		cpu, memory := l[corev1.ResourceCPU], l[corev1.ResourceMemory]
		l[corev1.ResourceCPU] = *resource.NewMilliQuantity(max(cpu.MilliValue()-r.MilliCPU, 0), resource.DecimalSI)
		l[corev1.ResourceMemory] = *resource.NewQuantity(memory.Value()-r.MemoryOf(memory.Value()), resource.BinarySI)
	}
	for name, q := range whole {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) { // huge pages are part of the memory
			memory := l[corev1.ResourceMemory]
			l[corev1.ResourceMemory] = *resource.NewQuantity(max(memory.Value()-q.Value(), 0), resource.BinarySI)
		}
	}
	// The eviction threshold is not allocatable.
	for name, signal := range map[corev1.ResourceName]config.Signal{
		corev1.ResourceMemory: config.MemoryAvailable, corev1.ResourceEphemeralStorage: config.NodeFsAvailable,
	} {
		all, left := whole[name], l[name]
		l[name] = *resource.NewQuantity(max(left.Value()-a.c.Eviction.Thresholds[signal].Of(all.Value()), 0),
			resource.BinarySI)
	}
	return l
}

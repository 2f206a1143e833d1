package agent

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"sort"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/agent/pod"
	"github.com/coracle-dev/coracle/pkg/version"
)

// runNode registers the node and renews its status and its lease.
func (a *Agent) runNode(ctx context.Context) error {
	wait := 50 * time.Millisecond
	for {
		err := a.register(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.As(err, new(notOwnedError)) {
			return err
		}
		a.log.Warn("could not register node, retrying", "node", a.c.NodeName, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
			wait = min(2*wait, 7*time.Second)
		}
	}
	a.wakeNode()
	beat := time.NewTicker(leasePeriod)
	defer beat.Stop()
	posted, collected := time.Now(), time.Now()
	var lease *coordinationv1.Lease
	renew := func() {
		l, err := a.renew(ctx, lease)
		if err != nil && ctx.Err() == nil {
			a.log.Warn("could not renew node lease, retrying", "error", err)
		}
		lease = l
	}
	renew()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.statusWake:
		case <-beat.C:
			renew()
		}
		if a.nodeDeleted.Swap(false) {
			if err := a.register(ctx); err != nil {
				if errors.As(err, new(notOwnedError)) {
					return err
				}
				a.nodeDeleted.Store(true)
				if ctx.Err() == nil {
					a.log.Warn("could not register deleted node again, retrying", "error", err)
				}
				continue
			}
			posted = time.Now()
			a.wakeNode()
		}
		force := time.Since(posted) >= statusPeriod
		if time.Since(collected) >= imagePeriod {
			a.collectImages(ctx)
			collected = time.Now()
		}
		wrote, err := a.postStatus(ctx, force)
		if errors.As(err, new(notOwnedError)) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("could not write node status, retrying", "error", err)
		}
		if wrote {
			posted = time.Now()
		}
	}
}

// notOwnedError is the error for a Node that another machine registered.
type notOwnedError struct{ error }

// register creates or updates the node, with its status, so that the first write already reports Ready if the network is.
func (a *Agent) register(ctx context.Context) error {
	labels := a.labels()
	annotations := map[string]string{storage.DirectoryAnnotation: pod.LocalVolumes(a.c.DataDir)}
	maps.Copy(annotations, a.c.Annotations)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.c.NodeName, Labels: labels, Annotations: annotations}}
	n.Spec.Taints = a.c.Taints
	n.Status = a.status(corev1.NodeStatus{}, true)
	err := a.c.Client.Create(ctx, n)
	if apierrors.IsAlreadyExists(err) {
		var old corev1.Node
		if err = a.c.Client.Get(ctx, types.NamespacedName{Name: a.c.NodeName}, &old); err != nil {
			return err
		}
		if a.c.VerifyNode != nil {
			if err = a.c.VerifyNode(&old); err != nil {
				return notOwnedError{err}
			}
		}
		n = old.DeepCopy()
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		maps.Copy(n.Labels, labels)
		maps.Copy(n.Annotations, annotations)
		if !maps.Equal(old.Labels, n.Labels) || !maps.Equal(old.Annotations, n.Annotations) {
			if err = a.c.Client.Patch(ctx, n, ctrl.MergeFrom(&old)); err != nil {
				return err
			}
		}
	} else if err != nil {
		return err
	}
	a.nodeChanged(ctx, n)
	// Apply what the cache already delivered, such as a podCIDR that was assigned at once: there is no further event for it.
	var seen corev1.Node
	if a.c.Client.Cache().Get(ctx, types.NamespacedName{Name: a.c.NodeName}, &seen) == nil && seen.UID == n.UID {
		a.nodeChanged(ctx, &seen)
	}
	_, err = a.postStatus(ctx, true)
	return err
}

// labels returns those that the agent sets on its node.
func (a *Agent) labels() map[string]string {
	labels := map[string]string{
		corev1.LabelHostname: a.c.NodeName, corev1.LabelOSStable: "linux", corev1.LabelArchStable: a.machine.arch,
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": a.machine.arch,
	}
	maps.Copy(labels, a.c.Labels)
	return labels
}

// wakeStatus makes runNode compute the node's status again.
func (a *Agent) wakeStatus() {
	select {
	case a.statusWake <- struct{}{}:
	default:
	}
}

func (a *Agent) wakeNode() {
	select {
	case a.nodeWake <- struct{}{}:
	default:
	}
}

// nodeChanged handles a new version of our node, and passes a new pod range to the network.
func (a *Agent) nodeChanged(ctx context.Context, n *corev1.Node) {
	a.mu.Lock()
	if a.node != nil && len(a.node.ResourceVersion) >= len(n.ResourceVersion) &&
		(len(a.node.ResourceVersion) > len(n.ResourceVersion) || a.node.ResourceVersion > n.ResourceVersion) {
		a.mu.Unlock()
		return
	}
	other := a.node == nil || a.node.UID != n.UID
	attached := a.node != nil && !apiequality.Semantic.DeepEqual(a.node.Status.VolumesAttached, n.Status.VolumesAttached)
	a.node = n
	a.mu.Unlock()
	if attached {
		a.pods.RetryVolumes()
	}
	a.applyRange(ctx, n)
	if other && a.static != nil {
		a.static.NodeChanged()
	}
}

// applyRange passes our node's pod range to the network if it is new and valid.
func (a *Agent) applyRange(ctx context.Context, n *corev1.Node) {
	if n.Spec.PodCIDR == "" || a.c.OnPodCIDR == nil {
		return
	}
	a.mu.Lock()
	before := a.cidr
	a.mu.Unlock()
	cidr, err := netip.ParsePrefix(n.Spec.PodCIDR)
	if err != nil {
		a.log.Error("invalid podCIDR of this node", "podCIDR", n.Spec.PodCIDR)
		return
	}
	if why := a.setRange(n); why != "" || cidr == before {
		return
	}
	if err := a.c.OnPodCIDR(ctx, cidr); err != nil {
		a.log.Error("could not set podCIDR of this node", "podCIDR", cidr, "error", err)
		return
	}
	a.mu.Lock()
	a.cidr, a.network = cidr, true
	a.mu.Unlock()
	a.keepRange(cidr)
	a.pods.Retry()
}

// nodeSeen handles every added or changed node.
func (a *Agent) nodeSeen(n *corev1.Node) {
	if n.Name == a.c.NodeName {
		a.mu.Lock()
		known := a.node != nil
		a.mu.Unlock()
		if known {
			a.nodeChanged(context.Background(), n)
			a.wakeNode()
			a.wakeStatus()
		}
		return
	}
	a.setRange(n)
}

func (a *Agent) nodeGone(n *corev1.Node) {
	if n.Name == a.c.NodeName {
		a.nodeDeleted.Store(true)
		a.wakeStatus()
		return
	}
	a.mu.Lock()
	own := a.syncRoutes(n.Name, nil)
	a.mu.Unlock()
	a.retryRange(own)
}

// postStatus writes the node's status if it changed or with force, for a heartbeat.
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

// status computes the node's status from the previous one. With heartbeat, the conditions' heartbeat times are renewed.
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
		for name, q := range from { // extended resources are set by others
			if _, own := s.Capacity[name]; !own && extended(name) {
				s.Capacity[name], s.Allocatable[name] = q, q
			}
		}
	}
	s.NodeInfo = a.machine.info
	s.NodeInfo.ContainerRuntimeVersion = a.c.Runtime.Version()
	s.NodeInfo.KubeletVersion = version.Kubernetes
	s.RuntimeHandlers = pod.RuntimeHandlers()
	s.DaemonEndpoints.KubeletEndpoint.Port = port
	if heartbeat {
		s.Images = a.imageList()
	}
	now := metav1.Now().Rfc3339Copy() // the API's resolution is seconds
	for _, c := range a.eviction.Conditions() {
		setNodeCondition(&s, c, now, heartbeat)
	}
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "the agent is posting ready status"}
	if !up {
		ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "KubeletNotReady", "the pod network waits for the node's podCIDR"
		if refused != "" {
			ready.Message = "the node's podCIDR is refused: " + refused
		}
	}
	setNodeCondition(&s, ready, now, heartbeat)
	return s
}

func extended(name corev1.ResourceName) bool {
	for _, r := range string(name) {
		if r == '/' {
			return true
		}
	}
	return false
}

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
	if r := a.c.Reserved; r.PIDs > 0 { // its zero value reserves nothing
		cpu, memory := l[corev1.ResourceCPU], l[corev1.ResourceMemory]
		l[corev1.ResourceCPU] = *resource.NewMilliQuantity(max(cpu.MilliValue()-r.MilliCPU, 0), resource.DecimalSI)
		l[corev1.ResourceMemory] = *resource.NewQuantity(memory.Value()-r.MemoryOf(memory.Value()), resource.BinarySI)
	}
	// Memory below the eviction threshold is not allocatable.
	for name, signal := range map[corev1.ResourceName]config.Signal{
		corev1.ResourceMemory: config.MemoryAvailable, corev1.ResourceEphemeralStorage: config.NodeFsAvailable,
	} {
		all, left := whole[name], l[name]
		l[name] = *resource.NewQuantity(max(left.Value()-a.c.Eviction.Thresholds[signal].Of(all.Value()), 0), resource.BinarySI)
	}
	return l
}

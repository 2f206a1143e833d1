package scheduler

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	nodefeatures "k8s.io/component-helpers/nodedeclaredfeatures"
	resourcehelper "k8s.io/component-helpers/resource"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// amounts contains quantities of resources: millicores, bytes, and counts of extended resources.
type amounts struct {
	cpu, memory, ephemeral int64
	extended               map[corev1.ResourceName]int64 // may be nil
}

func amountsOf(l corev1.ResourceList) (a amounts) {
	for name, q := range l {
		switch name {
		case corev1.ResourceCPU:
			a.cpu = q.MilliValue()
		case corev1.ResourceMemory:
			a.memory = q.Value()
		case corev1.ResourceEphemeralStorage:
			a.ephemeral = q.Value()
		case corev1.ResourcePods:
		default:
			if a.extended == nil {
				a.extended = map[corev1.ResourceName]int64{}
			}
			a.extended[name] = q.Value()
		}
	}
	return a
}

func (a *amounts) add(b amounts, sign int64) {
	a.cpu += sign * b.cpu
	a.memory += sign * b.memory
	a.ephemeral += sign * b.ephemeral
	for name, n := range b.extended {
		if a.extended == nil {
			a.extended = map[corev1.ResourceName]int64{}
		}
		a.extended[name] += sign * n
	}
}

// Requests that scores assume for a pod without requests, so that such pods are spread too, as upstream.
const (
	usualCPU    = 100               // millicores
	usualMemory = 200 * 1024 * 1024 // bytes
)

type port struct {
	ip       string
	protocol corev1.Protocol
	number   int32
}

type podInfo struct {
	pod      *corev1.Pod
	need     amounts
	scoreCPU int64
	scoreMem int64
	ports    []port
	priority int32
	siblings string // key of the pods that are spread together; empty: not spread
	affinity *podAffinity
	node     *nodeInfo // the node that it is assigned to, or nil
	assumed  bool      // assigned, but its binding has not been seen
	profile  *profile  // the profile that places it
	task     bool
	claims   []types.NamespacedName // the claims that it uses
	gang     types.NamespacedName   // its pod group; empty: none
	features nodefeatures.FeatureSet
	demand   *demand // its demand of nodes; nil: not computed since it waits, or none
}

func newPodInfo(p *corev1.Pod) *podInfo {
	i := &podInfo{
		pod:      p,
		siblings: siblingsOf(p),
		affinity: newPodAffinity(p),
		profile:  profileIn(defaultProfiles, p),
		task:     isTask(p),
		claims:   claimNames(p),
		gang:     gangOf(p),
	}
	if i.profile == nil {
		i.profile = defaultProfiles[0] // for pods that are only accounted or explained
	}
	if p.Spec.NodeName == "" {
		i.features = featuresFor(p)
	}
	i.need = amountsOf(resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{
		UseStatusResources: p.Spec.NodeName != "", InPlacePodLevelResourcesVerticalScalingEnabled: true}))
	i.scoreCPU, i.scoreMem = i.need.cpu, i.need.memory
	if i.scoreCPU == 0 {
		i.scoreCPU = usualCPU * int64(len(p.Spec.Containers))
	}
	if i.scoreMem == 0 {
		i.scoreMem = usualMemory * int64(len(p.Spec.Containers))
	}
	if p.Spec.Priority != nil {
		i.priority = *p.Spec.Priority
	}
	for c := range p.Spec.Containers {
		i.ports = appendPorts(i.ports, &p.Spec.Containers[c])
	}
	for c := range p.Spec.InitContainers {
		if r := p.Spec.InitContainers[c].RestartPolicy; r != nil && *r == corev1.ContainerRestartPolicyAlways {
			i.ports = appendPorts(i.ports, &p.Spec.InitContainers[c])
		}
	}
	return i
}

func appendPorts(ports []port, c *corev1.Container) []port {
	for _, p := range c.Ports {
		if p.HostPort > 0 {
			q := port{p.HostIP, p.Protocol, p.HostPort}
			if q.ip == "" {
				q.ip = "0.0.0.0"
			}
			if q.protocol == "" {
				q.protocol = corev1.ProtocolTCP
			}
			ports = append(ports, q)
		}
	}
	return ports
}

func (p port) clashes(q port) bool {
	return p.number == q.number && p.protocol == q.protocol && (p.ip == q.ip || p.ip == "0.0.0.0" || q.ip == "0.0.0.0")
}

// siblingsOf identifies pods to spread: the pods of one controller or, without a controller, the pods of a namespace
// with the same labels, as a service would select them. Empty means that the pod is not spread.
func siblingsOf(p *corev1.Pod) string {
	for i := range p.OwnerReferences {
		if c := p.OwnerReferences[i].Controller; c != nil && *c {
			return string(p.OwnerReferences[i].UID)
		}
	}
	if len(p.Labels) == 0 {
		return ""
	}
	return p.Namespace + "/" + labelKey(p.Labels)
}

type nodeInfo struct {
	name     string
	node     *corev1.Node // nil if pods are bound to an unknown node
	zone     string
	most     amounts
	pods     map[types.UID]*podInfo
	max      int // maximum number of pods
	used     amounts
	score    struct{ cpu, mem int64 }
	ports    map[port]int
	siblings map[string]int // pods by siblings
	tasks    int            // number of pods that run tasks
	// elsewhere is the number of tasks that an external worker runs for others, by its heartbeats.
	elsewhere int64
	images    map[string]int64 // size in bytes by name
	// nominated contains the pods that are expected on this node.
	nominated map[types.UID]*podInfo
	soft      bool // has PreferNoSchedule taints
	// cordoned and taints copy the node's fields, for fast access.
	cordoned bool
	taints   []corev1.Taint
	features nodefeatures.FeatureSet
	at       int // index in state.order, or -1
}

func newNodeInfo(name string) *nodeInfo {
	return &nodeInfo{name: name, pods: map[types.UID]*podInfo{}, at: -1}
}

func (n *nodeInfo) set(node *corev1.Node) {
	sameImages := n.node != nil && imagesEqual(n.node.Status.Images, node.Status.Images)
	n.node = node
	n.zone = node.Labels[corev1.LabelTopologyRegion] + "/" + node.Labels[corev1.LabelTopologyZone]
	n.most = amountsOf(node.Status.Allocatable)
	n.max = int(node.Status.Allocatable.Pods().Value())
	n.elsewhere = 0
	if tasks.IsExternal(node) {
		n.elsewhere = node.Status.Capacity.Pods().Value() - int64(n.max)
	}
	n.cordoned, n.taints = node.Spec.Unschedulable, node.Spec.Taints
	n.features = featuresOf(node)
	n.soft = false
	for i := range node.Spec.Taints {
		n.soft = n.soft || node.Spec.Taints[i].Effect == corev1.TaintEffectPreferNoSchedule
	}
	if !sameImages {
		n.images = nil
		for _, image := range node.Status.Images {
			for _, name := range image.Names {
				if n.images == nil {
					n.images = make(map[string]int64, len(node.Status.Images))
				}
				n.images[name] = image.SizeBytes
			}
		}
	}
}

func imagesEqual(a, b []corev1.ContainerImage) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].SizeBytes != b[i].SizeBytes || len(a[i].Names) != len(b[i].Names) ||
			len(a[i].Names) > 0 && a[i].Names[0] != b[i].Names[0] {
			return false
		}
	}
	return true
}

// count adds (sign 1) or removes (-1) a pod's resources.
func (n *nodeInfo) count(p *podInfo, sign int) {
	n.used.add(p.need, int64(sign))
	n.score.cpu += int64(sign) * p.scoreCPU
	n.score.mem += int64(sign) * p.scoreMem
	for _, q := range p.ports {
		if n.ports == nil {
			n.ports = map[port]int{}
		}
		if n.ports[q] += sign; n.ports[q] <= 0 {
			delete(n.ports, q)
		}
	}
	if p.siblings != "" {
		if n.siblings == nil {
			n.siblings = map[string]int{}
		}
		if n.siblings[p.siblings] += sign; n.siblings[p.siblings] <= 0 {
			delete(n.siblings, p.siblings)
		}
	}
	if p.task {
		n.tasks += sign
	}
	if sign > 0 {
		n.pods[p.pod.UID] = p
	} else {
		delete(n.pods, p.pod.UID)
	}
}

// without returns a copy of the node for preemption, from which pods can be removed and added back.
func (n *nodeInfo) without() *nodeInfo {
	c := *n
	c.pods, c.ports, c.siblings = maps.Clone(n.pods), maps.Clone(n.ports), maps.Clone(n.siblings)
	c.used.extended = maps.Clone(n.used.extended)
	return &c
}

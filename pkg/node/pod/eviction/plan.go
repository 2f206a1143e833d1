// Package eviction implements node-pressure eviction and the limits of local ephemeral storage like the kubelet: it
// removes unused images and containers, reports the node's pressure conditions, and evicts pods.
//
// Invariant: only Plan decides. The Manager observes no more than the decision needs: it walks only the files of
// pods with a limit, or of all pods under pressure or while a client asks for their usage.
package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/host/disk"
	"github.com/coracle-dev/coracle/pkg/node/pod/static"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// Reason is the reason in an evicted pod's status and event.
const Reason = "Evicted"

// Reading is the available amount and the capacity of a resource.
type Reading struct{ Available, Capacity int64 }

// Use is the resource usage of a container.
type Use struct {
	Memory int64 // working set in bytes; 0 if not running
	PIDs   int64
	Layer  disk.Usage // writable layers of all its instances
	Logs   disk.Usage
}

// Usage is the resource usage of a pod.
type Usage struct {
	Containers map[string]Use
	Volumes    map[string]disk.Usage // emptyDir volumes on disk, by name
	Claims     map[string]disk.Usage // volumes of Pod.Claims, by name; no limit on ephemeral storage counts them
	Files      disk.Usage            // per-pod files that containers can write, such as /etc/hosts
}

// Disk returns the sum.
func (u *Usage) Disk() disk.Usage {
	sum := u.Files
	for _, c := range u.Containers {
		sum = sum.Plus(c.Layer).Plus(c.Logs)
	}
	for _, v := range u.Volumes {
		sum = sum.Plus(v)
	}
	return sum
}

// Pod is a pod that has not terminated.
type Pod struct {
	*corev1.Pod
	Running bool                    // has a running container
	Claims  map[string]volume.Claim // by volume name
	Usage   *Usage                  // nil if it was not measured
}

// Observed is the observed state of the node.
type Observed struct {
	// Signals holds the readable signals. A missing signal means no pressure.
	Signals map[config.Signal]Reading
	Pods    []Pod
	// Reclaimed means that unused images and containers were removed before the Signals were read.
	Reclaimed bool
	// Measured means that all pods were measured, where possible.
	Measured bool
}

// Pressure is why a condition of the node is True.
type Pressure struct {
	Last time.Time // when a threshold was last exceeded
	Why  string    // the message; kept constant to avoid updates of the node's status
	sig  config.Signal
}

// Policy is the configuration of Plan.
type Policy struct {
	Thresholds map[config.Signal]config.Threshold
	// Transition is how long a condition stays True after its threshold was last exceeded.
	Transition time.Duration
}

// Eviction is a decision to evict a pod.
type Eviction struct {
	Pod     *corev1.Pod
	Message string
	// Disrupted means that the pod did not exceed a limit of its own. Its status gets a DisruptionTarget condition.
	Disrupted bool
}

// Decision is Plan's result. At most one of Reclaim, Measure and Evict is set; after the first two, plan again.
type Decision struct {
	// Pressures are the node's conditions that are True.
	Pressures map[corev1.NodeConditionType]Pressure
	// Starved is the resource to reclaim, or "".
	Starved corev1.ResourceName
	Reclaim bool
	Measure bool
	Evict   []Eviction
}

const (
	inodes     corev1.ResourceName = "inodes"
	processIDs corev1.ResourceName = "pids"
)

var (
	conditionOf = map[config.Signal]corev1.NodeConditionType{
		config.MemoryAvailable: corev1.NodeMemoryPressure, config.PIDAvailable: corev1.NodePIDPressure,
		config.NodeFsAvailable: corev1.NodeDiskPressure, config.NodeFsInodesFree: corev1.NodeDiskPressure,
		config.ImageFsAvailable: corev1.NodeDiskPressure, config.ImageFsInodesFree: corev1.NodeDiskPressure,
	}
	resourceOf = map[config.Signal]corev1.ResourceName{
		config.MemoryAvailable: corev1.ResourceMemory, config.PIDAvailable: processIDs,
		config.NodeFsAvailable: corev1.ResourceEphemeralStorage, config.NodeFsInodesFree: inodes,
		config.ImageFsAvailable: corev1.ResourceEphemeralStorage, config.ImageFsInodesFree: inodes,
	}
)

// Plan decides what to do next; before holds the pressures of the previous Decision. It is a pure function.
func Plan(p Policy, before map[corev1.NodeConditionType]Pressure, o Observed, now time.Time) Decision {
	d := Decision{Pressures: map[corev1.NodeConditionType]Pressure{}}
	for kind, was := range before {
		if now.Sub(was.Last) < p.Transition {
			d.Pressures[kind] = was
		}
	}
	var met []config.Signal
	for _, s := range config.Signals {
		threshold, watched := p.Thresholds[s]
		reading, read := o.Signals[s]
		if !watched || !read || reading.Capacity <= 0 || reading.Available >= threshold.Of(reading.Capacity) {
			continue
		}
		kind := conditionOf[s]
		is := Pressure{now, why(s, threshold, reading), s}
		if was, reported := d.Pressures[kind]; reported && (was.sig == s || slices.Contains(met, was.sig)) {
			is.Why, is.sig = was.Why, was.sig
		}
		d.Pressures[kind] = is
		met = append(met, s)
	}
	for _, pod := range o.Pods {
		if message := exceeds(pod); message != "" && !Critical(pod.Pod) {
			d.Evict = append(d.Evict, Eviction{Pod: pod.Pod, Message: message})
		}
	}
	if len(met) == 0 {
		return d
	}
	starved := met[0]
	d.Starved = resourceOf[starved]
	switch {
	case len(d.Evict) > 0: // evicting these may free enough
	case conditionOf[starved] == corev1.NodeDiskPressure && !o.Reclaimed:
		d.Reclaim = true
	case !o.Measured:
		d.Measure = true
	default:
		if victim := pick(o.Pods, d.Starved); victim != nil {
			threshold := p.Thresholds[starved].Of(o.Signals[starved].Capacity)
			d.Evict = []Eviction{{victim.Pod, lowOn(d.Starved, threshold, o.Signals[starved].Available, *victim), true}}
		}
	}
	return d
}

func why(s config.Signal, t config.Threshold, r Reading) string {
	of := ""
	if t.Percent > 0 {
		of = fmt.Sprintf(", %g%% of %s", t.Percent, format(resourceOf[s], r.Capacity))
	}
	return fmt.Sprintf("%s was %s, below the threshold of %s%s", s, format(resourceOf[s], r.Available),
		format(resourceOf[s], t.Of(r.Capacity)), of)
}

// format formats bytes as Mi, and other quantities as plain numbers.
func format(name corev1.ResourceName, n int64) string {
	if name == inodes || name == processIDs {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%dMi", n>>20)
}

func quantity(name corev1.ResourceName, n int64) string {
	if name == inodes || name == processIDs {
		return resource.NewQuantity(n, resource.DecimalSI).String()
	}
	return resource.NewQuantity(n, resource.BinarySI).String()
}

// Limited reports whether a pod limits local storage, and so must be measured periodically.
func Limited(p Pod) bool {
	if len(p.Claims) > 0 {
		return true
	}
	for i := range p.Spec.Volumes {
		if sizeLimit(&p.Spec.Volumes[i]) != nil {
			return true
		}
	}
	_, limited := resourcehelper.PodLimits(p.Pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	return limited
}

// sizeLimit returns the limit of an emptyDir on disk. The kernel enforces the limits of emptyDirs in memory.
func sizeLimit(v *corev1.Volume) *resource.Quantity {
	if v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumDefault || v.EmptyDir.SizeLimit == nil ||
		v.EmptyDir.SizeLimit.Sign() <= 0 {
		return nil
	}
	return v.EmptyDir.SizeLimit
}

// exceeds returns, in the kubelet's words, the limit of local storage that a pod exceeds, or "".
func exceeds(p Pod) string {
	if p.Usage == nil {
		return ""
	}
	above := func(used uint64, limit *resource.Quantity) bool {
		return limit != nil && limit.Sign() > 0 && resource.NewQuantity(int64(used), resource.BinarySI).Cmp(*limit) > 0
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if limit := sizeLimit(v); above(p.Usage.Volumes[v.Name].Bytes, limit) {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
		}
		claim, has := p.Claims[v.Name]
		if size := resource.NewQuantity(claim.Size, resource.BinarySI); has && above(p.Usage.Claims[v.Name].Bytes, size) {
			return fmt.Sprintf("Usage of the volume of claim %q exceeds its size %q: %s are used. The files are kept. "+
				"Expand the claim, or remove files, before another pod can use it. ", claim.Name, size.String(),
				quantity(corev1.ResourceEphemeralStorage, int64(p.Usage.Claims[v.Name].Bytes)))
		}
	}
	if limit,
		ok := resourcehelper.PodLimits(p.Pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]; ok &&
		above(p.Usage.Disk().Bytes, &limit) {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
	}
	for _, c := range containers(p.Pod) {
		use := p.Usage.Containers[c.Name]
		if limit, ok := c.Resources.Limits[corev1.ResourceEphemeralStorage]; ok &&
			above(use.Layer.Plus(use.Logs).Bytes, &limit) {
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
		}
	}
	return ""
}

func containers(p *corev1.Pod) []corev1.Container {
	all := slices.Clone(p.Spec.Containers)
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}

// lowestCritical is the priority of system-cluster-critical, the lowest priority reserved for the system.
const lowestCritical = 2_000_000_000

// Critical reports whether a pod is critical and so never evicted: system pods by priority, and static pods and
// their mirrors, because no API server could create those again.
func Critical(p *corev1.Pod) bool {
	if static.IsStatic(p) {
		return true
	}
	if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	return p.Spec.Priority != nil && *p.Spec.Priority >= lowestCritical
}

// pick chooses the pod to evict by: unknown usage, exceeding its request, lowest priority, largest excess. Process IDs
// have no request.
func pick(pods []Pod, name corev1.ResourceName) *Pod {
	type candidate struct {
		*Pod
		beyond   int64
		priority int32
	}
	var all []candidate
	for i := range pods {
		p := &pods[i]
		if !p.Running || Critical(p.Pod) {
			continue
		}
		c := candidate{Pod: p}
		if p.Spec.Priority != nil {
			c.priority = *p.Spec.Priority
		}
		if p.Usage != nil {
			c.beyond = used(p.Usage, name)
			if name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
				request := resourcehelper.PodRequests(p.Pod, resourcehelper.PodResourcesOptions{})[name]
				c.beyond -= request.Value()
			}
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil
	}
	rank := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	first := slices.MinFunc(all, func(a, b candidate) int {
		return cmp.Or(
			cmp.Compare(rank(a.Usage == nil), rank(b.Usage == nil)), // unknown usage goes first
			cmp.Compare(rank(name == processIDs || a.beyond > 0), rank(name == processIDs || b.beyond > 0)),
			cmp.Compare(a.priority, b.priority),
			cmp.Compare(b.beyond, a.beyond),
			strings.Compare(string(a.UID), string(b.UID)),
		)
	})
	return first.Pod
}

func used(u *Usage, name corev1.ResourceName) (sum int64) {
	switch name {
	case corev1.ResourceEphemeralStorage, inodes:
		all := u.Disk()
		for _, v := range u.Claims {
			all = all.Plus(v)
		}
		if name == inodes {
			return int64(all.Inodes)
		}
		return int64(all.Bytes)
	}
	for _, c := range u.Containers {
		if name == processIDs {
			sum += c.PIDs
		} else {
			sum += c.Memory
		}
	}
	return sum
}

// lowOn returns the message for an evicted pod's status, in the kubelet's words.
func lowOn(name corev1.ResourceName, threshold, available int64, p Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %s. Threshold quantity: %s, available: %s. ", name,
		quantity(name, threshold), quantity(name, available))
	if p.Usage == nil || name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage {
		return b.String()
	}
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for _, c := range list {
			use, known := p.Usage.Containers[c.Name]
			n := use.Memory
			if name == corev1.ResourceEphemeralStorage {
				n = int64(use.Layer.Plus(use.Logs).Bytes)
			}
			request := c.Resources.Requests[name]
			if known && n > request.Value() {
				fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %s. ", c.Name,
					quantity(name, n), request.String(), name)
			}
		}
	}
	return b.String()
}

// Refuse returns why a node under these pressures does not admit a new pod, or "". It is a pure function.
func Refuse(p *corev1.Pod, pressures []corev1.NodeConditionType) string {
	if len(pressures) == 0 || Critical(p) {
		return ""
	}
	if len(pressures) == 1 && pressures[0] == corev1.NodeMemoryPressure {
		taint := corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
		if !bestEffort(p) ||
			slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return tolerates(t, taint) }) {
			return ""
		}
	}
	return fmt.Sprintf("Pod was rejected: The node had condition: %v. ", pressures)
}

func tolerates(t corev1.Toleration, taint corev1.Taint) bool {
	return (t.Effect == "" || t.Effect == taint.Effect) &&
		(t.Key == taint.Key || t.Key == "" && t.Operator == corev1.TolerationOpExists) &&
		(t.Operator == corev1.TolerationOpExists ||
			(t.Operator == "" || t.Operator == corev1.TolerationOpEqual) && t.Value == taint.Value)
}

func bestEffort(p *corev1.Pod) bool {
	if p.Status.QOSClass != "" {
		return p.Status.QOSClass == corev1.PodQOSBestEffort
	}
	for _, list := range []corev1.ResourceList{
		resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{}),
		resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{}),
	} {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if q := list[name]; !q.IsZero() {
				return false
			}
		}
	}
	return true
}

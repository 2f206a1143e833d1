package pod

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// The resources of a running pod can be changed (KEP-1287, KEP-5419). The agent tells three sets apart:
//
//	desired    what the pod's specification requests
//	allocated  what the node has granted: the specification of the last generation that the node had room for
//	actuated   what the cgroups of the pod and its containers are set to
//
// Only the decision to grant a change reads the desired resources. The planner, the actions and the status see the
// pod with its allocated resources.

// allocation holds allocated and actuated resources. It is written to the pod's directory before the agent acts on it.
type allocation struct {
	// Generation is the generation of the specification that was granted; -1 if it is unknown.
	Generation int64                                  `json:"generation"`
	Pod        *corev1.ResourceRequirements           `json:"pod,omitempty"`
	Containers map[string]corev1.ResourceRequirements `json:"containers,omitempty"` // init containers too
	// Resizing is set from an allocation until it is actuated. In a new process it means that the cgroups are unknown.
	Resizing bool `json:"resizing,omitempty"`
	// Limits are the actuated limits of the pod's cgroup. Amounts are actuated, by container ID; an instance without an
	// entry has the amounts it was created with.
	Limits  runtime.PodLimits  `json:"limits"`
	Amounts map[string]amounts `json:"amounts,omitempty"`

	same   int64 // newest generation known to request nothing beyond the allocation; -1: none
	serial int   // counts this process's allocations to the pod
	share  share
}

// allocationOf returns the allocation that grants a pod's whole specification, before the pod has a cgroup.
func allocationOf(p *corev1.Pod) allocation {
	a := allocation{
		Generation: p.Generation, Pod: p.Spec.Resources.DeepCopy(), Containers: map[string]corev1.ResourceRequirements{},
		same: p.Generation, share: shareOf(p),
	}
	a.Limits = a.share.limits
	for c := range containersOf(p) {
		a.Containers[c.Name] = *c.Resources.DeepCopy()
	}
	return a
}

func (a *allocation) desires(p *corev1.Pod) bool {
	if p.Generation == a.same || a.Containers == nil {
		return false
	}
	if !apiequality.Semantic.DeepEqual(a.Pod, p.Spec.Resources) {
		return true
	}
	for c := range containersOf(p) {
		if have, has := a.Containers[c.Name]; has && !apiequality.Semantic.DeepEqual(have, c.Resources) {
			return true
		}
	}
	return false
}

// compare caches in a.same that this version of the pod requests nothing else.
func (a *allocation) compare(p *corev1.Pod) {
	if !a.desires(p) {
		a.same = p.Generation
	}
}

// of returns the pod with the allocated resources. It does not change p.
func (a *allocation) of(p *corev1.Pod) *corev1.Pod {
	if !a.desires(p) {
		return p
	}
	return a.in(p)
}

// in is like of, but does not use the cached comparison, so p may be any version of the pod.
func (a *allocation) in(p *corev1.Pod) *corev1.Pod {
	if a.Containers == nil {
		return p
	}
	out := *p
	out.Spec.Resources = a.Pod
	replace := func(list []corev1.Container) []corev1.Container {
		list = append([]corev1.Container(nil), list...)
		for i := range list {
			if have, has := a.Containers[list[i].Name]; has {
				list[i].Resources = have
			}
		}
		return list
	}
	out.Spec.InitContainers, out.Spec.Containers = replace(p.Spec.InitContainers), replace(p.Spec.Containers)
	return &out
}

// podLimits returns the limits of a pod's cgroup: CPU shares for all requests, and the limits of spec.resources.
func podLimits(p *corev1.Pod) runtime.PodLimits {
	requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	l := runtime.PodLimits{CPUShares: shares(requests.Cpu().MilliValue())}
	if p.Spec.Resources != nil {
		l.CPUQuota, l.MemoryBytes = quota(p.Spec.Resources.Limits.Cpu().MilliValue()), p.Spec.Resources.Limits.Memory().
			Value()
	}
	return l
}

// roomFor reports whether a node with others has room for a pod whose requests change from now to next. why is "" if it
// has; never means that the pod would not fit even alone. A resource that does not grow is always granted.
func roomFor(now, next, others, allocatable corev1.ResourceList) (why string, never bool) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		want, have, used := next[name], now[name], others[name]
		room, known := allocatable[name]
		if !known || want.Cmp(have) <= 0 {
			continue
		}
		if want.Cmp(room) > 0 {
			return fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, amount(name, want),
				amount(name, room)), true
		}
		sum := want.DeepCopy()
		if sum.Add(used); sum.Cmp(room) > 0 && why == "" {
			why = shortOf(name, want, used, room)
		}
	}
	return why, false
}

type share struct {
	limits    runtime.PodLimits // of its cgroup
	resources corev1.ResourceRequirements
	requests  corev1.ResourceList
}

// shareOf returns the share of a pod with its allocated resources, without its overhead, which readers add themselves.
func shareOf(p *corev1.Pod) share {
	s := share{
		limits:   podLimits(p),
		requests: resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{ExcludeOverhead: true}),
	}
	r := &s.resources
	r.Requests, r.Limits = corev1.ResourceList{}, corev1.ResourceList{}
	if p.Spec.Resources != nil {
		maps.Copy(r.Requests, p.Spec.Resources.Requests)
		maps.Copy(r.Limits, p.Spec.Resources.Limits)
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, has := s.requests[name]; has {
			r.Requests[name] = q
		}
		if q, all := sumOfLimits(p, name); all {
			r.Limits[name] = q
		}
	}
	return s
}

// sumOfLimits returns the limit of all containers together: the pod's own, or the sum if each container has one.
func sumOfLimits(p *corev1.Pod, name corev1.ResourceName) (resource.Quantity, bool) {
	if p.Spec.Resources == nil || p.Spec.Resources.Limits.Name(name, resource.DecimalSI).IsZero() {
		for c := range containersOf(p) {
			if c.Resources.Limits.Name(name, resource.DecimalSI).IsZero() {
				return resource.Quantity{}, false
			}
		}
	}
	q, has := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})[name]
	return q, has
}

// now returns the pod's resources for its status while its cgroup has the limits have.
func (s share) now(have runtime.PodLimits) *corev1.ResourceRequirements {
	r := s.resources.DeepCopy()
	if have.CPUShares != s.limits.CPUShares {
		put(&r.Requests, corev1.ResourceCPU, resource.NewMilliQuantity(int64(have.CPUShares)*1000/1024, resource.DecimalSI))
	}
	if have.CPUQuota != s.limits.CPUQuota {
		put(&r.Limits, corev1.ResourceCPU, resource.NewMilliQuantity(have.CPUQuota*1000/period, resource.DecimalSI))
	}
	if have.MemoryBytes != s.limits.MemoryBytes {
		put(&r.Limits, corev1.ResourceMemory, resource.NewQuantity(have.MemoryBytes, resource.BinarySI))
	}
	return r
}

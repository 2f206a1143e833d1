package pod

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/coracle-dev/coracle/pkg/agent/runtime"
)

// The resources of a pod that runs can be changed (KEP-1287, KEP-5419). There are three of them:
//
//	desired    what the specification asks for
//	allocated  what the node has promised: the specification as of the last change that the node has room for
//	actuated   what the cgroups of the pod and of its containers have
//
// Everything but the decision about a change goes by the allocated ones: the planner, the actions and the status get the pod with those.

// allocation is what is allocated and actuated. It is a file of the pod's directory, written before what it says is done.
type allocation struct {
	// Generation is that of the specification which these resources are of.
	Generation int64                                  `json:"generation"`
	Pod        *corev1.ResourceRequirements           `json:"pod,omitempty"`
	Containers map[string]corev1.ResourceRequirements `json:"containers,omitempty"` // init containers too
	// Resizing is set from an allocation until it is actuated. A process that finds it set does not know what the cgroups have.
	Resizing bool `json:"resizing,omitempty"`
	// Limits are actuated, and so are Amounts, by container ID; an instance that is not there has what it was created with.
	Limits  runtime.PodLimits  `json:"limits"`
	Amounts map[string]amounts `json:"amounts,omitempty"`

	same   int64 // the newest generation that was compared and asks for nothing else; -1: none
	serial int   // of allocations to this pod by this process
	share  share
}

// allocationOf returns the allocation of all that a pod's specification asks for, as of a pod that has no cgroup yet.
func allocationOf(p *corev1.Pod) allocation {
	a := allocation{Generation: p.Generation, Pod: p.Spec.Resources.DeepCopy(), Containers: map[string]corev1.ResourceRequirements{},
		same: p.Generation, share: shareOf(p)}
	a.Limits = a.share.limits
	for c := range containersOf(p) {
		a.Containers[c.Name] = *c.Resources.DeepCopy()
	}
	return a
}

// desires reports whether a pod's specification asks for other resources than those allocated.
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

// compare notes whether a version of the pod asks for nothing else, so that it is not compared each time.
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

// in is of for a version of the pod that may be any.
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

// amounts are those resources of a container that can be changed while it runs. Zero is none.
type amounts struct {
	Shares        uint64 `json:"shares,omitempty"`
	CPURequest    int64  `json:"cpuRequest,omitempty"` // millicores
	CPULimit      int64  `json:"cpuLimit,omitempty"`
	MemoryRequest int64  `json:"memoryRequest,omitempty"` // bytes
	MemoryLimit   int64  `json:"memoryLimit,omitempty"`
}

// amountsOf returns what a container is to have. Without a limit of its own it gets the pod's (KEP-2837), as in the kubelet; the pod's cgroup limits all of them
// together.
func amountsOf(p *corev1.Pod, c *corev1.Container) amounts {
	cpu, memory := limitOf(p, c, corev1.ResourceCPU), limitOf(p, c, corev1.ResourceMemory)
	a := amounts{CPURequest: c.Resources.Requests.Cpu().MilliValue(), CPULimit: cpu.MilliValue(), MemoryRequest: c.Resources.Requests.Memory().Value(), MemoryLimit: memory.Value()}
	if _, requested := c.Resources.Requests[corev1.ResourceCPU]; requested {
		a.Shares = shares(a.CPURequest)
	} else {
		a.Shares = shares(a.CPULimit)
	}
	return a
}

func limitOf(p *corev1.Pod, c *corev1.Container, name corev1.ResourceName) resource.Quantity {
	limit := c.Resources.Limits[name]
	if limit.IsZero() && p.Spec.Resources != nil {
		limit = p.Spec.Resources.Limits[name]
	}
	return limit
}

// within returns the amounts for a container of a pod with these limits: in cgroup v1 none may have more processor time than the pod.
func (a amounts) within(l runtime.PodLimits) amounts {
	if l.CPUQuota > 0 && quota(a.CPULimit) > l.CPUQuota {
		a.CPULimit = l.CPUQuota * 1000 / period
	}
	return a
}

// label returns the amounts as the label of an instance that was created with them.
func (a amounts) label() string {
	text, _ := json.Marshal(a) // numbers
	return string(text)
}

func amountsIn(label string) (a amounts, ok bool) {
	return a, label != "" && json.Unmarshal([]byte(label), &a) == nil
}

// podLimits returns what the cgroup of a pod is to have: shares by all that it requests, limits if it has its own.
func podLimits(p *corev1.Pod) runtime.PodLimits {
	requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	l := runtime.PodLimits{CPUShares: shares(requests.Cpu().MilliValue())}
	if p.Spec.Resources != nil {
		l.CPUQuota, l.MemoryBytes = quota(p.Spec.Resources.Limits.Cpu().MilliValue()), p.Spec.Resources.Limits.Memory().Value()
	}
	return l
}

// member is an instance that runs, with what it has and what it is to have.
type member struct {
	name, id   string
	have, want amounts
}

// resizeStep changes one cgroup: that of an instance, or the pod's if there is none.
type resizeStep struct {
	of      member
	amounts amounts
	pod     runtime.PodLimits // those that change
	// attempt means that the step may fail, since what is there is not known; it is made again later.
	attempt bool
}

// resizeSteps returns how the cgroups of a pod are changed. First memory, then processor time; of each, what the pod gets more of comes before its containers, what
// it gets less of after them, and of the containers those that get less come first: so none ever has more than its pod. It is a pure function.
func resizeSteps(have, want runtime.PodLimits, members []member, unsure bool) (steps []resizeStep) {
	if unsure {
		return resizeUnsure(want, members)
	}
	members = append([]member(nil), members...)
	pod := func(l runtime.PodLimits, changes bool) {
		if changes {
			steps = append(steps, resizeStep{pod: l})
		}
	}
	containers := func(differ func(a, b amounts) bool, limit func(amounts) int64, set func(to *amounts, from amounts)) {
		for _, shrinks := range []bool{true, false} {
			for i := range members {
				m := &members[i]
				if less := noLimit(limit(m.want)) < noLimit(limit(m.have)); less == shrinks && differ(m.have, m.want) {
					set(&m.have, m.want)
					steps = append(steps, resizeStep{of: *m, amounts: m.have})
				}
			}
		}
	}
	memory := runtime.PodLimits{MemoryBytes: orUnlimited(want.MemoryBytes)}
	change := cmp.Compare(noLimit(want.MemoryBytes), noLimit(have.MemoryBytes))
	pod(memory, change > 0)
	containers(func(a, b amounts) bool { return a.MemoryLimit != b.MemoryLimit || a.MemoryRequest != b.MemoryRequest },
		func(a amounts) int64 { return a.MemoryLimit },
		func(to *amounts, from amounts) {
			to.MemoryLimit, to.MemoryRequest = from.MemoryLimit, from.MemoryRequest
		})
	pod(memory, change < 0)

	time, weight := runtime.PodLimits{CPUQuota: orUnlimited(want.CPUQuota)}, runtime.PodLimits{CPUShares: want.CPUShares}
	change = cmp.Compare(noLimit(want.CPUQuota), noLimit(have.CPUQuota))
	pod(time, change > 0)
	pod(weight, want.CPUShares > have.CPUShares)
	containers(func(a, b amounts) bool {
		return a.CPULimit != b.CPULimit || a.CPURequest != b.CPURequest || a.Shares != b.Shares
	}, func(a amounts) int64 { return a.CPULimit },
		func(to *amounts, from amounts) {
			to.CPULimit, to.CPURequest, to.Shares = from.CPULimit, from.CPURequest, from.Shares
		})
	pod(weight, want.CPUShares < have.CPUShares)
	pod(time, change < 0)
	return steps
}

// resizeUnsure is resizeSteps if it is not known what the cgroups have: everything is set. The pod's limits are attempted first. If one is refused, the pod has
// more now, as it has to be while a container has.
func resizeUnsure(want runtime.PodLimits, members []member) (steps []resizeStep) {
	limits := []runtime.PodLimits{{MemoryBytes: orUnlimited(want.MemoryBytes)}, {CPUQuota: orUnlimited(want.CPUQuota)}}
	for _, l := range limits {
		steps = append(steps, resizeStep{pod: l, attempt: true})
	}
	for _, m := range members {
		steps = append(steps, resizeStep{of: m, amounts: m.want})
	}
	for _, l := range append(limits, runtime.PodLimits{CPUShares: want.CPUShares}) {
		steps = append(steps, resizeStep{pod: l})
	}
	return steps
}

func noLimit(n int64) int64 {
	if n == 0 {
		return math.MaxInt64
	}
	return n
}

// orUnlimited returns a limit as it is set.
func orUnlimited(limit int64) int64 { return cmp.Or(limit, runtime.Unlimited) }

// merge returns the limits of l, with those that a step has set.
func merge(l, set runtime.PodLimits) runtime.PodLimits {
	l.CPUShares, l.CPUQuota, l.MemoryBytes = cmp.Or(set.CPUShares, l.CPUShares), cmp.Or(set.CPUQuota, l.CPUQuota), cmp.Or(set.MemoryBytes, l.MemoryBytes)
	l.CPUQuota, l.MemoryBytes = max(l.CPUQuota, 0), max(l.MemoryBytes, 0)
	return l
}

// roomFor returns why a node has no room for a pod that asks for other resources than it has, beside what others use; "" if it has. never means that it has none
// even without others. What is not asked for more is granted, whatever the node has.
func roomFor(now, next, others, allocatable corev1.ResourceList) (why string, never bool) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		want, have, used := next[name], now[name], others[name]
		room, known := allocatable[name]
		if !known || want.Cmp(have) <= 0 {
			continue
		}
		if want.Cmp(room) > 0 {
			return fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, amount(name, want), amount(name, room)), true
		}
		sum := want.DeepCopy()
		if sum.Add(used); sum.Cmp(room) > 0 && why == "" {
			why = shortOf(name, want, used, room)
		}
	}
	return why, false
}

// share is what a pod has as a whole.
type share struct {
	limits    runtime.PodLimits // of its cgroup
	resources corev1.ResourceRequirements
	requests  corev1.ResourceList
}

// shareOf returns the share of an allocated pod. The pod's overhead is not in what the status says of it, since whoever adds that up adds it.
func shareOf(p *corev1.Pod) share {
	s := share{limits: podLimits(p), requests: resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})}
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

// sumOfLimits returns what the containers of a pod may use together, by its own limit or because each of them has one.
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

// now returns the pod's resources for its status while its cgroup has these limits.
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

// resourcesNow returns a container's resources for its status while it has these amounts.
func resourcesNow(p *corev1.Pod, c *corev1.Container, have amounts) *corev1.ResourceRequirements {
	r, want := c.Resources.DeepCopy(), amountsOf(p, c)
	if have.CPURequest != want.CPURequest {
		put(&r.Requests, corev1.ResourceCPU, resource.NewMilliQuantity(have.CPURequest, resource.DecimalSI))
	}
	if have.MemoryRequest != want.MemoryRequest {
		put(&r.Requests, corev1.ResourceMemory, resource.NewQuantity(have.MemoryRequest, resource.BinarySI))
	}
	if have.CPULimit != want.CPULimit && len(r.Limits) > 0 { // a limit that is the pod's is not shown as the container's
		put(&r.Limits, corev1.ResourceCPU, resource.NewMilliQuantity(have.CPULimit, resource.DecimalSI))
	}
	if have.MemoryLimit != want.MemoryLimit && len(r.Limits) > 0 {
		put(&r.Limits, corev1.ResourceMemory, resource.NewQuantity(have.MemoryLimit, resource.BinarySI))
	}
	return r
}

// put sets a quantity, or removes one that is now none.
func put(l *corev1.ResourceList, name corev1.ResourceName, q *resource.Quantity) {
	if q.IsZero() {
		delete(*l, name)
		return
	}
	if *l == nil {
		*l = corev1.ResourceList{}
	}
	(*l)[name] = *q
}

// resizes reports whether an instance that runs, or that ended for it, has other amounts than it is to have; restart means that its resize policy asks for a new one.
// One that is limited by what the pod has is to have more only when the pod has more.
func (o Observed) resizes(p *corev1.Pod, l *Instance, c *corev1.Container) (differs, restart bool) {
	have, known := o.Amounts[l.ID]
	if !known {
		return false, false
	}
	want := amountsOf(p, c)
	return have != want, restartsFor(c, have, want.within(o.Limits))
}

// restartsFor reports whether two amounts differ in a resource whose resize policy is RestartContainer.
func restartsFor(c *corev1.Container, have, want amounts) bool {
	for _, r := range c.ResizePolicy {
		if r.RestartPolicy != corev1.RestartContainer {
			continue
		}
		switch r.ResourceName {
		case corev1.ResourceCPU:
			if have.CPULimit != want.CPULimit || have.CPURequest != want.CPURequest {
				return true
			}
		case corev1.ResourceMemory:
			if have.MemoryLimit != want.MemoryLimit || have.MemoryRequest != want.MemoryRequest {
				return true
			}
		}
	}
	return false
}

// restartForResize reports whether an instance has to be replaced for a resize.
func (o Observed) restartForResize(p *corev1.Pod, l *Instance, c *corev1.Container) bool {
	_, restart := o.resizes(p, l, c)
	return restart
}

// resizable reports whether cgroups are to be changed: nothing that runs has to be replaced first.
func (o Observed) resizable(p *corev1.Pod) bool {
	needed := o.Resizing || o.Limits != o.Share.limits
	for name, list := range o.Containers {
		c, _, _ := containerOf(p, name)
		if c == nil || list[0].State != runtime.Running {
			continue
		}
		differs, restart := o.resizes(p, &list[0], c)
		if restart {
			return false
		}
		needed = needed || differs && !restartsFor(c, o.Amounts[list[0].ID], amountsOf(p, c))
	}
	return needed
}

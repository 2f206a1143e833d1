package pod

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// amounts are the resources of a container that can change while it runs. Zero means not set.
type amounts struct {
	Shares        uint64 `json:"shares,omitempty"`
	CPURequest    int64  `json:"cpuRequest,omitempty"` // millicores
	CPULimit      int64  `json:"cpuLimit,omitempty"`
	MemoryRequest int64  `json:"memoryRequest,omitempty"` // bytes
	MemoryLimit   int64  `json:"memoryLimit,omitempty"`
}

// amountsOf returns the amounts that a container should have. A container without a limit gets the pod's (KEP-2837),
// as in the kubelet; the pod's cgroup enforces the limit for all of them together.
func amountsOf(p *corev1.Pod, c *corev1.Container) amounts {
	cpu, memory := limitOf(p, c, corev1.ResourceCPU), limitOf(p, c, corev1.ResourceMemory)
	a := amounts{
		CPURequest:    c.Resources.Requests.Cpu().MilliValue(),
		CPULimit:      cpu.MilliValue(),
		MemoryRequest: c.Resources.Requests.Memory().Value(),
		MemoryLimit:   memory.Value(),
	}
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

// within caps the CPU limit at the pod's: cgroup v1 refuses a container a larger quota than its parent has.
func (a amounts) within(l runtime.PodLimits) amounts {
	if l.CPUQuota > 0 && quota(a.CPULimit) > l.CPUQuota {
		a.CPULimit = l.CPUQuota * 1000 / period
	}
	return a
}

func (a amounts) label() string {
	text, _ := json.Marshal(a) // numbers
	return string(text)
}

func amountsIn(label string) (a amounts, ok bool) {
	return a, label != "" && json.Unmarshal([]byte(label), &a) == nil
}

// resourcesNow returns a container's resources for its status while it has the amounts have.
func resourcesNow(p *corev1.Pod, c *corev1.Container, have amounts) *corev1.ResourceRequirements {
	r, want := c.Resources.DeepCopy(), amountsOf(p, c)
	if have.CPURequest != want.CPURequest {
		put(&r.Requests, corev1.ResourceCPU, resource.NewMilliQuantity(have.CPURequest, resource.DecimalSI))
	}
	if have.MemoryRequest != want.MemoryRequest {
		put(&r.Requests, corev1.ResourceMemory, resource.NewQuantity(have.MemoryRequest, resource.BinarySI))
	}
	if have.CPULimit != want.CPULimit && len(r.Limits) > 0 { // a limit inherited from the pod is not the container's
		put(&r.Limits, corev1.ResourceCPU, resource.NewMilliQuantity(have.CPULimit, resource.DecimalSI))
	}
	if have.MemoryLimit != want.MemoryLimit && len(r.Limits) > 0 {
		put(&r.Limits, corev1.ResourceMemory, resource.NewQuantity(have.MemoryLimit, resource.BinarySI))
	}
	return r
}

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

// resizes reports whether the instance has other amounts than it should have, and whether its resize policy requires
// a restart for that. For the restart the new amounts are capped by the pod's actuated limits: a container that
// inherits the pod's CPU limit gets more only once the pod has it.
func (o Observed) resizes(p *corev1.Pod, l *Instance, c *corev1.Container) (differs, restart bool) {
	have, known := o.Amounts[l.ID]
	if !known {
		return false, false
	}
	want := amountsOf(p, c)
	return have != want, restartsFor(c, have, want.within(o.Limits))
}

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

func (o Observed) restartForResize(p *corev1.Pod, l *Instance, c *corev1.Container) bool {
	_, restart := o.resizes(p, l, c)
	return restart
}

// resizable reports whether cgroups must change and no running container has to be replaced first.
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

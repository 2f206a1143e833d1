package scheduler

import (
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// prepareAlternatives reports whether device requests of the pod list alternatives (KEP-4816).
func prepareAlternatives(c *cycle) bool { return c.devices != nil && c.devices.lists() > 0 }

// earlyAlternatives prefers nodes that have an early alternative of each list. Upstream scales the sum by the best
// node's, this score by the possible maximum.
func earlyAlternatives(c *cycle, n *nodeInfo) (sum int64) {
	d := c.devices
	for _, h := range d.held {
		sum += earliness(h.ResourceClaim, h.Status.Allocation)
	}
	if found := d.found[n.name].allocations; len(found) >= len(d.wanted) {
		for i, claim := range d.wanted {
			sum += earliness(claim, &found[i])
		}
	}
	return mostScore * sum / (resourcev1.FirstAvailableDeviceRequestMaxSize * d.lists())
}

func (d *deviceCycle) lists() (n int64) {
	count := func(c *resourcev1.ResourceClaim) {
		for i := range c.Spec.Devices.Requests {
			if len(c.Spec.Devices.Requests[i].FirstAvailable) > 0 {
				n++
			}
		}
	}
	for _, h := range d.held {
		count(h.ResourceClaim)
	}
	for _, c := range d.wanted {
		count(c)
	}
	return n
}

// earliness sums, over the requests that list alternatives, the distance of the allocated alternative from the end
// of the longest possible list.
func earliness(claim *resourcev1.ResourceClaim, a *resourcev1.AllocationResult) (sum int64) {
	allocated := map[string]bool{}
	for i := range a.Devices.Results {
		allocated[a.Devices.Results[i].Request] = true
	}
	for _, r := range claim.Spec.Devices.Requests {
		for i, sub := range r.FirstAvailable {
			if allocated[resourceclaim.CreateSubRequestRef(r.Name, sub.Name)] {
				sum += int64(resourcev1.FirstAvailableDeviceRequestMaxSize - i)
			}
		}
	}
	return sum
}

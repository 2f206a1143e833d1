package scheduler

import (
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/coracle-dev/coracle/pkg/control/toleration"
)

// tainted returns the slice with the taints of the rules that select its devices (KEP-5055).
func tainted(slice *resourcev1.ResourceSlice, rules []resourcev1.DeviceTaintRule) *resourcev1.ResourceSlice {
	out := slice
	matches := func(want *string, is string) bool { return want == nil || *want == is }
	for r := range rules {
		s := rules[r].Spec.DeviceSelector
		if s == nil || !matches(s.Driver, slice.Spec.Driver) || !matches(s.Pool, slice.Spec.Pool.Name) {
			continue
		}
		for i := range slice.Spec.Devices {
			if !matches(s.Device, slice.Spec.Devices[i].Name) {
				continue
			}
			if out == slice {
				out = slice.DeepCopy()
			}
			out.Spec.Devices[i].Taints = append(out.Spec.Devices[i].Taints, rules[r].Spec.Taint)
		}
	}
	return out
}

type deviceID struct{ driver, pool, device string }

// evictions contains the NoExecute taints of devices. A pod that such a taint would evict at once must not get the
// device, or its controller would recreate it in a loop.
type evictions map[deviceID][]resourcev1.DeviceTaint

func (e evictions) add(slice *resourcev1.ResourceSlice) {
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		for _, t := range d.Taints {
			if t.Effect == resourcev1.DeviceTaintEffectNoExecute && t.TimeAdded != nil {
				id := deviceID{slice.Spec.Driver, slice.Spec.Pool.Name, d.Name}
				e[id] = append(e[id], t)
			}
		}
	}
}

// atOnce reports whether a taint would evict a pod with these devices at once.
func (e evictions) atOnce(found []resourcev1.AllocationResult, now time.Time) bool {
	if len(e) == 0 {
		return false
	}
	for i := range found {
		for _, r := range found[i].Devices.Results {
			if slices.ContainsFunc(e[deviceID{r.Driver, r.Pool, r.Device}], func(t resourcev1.DeviceTaint) bool {
				return over(t, r.Tolerations, now)
			}) {
				return true
			}
		}
	}
	return false
}

// spare removes from a slice the devices from which a pod with these claims would be evicted at once. It keeps
// devices in use, because they consume shared counters, and all devices if a claim requests all of them.
func (e evictions) spare(slice *resourcev1.ResourceSlice, claims []*resourcev1.ResourceClaim, used map[deviceID]bool,
	now time.Time) *resourcev1.ResourceSlice {
	evicts := func(d resourcev1.Device) bool {
		id := deviceID{slice.Spec.Driver, slice.Spec.Pool.Name, d.Name}
		return !used[id] && slices.ContainsFunc(e[id], func(t resourcev1.DeviceTaint) bool {
			return slices.ContainsFunc(claims, func(c *resourcev1.ResourceClaim) bool { return evictsAtOnce(t, c, now) })
		})
	}
	if len(e) == 0 || slices.ContainsFunc(claims, wantsAll) || !slices.ContainsFunc(slice.Spec.Devices, evicts) {
		return slice
	}
	out := *slice
	out.Spec.Devices = slices.DeleteFunc(slices.Clone(slice.Spec.Devices), evicts)
	return &out
}

func inUse(allocated []*resourcev1.AllocationResult) map[deviceID]bool {
	out := map[deviceID]bool{}
	for _, a := range allocated {
		for _, r := range a.Devices.Results {
			out[deviceID{r.Driver, r.Pool, r.Device}] = true
		}
	}
	return out
}

func wantsAll(claim *resourcev1.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool {
		return r.Exactly != nil && r.Exactly.AllocationMode == resourcev1.DeviceAllocationModeAll ||
			slices.ContainsFunc(r.FirstAvailable, func(s resourcev1.DeviceSubRequest) bool {
				return s.AllocationMode == resourcev1.DeviceAllocationModeAll
			})
	})
}

// evictsAtOnce reports whether a request of the claim tolerates the taint only for a time that has passed.
func evictsAtOnce(t resourcev1.DeviceTaint, claim *resourcev1.ResourceClaim, now time.Time) bool {
	return slices.ContainsFunc(claim.Spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool {
		return r.Exactly != nil && over(t, r.Exactly.Tolerations, now) ||
			slices.ContainsFunc(r.FirstAvailable, func(s resourcev1.DeviceSubRequest) bool {
				return over(t, s.Tolerations, now)
			})
	})
}

// over reports whether tolerations tolerate the taint, but only for a time that has passed.
func over(t resourcev1.DeviceTaint, tolerations []resourcev1.DeviceToleration, now time.Time) bool {
	stay, tolerated := toleration.Of(&t, tolerations)
	return tolerated && now.Sub(t.TimeAdded.Time) >= stay // never true for Forever
}

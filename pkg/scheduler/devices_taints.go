package scheduler

import (
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// tainted adds the taints of the rules that select devices of a slice (KEP-5055).
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

// lasting leaves out the devices of a slice from which a pod with these claims would be evicted at once: they are tainted for longer than it tolerates.
// Otherwise whoever makes such pods would make them again and again.
func lasting(slice *resourcev1.ResourceSlice, claims []*resourcev1.ResourceClaim, now time.Time) *resourcev1.ResourceSlice {
	evicts := func(d resourcev1.Device) bool {
		return slices.ContainsFunc(d.Taints, func(t resourcev1.DeviceTaint) bool {
			return slices.ContainsFunc(claims, func(c *resourcev1.ResourceClaim) bool { return evictsAtOnce(t, c, now) })
		})
	}
	if !slices.ContainsFunc(slice.Spec.Devices, evicts) {
		return slice
	}
	out := *slice
	out.Spec.Devices = slices.DeleteFunc(slices.Clone(slice.Spec.Devices), evicts)
	return &out
}

// evictsAtOnce reports whether a request of a claim tolerates a taint, but only for a time that is over.
func evictsAtOnce(t resourcev1.DeviceTaint, claim *resourcev1.ResourceClaim, now time.Time) bool {
	if t.Effect != resourcev1.DeviceTaintEffectNoExecute || t.TimeAdded == nil {
		return false
	}
	over := func(tolerations []resourcev1.DeviceToleration) bool {
		ended := false
		for _, tol := range tolerations {
			if !resourceclaim.ToleratesTaint(tol, t) {
				continue
			}
			if tol.TolerationSeconds == nil || tol.Effect == "" {
				return false
			}
			ended = ended || now.Sub(t.TimeAdded.Time)/time.Second >= time.Duration(max(*tol.TolerationSeconds, 0))
		}
		return ended
	}
	for _, r := range claim.Spec.Devices.Requests {
		if r.Exactly != nil && over(r.Exactly.Tolerations) {
			return true
		}
		for _, sub := range r.FirstAvailable {
			if over(sub.Tolerations) {
				return true
			}
		}
	}
	return false
}

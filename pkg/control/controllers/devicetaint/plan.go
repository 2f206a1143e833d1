package devicetaint

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/coracle-dev/coracle/pkg/control/toleration"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// Inventory is the source of device taints.
type Inventory struct {
	// Slices returns the slices of a pool, of all its generations.
	Slices func(driver, pool string) []*resourcev1.ResourceSlice
	Rules  []*resourcev1.DeviceTaintRule
}

// Eviction says when to evict a pod and which rules cause it. A taint in a slice adds no rule.
type Eviction struct {
	At    time.Time
	Rules []types.UID
}

// Plan returns when to evict a pod because of its devices, or nil. claims are the claims that the pod names. It is
// a pure function.
func Plan(p *corev1.Pod, claims []*resourcev1.ResourceClaim, in Inventory, now time.Time) *Eviction {
	if p.Spec.NodeName == "" || p.DeletionTimestamp != nil || podstate.Ended(p) {
		return nil
	}
	var out *Eviction
	for _, claim := range claims {
		if claim.Status.Allocation == nil || !resourceclaim.IsReservedForPod(p, claim, false) {
			continue
		}
		for i := range claim.Status.Allocation.Devices.Results {
			out = in.device(&claim.Status.Allocation.Devices.Results[i], now, out)
		}
	}
	return out
}

// device adds the effect of a device's taints to an eviction, which may be nil.
func (in Inventory) device(d *resourcev1.DeviceRequestAllocationResult, now time.Time, out *Eviction) *Eviction {
	add := func(t *resourcev1.DeviceTaint, rule types.UID) {
		at, leaves := evictedAt(t, d.Tolerations, now)
		if !leaves {
			return
		}
		if out == nil {
			out = &Eviction{At: at}
		}
		if at.Before(out.At) {
			out.At = at
		}
		if rule != "" && !slices.Contains(out.Rules, rule) {
			out.Rules = append(out.Rules, rule)
		}
	}
	for _, t := range in.taints(d.Driver, d.Pool, d.Device) {
		add(&t, "")
	}
	for _, r := range in.Rules {
		if Selects(r, d.Driver, d.Pool, d.Device) {
			add(&r.Spec.Taint, r.UID)
		}
	}
	return out
}

// taints returns the taints that the driver set on a device in the newest generation of its pool.
func (in Inventory) taints(driver, pool, device string) []resourcev1.DeviceTaint {
	list := in.Slices(driver, pool)
	newest := int64(-1)
	for _, s := range list {
		newest = max(newest, s.Spec.Pool.Generation)
	}
	for _, s := range list {
		if s.Spec.Pool.Generation != newest {
			continue
		}
		for i := range s.Spec.Devices {
			if s.Spec.Devices[i].Name == device {
				return s.Spec.Devices[i].Taints
			}
		}
	}
	return nil
}

// evictedAt returns when a taint evicts the users of its device. leaves is false if it does not.
func evictedAt(t *resourcev1.DeviceTaint, tolerations []resourcev1.DeviceToleration,
	now time.Time) (at time.Time, leaves bool) {
	if t.Effect != resourcev1.DeviceTaintEffectNoExecute {
		return at, false
	}
	at = now
	if t.TimeAdded != nil {
		at = t.TimeAdded.Time
	}
	stay, _ := toleration.Of(t, tolerations)
	if stay == toleration.Forever {
		return at, false
	}
	return at.Add(stay), true
}

// Selects reports whether a rule taints a device. A rule without a selector taints none.
func Selects(r *resourcev1.DeviceTaintRule, driver, pool, device string) bool {
	s := r.Spec.DeviceSelector
	is := func(want *string, have string) bool { return want == nil || *want == have }
	return s != nil && is(s.Driver, driver) && is(s.Pool, pool) && is(s.Device, device)
}

// Effects counts what a rule affects, or would affect with the effect NoExecute.
type Effects struct {
	Published, Allocated int // devices
	Pods, Namespaces     int // to be evicted
}

// Condition returns the condition for a rule's status, or false if it is unchanged. The texts are upstream's. It
// is a pure function.
func Condition(r *resourcev1.DeviceTaintRule, e Effects, now time.Time) (metav1.Condition, bool) {
	c := metav1.Condition{
		Type:               resourcev1.DeviceTaintConditionEvictionInProgress,
		Status:             metav1.ConditionFalse,
		ObservedGeneration: r.Generation,
	}
	var was metav1.Condition
	for _, old := range r.Status.Conditions {
		if old.Type == c.Type {
			was = old
		}
	}
	switch r.Spec.Taint.Effect {
	case resourcev1.DeviceTaintEffectNoExecute:
		switch {
		case e.Pods > 0:
			c.Status, c.Reason = metav1.ConditionTrue, "PodsPendingEviction"
			c.Message = count(e.Pods, "pod needs", "pods need") + " to be evicted in " +
				count(e.Namespaces, "namespace.", "different namespaces.")
		case was.Status == metav1.ConditionTrue || was.Reason == "Completed":
			c.Reason = "Completed"
		default:
			c.Reason = "NotStarted"
		}
	case resourcev1.DeviceTaintEffectNone:
		c.Reason = "NoEffect"
		if was.Reason == c.Reason && was.ObservedGeneration == r.Generation {
			return was, false // reported once per generation of the rule
		}
		c.Message = strings.Join([]string{
			count(e.Published, "published device selected.", "published devices selected."),
			count(e.Allocated, "allocated device selected.", "allocated devices selected."),
			count(e.Pods, "pod would", "pods would"), "be evicted in", count(e.Namespaces, "namespace", "different namespaces"),
			"if the effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger " +
				"an update."}, " ")
	default:
		c.Reason, c.Message = "OtherEffect", "Eviction only happens for the NoExecute effect."
	}
	c.LastTransitionTime = was.LastTransitionTime
	if was == c {
		return was, false
	}
	c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	return c, true
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

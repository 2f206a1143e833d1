package servicecidr

import (
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// protection is upstream's finalizer. It keeps a range from being deleted while it is the only range of an address.
const protection = "networking.k8s.io/service-cidr-finalizer"

// ours is the range from the server's options. It needs no protection, because servers restore it after a deletion.
const ours = "kubernetes"

// grace is upstream's minimum time between the request to delete a range and its removal: a server with a lagging
// cache may still allocate addresses from it.
const grace = 10 * time.Second

// Decision is what to write: the whole Object, or its status alone.
type Decision struct {
	Object, Status *networkingv1.ServiceCIDR
	// Again is when to plan again. 0 means after an event.
	Again time.Duration
}

// Plan computes the next write for a range, given all ranges and the addresses that servers have allocated.
func Plan(s *networkingv1.ServiceCIDR, all []*networkingv1.ServiceCIDR, allocated []netip.Addr,
	now time.Time) Decision {
	has := slices.Contains(s.Finalizers, protection)
	if s.DeletionTimestamp == nil {
		switch {
		case s.Name == ours:
			return Decision{}
		case !has:
			next := s.DeepCopy()
			next.Finalizers = append(next.Finalizers, protection)
			return Decision{Object: next}
		// as upstream, even if another client set it to false
		case !meta.IsStatusConditionTrue(s.Status.Conditions, networkingv1.ServiceCIDRConditionReady):
			return Decision{Status: with(s, metav1.ConditionTrue, "", "Kubernetes Service CIDR is ready")}
		}
		return Decision{}
	}
	if !has {
		return Decision{}
	}
	if s.Name != ours && left(s, all, allocated) {
		const why = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
		if c := meta.FindStatusCondition(s.Status.Conditions, networkingv1.ServiceCIDRConditionReady); c != nil &&
			c.Status == metav1.ConditionFalse && c.Reason == networkingv1.ServiceCIDRReasonTerminating {
			return Decision{}
		}
		return Decision{Status: with(s, metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating, why)}
	}
	if wait := s.DeletionTimestamp.Add(grace).Sub(now); wait > 0 {
		return Decision{Again: wait}
	}
	next := s.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == protection })
	return Decision{Object: next}
}

func with(s *networkingv1.ServiceCIDR, status metav1.ConditionStatus,
	reason, message string) *networkingv1.ServiceCIDR {
	next := s.DeepCopy()
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type:    networkingv1.ServiceCIDRConditionReady,
		Status:  status,
		Reason:  reason,
		Message: message,
	})
	return next
}

// left reports whether an allocated address is only in this range.
func left(s *networkingv1.ServiceCIDR, all []*networkingv1.ServiceCIDR, allocated []netip.Addr) bool {
	own := prefixes(s)
	var others []netip.Prefix
	for _, o := range all {
		if o.Name != s.Name && o.DeletionTimestamp == nil {
			others = append(others, prefixes(o)...)
		}
	}
	in := func(ranges []netip.Prefix, ip netip.Addr) bool {
		return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	return slices.ContainsFunc(allocated, func(ip netip.Addr) bool { return in(own, ip) && !in(others, ip) })
}

func prefixes(s *networkingv1.ServiceCIDR) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range s.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

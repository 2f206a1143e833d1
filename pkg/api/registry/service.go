package registry

import (
	"cmp"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservice "k8s.io/kubernetes/pkg/api/service"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
)

// complete sets the fields of a Service that the server allocates: cluster IP, node ports, IP families. Of a
// ServiceCIDR, it checks new ranges.
func (c *call) complete(obj, old runtime.Object) error {
	if r, ok := obj.(*networking.ServiceCIDR); ok && c.Subresource == "" {
		was, _ := old.(*networking.ServiceCIDR)
		return c.checkRange(r, was)
	}
	now, ok := obj.(*core.Service)
	if !ok || c.Subresource != "" {
		return nil
	}
	was, _ := old.(*core.Service)
	if was == nil {
		if len(now.Spec.ClusterIP) > 0 && len(now.Spec.ClusterIPs) == 0 {
			now.Spec.ClusterIPs = []string{now.Spec.ClusterIP}
		}
	} else {
		keepAllocated(now, was)
		pairClusterIPs(now, was)
	}
	if err := setIPFamilies(now, was); err != nil {
		return err
	}
	return c.allocate(now, was)
}

// pairClusterIPs keeps clusterIP and clusterIPs consistent, as upstream does for clients that know only the former.
func pairClusterIPs(now, was *core.Service) {
	same := slices.Equal(now.Spec.ClusterIPs, was.Spec.ClusterIPs)
	switch {
	case now.Spec.ClusterIP == was.Spec.ClusterIP:
		if len(now.Spec.ClusterIPs) == 0 {
			now.Spec.ClusterIPs = was.Spec.ClusterIPs
		}
	case now.Spec.ClusterIP == "" && same:
		now.Spec.ClusterIPs = nil
	case same:
		now.Spec.ClusterIPs = []string{now.Spec.ClusterIP}
	}
}

// keepAllocated copies allocated values from the old Service, so that clients can send the original manifest again.
func keepAllocated(now, was *core.Service) {
	if hasClusterIP(now) && hasClusterIP(was) {
		now.Spec.ClusterIP = cmp.Or(now.Spec.ClusterIP, was.Spec.ClusterIP)
		if len(now.Spec.ClusterIPs) == 0 {
			now.Spec.ClusterIPs = was.Spec.ClusterIPs
		}
	}
	if wantsNodePorts(now) && wantsNodePorts(was) {
		had := map[string]int32{}
		var old []int32
		for _, p := range was.Spec.Ports {
			had[p.Name] = p.NodePort
			old = append(old, p.NodePort)
		}
		var taken []int32
		for _, p := range now.Spec.Ports {
			if p.NodePort != 0 && slices.Contains(old, p.NodePort) {
				taken = append(taken, p.NodePort)
			}
		}
		for i := range now.Spec.Ports {
			p := &now.Spec.Ports[i]
			if before := had[p.Name]; p.NodePort == 0 && !slices.Contains(taken, before) {
				p.NodePort = before
			}
		}
	}
	if apiservice.NeedsHealthCheck(now) && apiservice.NeedsHealthCheck(was) && now.Spec.HealthCheckNodePort == 0 {
		now.Spec.HealthCheckNodePort = was.Spec.HealthCheckNodePort
	}
}

func hasClusterIP(s *core.Service) bool { return s.Spec.Type != core.ServiceTypeExternalName }

func headless(s *core.Service) bool {
	return s.Spec.ClusterIP == core.ClusterIPNone ||
		len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIPs[0] == core.ClusterIPNone
}

func wantsNodePorts(s *core.Service) bool {
	return s.Spec.Type == core.ServiceTypeNodePort || s.Spec.Type == core.ServiceTypeLoadBalancer &&
		(s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts)
}

func invalidService(s *core.Service, errs ...*field.Error) error {
	return apierrors.NewInvalid(core.Kind("Service"), s.Name, errs)
}

// keepsFamilies reports whether an update leaves the address fields of a PreferDualStack Service unchanged. Then
// the Service is neither upgraded nor downgraded.
func keepsFamilies(now, was *core.Service) bool {
	prefers := func(s *core.Service) bool {
		return s.Spec.IPFamilyPolicy != nil && *s.Spec.IPFamilyPolicy == core.IPFamilyPolicyPreferDualStack
	}
	return was != nil && now.Spec.Type == was.Spec.Type && prefers(now) &&
		(was.Spec.IPFamilyPolicy == nil || prefers(was)) &&
		slices.Equal(now.Spec.ClusterIPs, was.Spec.ClusterIPs) && slices.Equal(now.Spec.IPFamilies, was.Spec.IPFamilies)
}

// setIPFamilies sets ipFamilyPolicy and ipFamilies on an IPv4-only cluster. It fails if a request needs IPv6.
func setIPFamilies(now, was *core.Service) error {
	if !hasClusterIP(now) || keepsFamilies(now, was) {
		return nil
	}
	spec := &now.Spec
	selectorless := spec.ClusterIP == core.ClusterIPNone && len(spec.Selector) == 0
	if spec.IPFamilyPolicy == nil {
		policy := core.IPFamilyPolicySingleStack
		switch {
		case was != nil && was.Spec.IPFamilyPolicy != nil:
			policy = *was.Spec.IPFamilyPolicy
		case selectorless:
			policy = core.IPFamilyPolicyRequireDualStack
		}
		spec.IPFamilyPolicy = &policy
	}
	if errs := validation.ValidateServiceClusterIPsRelatedFields(now, was); len(errs) > 0 {
		return invalidService(now, errs...)
	}
	policyPath := field.NewPath("spec", "ipFamilyPolicy")
	var errs field.ErrorList
	refuse := func(why string) { errs = append(errs, field.Invalid(policyPath, spec.IPFamilyPolicy, why)) }
	single := *spec.IPFamilyPolicy == core.IPFamilyPolicySingleStack
	if was != nil {
		releaseFamilies(spec, &was.Spec, single, refuse)
	}
	if single && len(spec.ClusterIPs) == 2 {
		refuse("must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified")
	}
	if single && len(spec.IPFamilies) == 2 {
		refuse("must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified")
	}
	for i, ip := range spec.ClusterIPs {
		if ip == core.ClusterIPNone {
			break
		}
		if i < len(spec.IPFamilies) {
			continue
		}
		if a, err := netip.ParseAddr(ip); err == nil && a.Is4() {
			spec.IPFamilies = append(spec.IPFamilies, core.IPv4Protocol)
		} else {
			errs = append(errs,
				field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), spec.ClusterIPs,
					"IPv6 is not configured on this cluster"))
		}
	}
	if len(errs) > 0 {
		return invalidService(now, errs...)
	}
	if selectorless {
		anyFamilies(spec, single)
		return nil
	}
	if *spec.IPFamilyPolicy == core.IPFamilyPolicyRequireDualStack {
		refuse("this cluster is not configured for dual-stack services")
	}
	for i, f := range spec.IPFamilies {
		if f != core.IPv4Protocol {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilies").Index(i), f, "not configured on this cluster"))
		}
	}
	if len(errs) > 0 {
		return invalidService(now, errs...)
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []core.IPFamily{core.IPv4Protocol}
	}
	return nil
}

// releaseFamilies removes the second address and family of a Service that becomes single-stack, and refuses to remove
// them from any other.
func releaseFamilies(spec, was *core.ServiceSpec, single bool, refuse func(why string)) {
	if single {
		if slices.Equal(was.ClusterIPs, spec.ClusterIPs) && len(spec.ClusterIPs) > 1 {
			spec.ClusterIPs = spec.ClusterIPs[:1]
		}
		if slices.Equal(was.IPFamilies, spec.IPFamilies) && len(spec.IPFamilies) > 1 {
			spec.IPFamilies = spec.IPFamilies[:1]
		}
		return
	}
	if n := len(spec.ClusterIPs); n > 0 && n < len(was.ClusterIPs) {
		refuse("must be 'SingleStack' to release the secondary cluster IP")
	}
	if n := len(spec.IPFamilies); n > 0 && n < len(was.IPFamilies) {
		refuse("must be 'SingleStack' to release the secondary IP family")
	}
}

// anyFamilies sets the families of a headless Service without a selector, whose endpoints may be of any family.
func anyFamilies(spec *core.ServiceSpec, single bool) {
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []core.IPFamily{core.IPv4Protocol}
	}
	if len(spec.IPFamilies) < 2 && !single {
		other := core.IPv6Protocol
		if spec.IPFamilies[0] == core.IPv6Protocol {
			other = core.IPv4Protocol
		}
		spec.IPFamilies = append(spec.IPFamilies, other)
	}
}

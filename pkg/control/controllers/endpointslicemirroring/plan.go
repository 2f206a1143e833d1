package endpointslicemirroring

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	manager = "endpointslicemirroring-controller.k8s.io"
	// most is upstream's limit of mirrored addresses per subset. Further ones are omitted.
	most = 1000
	// leader marks Endpoints that serve as a leader election lock.
	leader = "control-plane.alpha.kubernetes.io/leader"
)

// Mirrored reports whether the Endpoints must be mirrored: their service has no selector, and they are neither a
// lock nor labelled to be skipped.
func Mirrored(e *corev1.Endpoints, svc *corev1.Service) bool {
	if e == nil || svc == nil || e.DeletionTimestamp != nil || svc.DeletionTimestamp != nil || len(svc.Spec.Selector) > 0 {
		return false
	}
	_, lock := e.Annotations[leader]
	return !lock && e.Labels[discoveryv1.LabelSkipMirror] != "true"
}

// Actions is what to do with the slices.
type Actions struct {
	Create, Update, Delete []*discoveryv1.EndpointSlice
}

// Plan makes the slices match the Endpoints, with one slice for each address family and set of ports.
func Plan(e *corev1.Endpoints, svc *corev1.Service, have []*discoveryv1.EndpointSlice) (a Actions) {
	var want []*discoveryv1.EndpointSlice
	if Mirrored(e, svc) {
		want = mirror(e)
	}
	left := slices.Clone(have)
	for _, w := range want {
		i := slices.IndexFunc(left, func(h *discoveryv1.EndpointSlice) bool {
			return h.AddressType == w.AddressType && portsKey(h.Ports) == portsKey(w.Ports)
		})
		if i < 0 {
			a.Create = append(a.Create, w)
			continue
		}
		h := left[i]
		left = slices.Delete(left, i, i+1)
		if equality.Semantic.DeepEqual(h.Endpoints, w.Endpoints) && maps.Equal(h.Labels, w.Labels) &&
			sameAnnotations(h.Annotations, w.Annotations) {
			continue
		}
		next := h.DeepCopy()
		next.Endpoints, next.Labels, next.Annotations, next.Ports = w.Endpoints, w.Labels, w.Annotations, w.Ports
		a.Update = append(a.Update, next)
	}
	a.Delete = left
	return a
}

func sameAnnotations(a, b map[string]string) bool {
	return len(a) == 0 && len(b) == 0 || maps.Equal(a, b)
}

func mirror(e *corev1.Endpoints) (out []*discoveryv1.EndpointSlice) {
	byKey := map[string]*discoveryv1.EndpointSlice{}
	for _, s := range e.Subsets {
		ports := make([]discoveryv1.EndpointPort, len(s.Ports))
		for i := range s.Ports {
			p := s.Ports[i]
			ports[i] = discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol}
		}
		left := most
		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for _, ad := range addresses {
				ip, err := netip.ParseAddr(ad.IP)
				if err != nil || left == 0 {
					continue
				}
				left--
				family := discoveryv1.AddressTypeIPv4
				if ip.Is6() {
					family = discoveryv1.AddressTypeIPv6
				}
				key := string(family) + portsKey(ports)
				if byKey[key] == nil {
					byKey[key] = newSlice(e, family, ports)
				}
				ep := discoveryv1.Endpoint{
					Addresses:  []string{ad.IP},
					Conditions: discoveryv1.EndpointConditions{Ready: &ready},
					TargetRef:  ad.TargetRef,
					NodeName:   ad.NodeName,
				}
				if ad.Hostname != "" {
					ep.Hostname = &ad.Hostname
				}
				byKey[key].Endpoints = append(byKey[key].Endpoints, ep)
			}
		}
		add(s.Addresses, true)
		add(s.NotReadyAddresses, false)
	}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		s := byKey[key]
		slices.SortFunc(s.Endpoints, func(a, b discoveryv1.Endpoint) int {
			return cmp.Compare(a.Addresses[0], b.Addresses[0])
		})
		out = append(out, s)
	}
	return out
}

func newSlice(e *corev1.Endpoints, family discoveryv1.AddressType,
	ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, GenerateName: e.Name + "-", Labels: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(e, corev1.SchemeGroupVersion.WithKind("Endpoints")),
			},
		},
		AddressType: family, Ports: ports,
	}
	maps.Copy(s.Labels, e.Labels)
	s.Labels[discoveryv1.LabelServiceName], s.Labels[discoveryv1.LabelManagedBy] = e.Name, manager
	for k, v := range e.Annotations {
		if k == corev1.LastAppliedConfigAnnotation || k == corev1.EndpointsLastChangeTriggerTime ||
			k == corev1.EndpointsOverCapacity {
			continue
		}
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[k] = v
	}
	return s
}

func portsKey(ports []discoveryv1.EndpointPort) string {
	keys := make([]string, 0, len(ports))
	for _, p := range ports {
		var name, protocol, app string
		var number int32
		if p.Name != nil {
			name = *p.Name
		}
		if p.Port != nil {
			number = *p.Port
		}
		if p.Protocol != nil {
			protocol = string(*p.Protocol)
		}
		if p.AppProtocol != nil {
			app = *p.AppProtocol
		}
		keys = append(keys, fmt.Sprintf("%s/%d/%s/%s", name, number, protocol, app))
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

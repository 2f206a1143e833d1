package view

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// Service converts a service for clients.
func Service(s *corev1.Service, own string) wire.Service {
	out := wire.Service{
		ServiceID: ID(s.Namespace, own, s.Name), Name: s.Name, Namespace: s.Namespace, Type: string(s.Spec.Type),
		ClusterIP: s.Spec.ClusterIP,
		Selector:  s.Spec.Selector, Labels: userMetadata(s.Labels), Annotations: userMetadata(s.Annotations),
		SessionAffinity: string(s.Spec.SessionAffinity), CreatedAt: s.CreationTimestamp.Time,
		UpdatedAt: s.CreationTimestamp.Time,
		Ports:     []wire.ServicePort{},
	}
	if s.Spec.ClusterIP == corev1.ClusterIPNone {
		out.ClusterIP = ""
	}
	for _, f := range s.ManagedFields {
		if f.Time != nil && f.Time.After(out.UpdatedAt) {
			out.UpdatedAt = f.Time.Time
		}
	}
	for _, p := range s.Spec.Ports {
		target := cmp.Or(p.TargetPort.IntValue(), int(p.Port))
		out.Ports = append(out.Ports, wire.ServicePort{
			Name:       p.Name,
			Protocol:   string(p.Protocol),
			Port:       int(p.Port),
			TargetPort: target,
			NodePort:   int(p.NodePort),
		})
	}
	return out
}

// NewService returns the service of a request.
func NewService(in *wire.CreateService, namespace string) (*corev1.Service, error) {
	switch {
	case in.Name == "":
		return nil, errors.New("name is required")
	case len(in.Selector) == 0:
		return nil, errors.New("selector is required")
	case len(in.Ports) == 0:
		return nil, errors.New("at least one port is required")
	}
	ports, err := servicePorts(in.Ports)
	if err != nil {
		return nil, err
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   namespace,
			Name:        in.Name,
			Labels:      mark(in.Labels, Managed, "true"),
			Annotations: userMetadata(in.Annotations),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceType(in.Type), Selector: in.Selector, Ports: ports,
			SessionAffinity: corev1.ServiceAffinity(in.SessionAffinity),
		},
	}, nil
}

// UpdateService applies a request to a service that the caller owns. The facade's labels and annotations stay.
func UpdateService(s *corev1.Service, in *wire.UpdateService) error {
	if in.Selector != nil {
		if len(*in.Selector) == 0 {
			return errors.New("selector is required")
		}
		s.Spec.Selector = *in.Selector
	}
	if in.Ports != nil {
		if len(*in.Ports) == 0 {
			return errors.New("at least one port is required")
		}
		ports, err := servicePorts(*in.Ports)
		if err != nil {
			return err
		}
		s.Spec.Ports = ports
	}
	replace := func(have map[string]string, with *map[string]string) map[string]string {
		if with == nil {
			return have
		}
		out := maps.Clone(userMetadata(*with))
		for k, v := range have {
			if _, user := userMetadata(map[string]string{k: v})[k]; !user {
				if out == nil {
					out = map[string]string{}
				}
				out[k] = v
			}
		}
		return out
	}
	s.Labels, s.Annotations = replace(s.Labels, in.Labels), replace(s.Annotations, in.Annotations)
	set(&s.Spec.SessionAffinity, in.SessionAffinity)
	return nil
}

func servicePorts(ports []wire.ServicePort) ([]corev1.ServicePort, error) {
	var out []corev1.ServicePort
	for _, p := range ports {
		p.TargetPort = cmp.Or(p.TargetPort, p.Port)
		port, err := number("port", p.Port)
		if err != nil {
			return nil, err
		}
		target, err := number("targetPort", p.TargetPort)
		if err != nil {
			return nil, err
		}
		node, err := number("nodePort", p.NodePort)
		if err != nil {
			return nil, err
		}
		out = append(out, corev1.ServicePort{
			Name:       p.Name,
			Protocol:   protocol(p.Protocol),
			Port:       port,
			TargetPort: intstr.FromInt32(target),
			NodePort:   node,
		})
	}
	return out, nil
}

// Endpoints converts the EndpointSlices of a service for clients.
func Endpoints(s *corev1.Service, slicesOf []discoveryv1.EndpointSlice, own string) wire.Endpoints {
	out := wire.Endpoints{
		ServiceID: ID(s.Namespace, own, s.Name), ServiceName: s.Name, Namespace: s.Namespace,
		Subsets: []wire.EndpointSubset{}, UpdatedAt: s.CreationTimestamp.Time,
	}
	for i := range slicesOf {
		slice := &slicesOf[i]
		subset := wire.EndpointSubset{Addresses: []wire.EndpointAddress{}, Ports: []wire.EndpointPort{}}
		for _, p := range slice.Ports {
			if p.Port == nil {
				continue
			}
			subset.Ports = append(subset.Ports, wire.EndpointPort{
				Port: int(*p.Port), Name: ptr.Deref(p.Name, ""), Protocol: string(ptr.Deref(p.Protocol, "")),
			})
		}
		for j := range slice.Endpoints {
			e := &slice.Endpoints[j]
			address := wire.EndpointAddress{NodeID: ptr.Deref(e.NodeName, "")}
			if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
				address.PodID = ID(e.TargetRef.Namespace, own, e.TargetRef.Name)
			}
			for _, ip := range e.Addresses {
				address.IP = ip
				if ptr.Deref(e.Conditions.Ready, true) {
					subset.Addresses = append(subset.Addresses, address)
				} else {
					subset.NotReadyAddresses = append(subset.NotReadyAddresses, address)
				}
			}
		}
		for _, f := range slice.ManagedFields {
			if f.Time != nil && f.Time.After(out.UpdatedAt) {
				out.UpdatedAt = f.Time.Time
			}
		}
		if len(subset.Addresses)+len(subset.NotReadyAddresses) > 0 {
			out.Subsets = append(out.Subsets, subset)
		}
	}
	slices.SortStableFunc(out.Subsets, func(a, b wire.EndpointSubset) int { return len(b.Addresses) - len(a.Addresses) })
	return out
}

package endpoints

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/net"

	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

const (
	managedBy = "endpoints.kubernetes.io/managed-by"
	manager   = "endpoint-controller"
	// most is the number of addresses in an Endpoints object. Further addresses are omitted and an annotation says so.
	most = 1000
)

// Plan returns the Endpoints object to write, or nil if have is up to date.
func Plan(svc *corev1.Service, pods []*corev1.Pod, have *corev1.Endpoints) *corev1.Endpoints {
	subsets, over := Subsets(svc, pods)
	want := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name}}
	if have != nil { // copies no subsets, which may have a thousand addresses
		want.TypeMeta, want.ObjectMeta = have.TypeMeta, *have.ObjectMeta.DeepCopy()
	}
	want.Subsets = subsets
	want.Labels = maps.Clone(svc.Labels)
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	want.Labels[managedBy] = manager
	if svc.Spec.ClusterIP == corev1.ClusterIPNone {
		want.Labels[corev1.IsHeadlessService] = ""
	} else {
		delete(want.Labels, corev1.IsHeadlessService)
	}
	if over {
		if want.Annotations == nil {
			want.Annotations = map[string]string{}
		}
		want.Annotations[corev1.EndpointsOverCapacity] = "truncated"
	} else {
		delete(want.Annotations, corev1.EndpointsOverCapacity)
	}
	if have != nil && equality.Semantic.DeepEqual(have.Subsets, want.Subsets) &&
		equality.Semantic.DeepEqual(have.Labels, want.Labels) &&
		equality.Semantic.DeepEqual(have.Annotations, want.Annotations) {
		return nil
	}
	return want
}

// Subsets groups the pods' addresses by their ports. over reports whether addresses were omitted.
func Subsets(svc *corev1.Service, pods []*corev1.Pod) (out []corev1.EndpointSubset, over bool) {
	byPorts := map[string]*corev1.EndpointSubset{}
	var key []byte
	for _, p := range pods {
		if podstate.Ended(p) || p.DeletionTimestamp != nil && !svc.Spec.PublishNotReadyAddresses {
			continue
		}
		ip := address(svc, p)
		if ip == "" {
			continue
		}
		ports, ok := ports(svc, p)
		if !ok {
			continue
		}
		key = appendKey(key[:0], ports)
		set := byPorts[string(key)]
		if set == nil {
			set = &corev1.EndpointSubset{Ports: ports}
			byPorts[string(key)] = set
		}
		a := corev1.EndpointAddress{
			IP:        ip,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		}
		if p.Spec.NodeName != "" {
			a.NodeName = new(p.Spec.NodeName)
		}
		if p.Spec.Hostname != "" && p.Spec.Subdomain == svc.Name && p.Namespace == svc.Namespace {
			a.Hostname = p.Spec.Hostname
		}
		if svc.Spec.PublishNotReadyAddresses || podstate.Ready(p) {
			set.Addresses = append(set.Addresses, a)
		} else {
			set.NotReadyAddresses = append(set.NotReadyAddresses, a)
		}
	}
	left := most
	for _, key := range slices.Sorted(maps.Keys(byPorts)) {
		set := byPorts[key]
		for _, list := range []*[]corev1.EndpointAddress{&set.Addresses, &set.NotReadyAddresses} {
			slices.SortFunc(*list, func(a, b corev1.EndpointAddress) int {
				return cmp.Or(strings.Compare(a.IP, b.IP), strings.Compare(string(a.TargetRef.UID), string(b.TargetRef.UID)))
			})
			if len(*list) > left {
				*list = (*list)[:left]
				over = true
			}
			left -= len(*list)
		}
		if len(set.Addresses)+len(set.NotReadyAddresses) > 0 {
			out = append(out, *set)
		}
	}
	return out, over
}

func appendKey(key []byte, ports []corev1.EndpointPort) []byte {
	for _, p := range ports {
		key = append(append(key, p.Name...), '/')
		key = append(strconv.AppendInt(key, int64(p.Port), 10), '/')
		key = append(append(key, p.Protocol...), ' ')
	}
	return key
}

// address returns the pod's address in the service's first IP family, "" if it has none.
func address(svc *corev1.Service, p *corev1.Pod) string {
	v6 := false
	if len(svc.Spec.IPFamilies) > 0 {
		v6 = svc.Spec.IPFamilies[0] == corev1.IPv6Protocol
	} else if ip := svc.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
		v6 = net.IsIPv6String(ip)
	}
	for _, ip := range p.Status.PodIPs {
		if net.IsIPv6String(ip.IP) == v6 {
			return ip.IP
		}
	}
	return ""
}

// ports resolves the service's ports for a pod. ok is false if the pod has none of them.
func ports(svc *corev1.Service, p *corev1.Pod) (out []corev1.EndpointPort, ok bool) {
	if len(svc.Spec.Ports) == 0 {
		return nil, svc.Spec.ClusterIP == corev1.ClusterIPNone
	}
	for i := range svc.Spec.Ports {
		want := &svc.Spec.Ports[i]
		if number := target(want, p); number > 0 {
			out = append(out, corev1.EndpointPort{
				Name:        want.Name,
				Port:        number,
				Protocol:    want.Protocol,
				AppProtocol: want.AppProtocol,
			})
		}
	}
	return out, len(out) > 0
}

func target(want *corev1.ServicePort, p *corev1.Pod) int32 {
	if want.TargetPort.Type == intstr.Int {
		return want.TargetPort.IntVal
	}
	named := func(cs []corev1.Container, ok func(*corev1.Container) bool) int32 {
		for i := range cs {
			for _, port := range cs[i].Ports {
				if ok(&cs[i]) && port.Name == want.TargetPort.StrVal && port.Protocol == want.Protocol {
					return port.ContainerPort
				}
			}
		}
		return 0
	}
	if n := named(p.Spec.Containers, func(*corev1.Container) bool { return true }); n > 0 {
		return n
	}
	return named(p.Spec.InitContainers, func(c *corev1.Container) bool {
		return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	})
}
